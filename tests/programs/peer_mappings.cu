// SPDX-License-Identifier: Apache-2.0
// tests/programs/peer_mappings.cu: memory that a program maps for two GPUs at one address, of one
// GPU and of the other, and two processes, each on a GPU of its own, that pass such memory to and
// fro and wait for each other's events.
//
//   peer_mappings          once
//   peer_mappings hold     again and again until its input ends
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "check.h"
#include "hold.h"
#include "line.h"
#include "mapped_memory.h"
#include "two_gpus.h"

namespace {

using programs::Create;
using programs::Granule;
using programs::Hear;
using programs::Location;
using programs::Tell;

__global__ void Fill(unsigned* out, unsigned seed) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = i * 2654435761u + seed;
}

__global__ void Add(unsigned* out, unsigned term) {
  out[blockIdx.x * blockDim.x + threadIdx.x] += term;
}

CUresult SetAccess(CUdeviceptr address, size_t bytes, CUmemAccess_flags of_0,
                   CUmemAccess_flags of_1) {
  const CUmemAccessDesc access[] = {{Location(0), of_0}, {Location(1), of_1}};
  return cuMemSetAccess(address, bytes, access, 2);
}

constexpr CUmemAccess_flags kNone = CU_MEM_ACCESS_FLAGS_PROT_NONE;
constexpr CUmemAccess_flags kAll = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

// Words at an address, for device 1 and mostly for device 0.
class Mapping : public programs::Mapped {
 public:
  // `handles`, each of a granule, in a row.
  explicit Mapping(const std::vector<CUmemGenericAllocationHandle>& handles,
                   const std::vector<int>& devices = {0, 1})
      : Mapped(handles, Granule(), devices) {}

  unsigned* words() const { return reinterpret_cast<unsigned*>(address()); }
  unsigned blocks() const { return static_cast<unsigned>(bytes() / sizeof(unsigned) / 256); }

  // The words of Fill(seed), with `added` to each.
  void Expect(unsigned seed, unsigned added, const char* what) const {
    std::vector<unsigned> got(bytes() / sizeof(unsigned));
    CUDA_OK(cudaMemcpy(got.data(), words(), bytes(), cudaMemcpyDefault));
    for (unsigned i = 0; i < got.size(); ++i) {
      EXPECT(got[i] == i * 2654435761u + seed + added, "%s, element %u: %u", what, i, got[i]);
    }
  }
};

// Memory of both devices in a row, which the kernels of both fill, at addresses that were reserved
// on `device`.
void WorkInOnePlace(int device, unsigned seed) {
  const size_t granule = Granule();
  CUDA_OK(cudaSetDevice(device));
  const Mapping mapping({Create(0, granule), Create(1, granule), Create(device, granule)});
  for (int of = 0; of < 2; ++of) {
    CUDA_OK(cudaSetDevice(of));
    Fill<<<mapping.blocks(), 256>>>(mapping.words(), seed);
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaSetDevice(1 - of));
    Add<<<mapping.blocks(), 256>>>(mapping.words(), 7);
    CUDA_OK(cudaDeviceSynchronize());
    mapping.Expect(seed, 7, "what both devices have mapped");
  }
  // Taken away, given again, and gone with the mapping.
  unsigned long long flags = 77;
  const CUmemLocation other = Location(1 - device);
  const CUmemAccess_flags of_0 = device == 0 ? kAll : kNone;
  DRIVER_OK(SetAccess(mapping.address(), mapping.bytes(), of_0, device == 0 ? kNone : kAll));
  DRIVER_OK(cuMemGetAccess(&flags, &other, mapping.address()));
  EXPECT(flags == kNone, "%llu", flags);
  CUDA_OK(cudaSetDevice(device));
  Add<<<mapping.blocks(), 256>>>(mapping.words(), 1);
  CUDA_OK(cudaDeviceSynchronize());
  DRIVER_OK(SetAccess(mapping.address(), mapping.bytes(), kAll, kAll));
  DRIVER_OK(cuMemGetAccess(&flags, &other, mapping.address()));
  EXPECT(flags == kAll, "%llu", flags);
  CUDA_OK(cudaSetDevice(1 - device));
  Add<<<mapping.blocks(), 256>>>(mapping.words(), 1);
  CUDA_OK(cudaDeviceSynchronize());
  mapping.Expect(seed, 9, "what was taken away and given again");
}

// What one process tells the other, with a descriptor of the memory. A process that has nothing
// more to say ends the conversation.
struct Told {
  unsigned seed;
  cudaIpcEventHandle_t event;
};

struct Recorder {
  Recorder() {
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
    CUDA_OK(cudaIpcGetEventHandle(&handle, event));
  }
  ~Recorder() {
    CUDA_OK(cudaEventDestroy(event));
    CUDA_OK(cudaStreamDestroy(stream));
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  cudaIpcEventHandle_t handle = {};
};

// Has `stream` wait for the other process's event, which is another device's.
void WaitFor(cudaStream_t stream, const cudaIpcEventHandle_t& handle) {
  cudaEvent_t event = nullptr;
  CUDA_OK(cudaIpcOpenEventHandle(&event, handle));
  CUDA_OK(cudaStreamWaitEvent(stream, event, 0));
  CUDA_OK(cudaStreamSynchronize(stream));
  CUDA_OK(cudaEventQuery(event));
  CUDA_OK(cudaEventDestroy(event));
}

// That the other process has gone may be due to this one's device, which says so then.
void ExpectOther(bool there, cudaStream_t stream) {
  if (!there) CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT(there, "the other process has gone");
}

// Device 0's half: it passes on memory and adds to what comes back.
void PassOn(int line, unsigned seed) {
  CUDA_OK(cudaSetDevice(0));
  const Recorder recorder;
  const CUmemGenericAllocationHandle memory = Create(0, Granule());
  int descriptor = programs::Export(memory);
  const Mapping mapping({memory});
  Fill<<<mapping.blocks(), 256, 0, recorder.stream>>>(mapping.words(), seed);
  CUDA_OK(cudaEventRecord(recorder.event, recorder.stream));
  ExpectOther(Tell(line, Told{seed, recorder.handle}, descriptor), recorder.stream);
  close(descriptor);
  Told told = {};
  ExpectOther(Hear(line, &told, &descriptor), recorder.stream);
  WaitFor(recorder.stream, told.event);
  Add<<<mapping.blocks(), 256, 0, recorder.stream>>>(mapping.words(), 5);
  CUDA_OK(cudaStreamSynchronize(recorder.stream));
  mapping.Expect(seed, 8, "what was passed on and came back");
  ExpectOther(Tell(line, told), recorder.stream);
}

// Device 1's half, in a process of its own. Where the seed is odd the memory is for device 1 alone
// there, although it is device 0's: so NCCL has it.
int Answer(int line) {
  Told told = {};
  int descriptor = -1;
  while (Hear(line, &told, &descriptor)) {
    CUDA_OK(cudaSetDevice(1));
    const Recorder recorder;
    const CUmemGenericAllocationHandle memory = programs::Import(descriptor);
    close(descriptor);
    const Mapping mapping({memory}, told.seed % 2 == 0 ? std::vector{0, 1} : std::vector{1});
    WaitFor(recorder.stream, told.event);
    Add<<<mapping.blocks(), 256, 0, recorder.stream>>>(mapping.words(), 3);
    CUDA_OK(cudaEventRecord(recorder.event, recorder.stream));
    EXPECT(Tell(line, Told{told.seed, recorder.handle}), "the other process has gone");
    EXPECT(Hear(line, &told, &descriptor), "the other process has gone");
    mapping.Expect(told.seed, 8, "what the other process has finished");
  }
  return 0;
}

// What access says that cannot be given.
void SayWhyNot(programs::TwoGpus gpus) {
  if (gpus == programs::TwoGpus::kFewer) {
    std::printf("skipped: it needs two GPUs\n");
    return;
  }
  CUDA_OK(cudaSetDevice(0));
  const size_t granule = Granule();
  CUdeviceptr address = 0;
  const CUmemGenericAllocationHandle memory = Create(0, granule);
  DRIVER_OK(cuMemAddressReserve(&address, granule, 0, 0, 0));
  DRIVER_OK(cuMemMap(address, granule, 0, memory, 0));
  const char* name = "?";
  cuGetErrorName(SetAccess(address, granule, kAll, kAll), &name);
  std::printf("skipped: the GPUs do not reach each other's memory: %s\n", name);
}

}  // namespace

int main(int argc, char** argv) {
  const bool hold = argc > 1 && std::strcmp(argv[1], "hold") == 0;
  int ends[2];
  EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "no socket");
  // Before either knows of CUDA, which does not survive it.
  const pid_t child = fork();
  EXPECT(child >= 0, "no process");
  close(ends[child == 0 ? 0 : 1]);
  if (child == 0) _exit(Answer(ends[1]));
  const programs::TwoGpus gpus = programs::FindTwoGpus();
  if (gpus != programs::TwoGpus::kReachEachOther) {
    SayWhyNot(gpus);
  } else {
    unsigned seed = 1;
    do {
      for (int device = 0; device < 2; ++device) WorkInOnePlace(device, seed++);
      for (int i = 0; i < 2; ++i) PassOn(ends[0], seed++);
    } while (hold && !programs::InputEnded());
  }
  close(ends[0]);
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child && status == 0, "the other process failed: %d",
         status);
  return programs::Pass();
}
