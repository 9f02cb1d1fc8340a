// SPDX-License-Identifier: Apache-2.0
#include "host/worker/calibration.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "vmsock/deadline.h"

namespace consort::host {
namespace {

// Of each of the four measurements: runs at least, and goes on for so long.
constexpr int kRunsMin = 3;
constexpr Nanos kMeasureFor = 30 * kMillisecond;
// Shorter runs would measure how long it takes to begin one.
constexpr Nanos kRunMin = 2 * kMillisecond;
// Of the device's memory for the buffer that is streamed through: larger than its caches, small
// beside what it takes to fill it on a CPU.
constexpr uint64_t kMemoryPart = 512;
constexpr Bytes kBufferMin = 8 * kMiB;
constexpr Bytes kBufferMax = 256 * kMiB;
constexpr Bytes kCopyMax = 32 * kMiB;
constexpr unsigned kThreads = 256;
constexpr unsigned kBlocksOfMultiprocessor = 8;
constexpr uint32_t kRoundsMin = 64;
constexpr uint32_t kRoundsMax = 1 << 20;
// Of one round of the kernel `arithmetic`: 16 multiply-adds of two operations each.
constexpr double kOperationsOfRound = 32;

// `arithmetic`: each thread `rounds` times two multiply-adds on each of eight numbers.
// `memory`: reads and writes each of `vectors` times 16 bytes once.
constexpr char kKernels[] = R"(.version 6.0
.target sm_70
.address_size 64

.visible .entry arithmetic(.param .u64 buffer, .param .u32 rounds)
{
  .reg .pred %more;
  .reg .b32 %block, %threads, %thread, %left;
  .reg .b64 %at, %offset;
  .reg .f32 %a, %b, %c, %d, %e, %f, %g, %h, %x, %y;
  ld.param.u64 %at, [buffer];
  ld.param.u32 %left, [rounds];
  cvta.to.global.u64 %at, %at;
  mov.u32 %block, %ctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.u32 %thread, %block, %threads, %thread;
  mul.wide.u32 %offset, %thread, 4;
  add.u64 %at, %at, %offset;
  cvt.rn.f32.u32 %a, %thread;
  mov.f32 %x, 0f3F000000;
  mov.f32 %y, 0f3F800000;
  add.f32 %b, %a, %y;
  add.f32 %c, %b, %y;
  add.f32 %d, %c, %y;
  add.f32 %e, %d, %y;
  add.f32 %f, %e, %y;
  add.f32 %g, %f, %y;
  add.f32 %h, %g, %y;
round:
  fma.rn.f32 %a, %a, %x, %y;
  fma.rn.f32 %b, %b, %x, %y;
  fma.rn.f32 %c, %c, %x, %y;
  fma.rn.f32 %d, %d, %x, %y;
  fma.rn.f32 %e, %e, %x, %y;
  fma.rn.f32 %f, %f, %x, %y;
  fma.rn.f32 %g, %g, %x, %y;
  fma.rn.f32 %h, %h, %x, %y;
  fma.rn.f32 %a, %a, %x, %y;
  fma.rn.f32 %b, %b, %x, %y;
  fma.rn.f32 %c, %c, %x, %y;
  fma.rn.f32 %d, %d, %x, %y;
  fma.rn.f32 %e, %e, %x, %y;
  fma.rn.f32 %f, %f, %x, %y;
  fma.rn.f32 %g, %g, %x, %y;
  fma.rn.f32 %h, %h, %x, %y;
  sub.u32 %left, %left, 1;
  setp.ne.u32 %more, %left, 0;
  @%more bra round;
  add.f32 %a, %a, %b;
  add.f32 %a, %a, %c;
  add.f32 %a, %a, %d;
  add.f32 %a, %a, %e;
  add.f32 %a, %a, %f;
  add.f32 %a, %a, %g;
  add.f32 %a, %a, %h;
  st.global.f32 [%at], %a;
  ret;
}

.visible .entry memory(.param .u64 buffer, .param .u32 vectors)
{
  .reg .pred %over;
  .reg .b32 %block, %blocks, %threads, %thread, %stride, %count;
  .reg .b64 %base, %at, %offset;
  .reg .f32 %a, %b, %c, %d, %y;
  ld.param.u64 %base, [buffer];
  ld.param.u32 %count, [vectors];
  cvta.to.global.u64 %base, %base;
  mov.u32 %block, %ctaid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.u32 %thread, %block, %threads, %thread;
  mul.lo.u32 %stride, %blocks, %threads;
  mov.f32 %y, 0f3F800000;
next:
  setp.ge.u32 %over, %thread, %count;
  @%over bra done;
  mul.wide.u32 %offset, %thread, 16;
  add.u64 %at, %base, %offset;
  ld.global.v4.f32 {%a, %b, %c, %d}, [%at];
  add.f32 %a, %a, %y;
  add.f32 %b, %b, %y;
  add.f32 %c, %c, %y;
  add.f32 %d, %d, %y;
  st.global.v4.f32 [%at], {%a, %b, %c, %d};
  add.u32 %thread, %thread, %stride;
  bra next;
done:
  ret;
}
)";

// What a calibration holds of the device; all of it is given back.
class Bench {
 public:
  explicit Bench(const WorkerDevice& device) : driver_(device.driver()), device_(device) {}

  ~Bench() {
    if (stream_ != nullptr) driver_.cuStreamDestroy_v2(stream_);
    if (library_ != nullptr) driver_.cuLibraryUnload(library_);
    if (host_ != nullptr) driver_.cuMemFreeHost(host_);
    if (mapped_) driver_.cuMemUnmap(buffer_, bytes_);
    if (memory_ != 0) driver_.cuMemRelease(memory_);
    if (buffer_ != 0) driver_.cuMemAddressFree(buffer_, bytes_);
  }

  absl::Status Prepare() {
    RETURN_IF_ERROR(Check("context", device_.MakeCurrent()));
    RETURN_IF_ERROR(
        Check("stream", driver_.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0)));
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_.device()};
    size_t granularity = 0;
    RETURN_IF_ERROR(
        Check("granularity", driver_.cuMemGetAllocationGranularity(
                                 &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM)));
    bytes_ =
        AlignUp(std::clamp(device_.snapshot().total_bytes / kMemoryPart, kBufferMin, kBufferMax),
                granularity);
    RETURN_IF_ERROR(Check("address", driver_.cuMemAddressReserve(&buffer_, bytes_, 0, 0, 0)));
    RETURN_IF_ERROR(Check("memory", driver_.cuMemCreate(&memory_, bytes_, &properties, 0)));
    RETURN_IF_ERROR(Check("map", driver_.cuMemMap(buffer_, bytes_, 0, memory_, 0)));
    mapped_ = true;
    const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    RETURN_IF_ERROR(Check("access", driver_.cuMemSetAccess(buffer_, bytes_, &access, 1)));
    copied_ = std::min(bytes_, kCopyMax);
    RETURN_IF_ERROR(Check("host memory", driver_.cuMemHostAlloc(&host_, copied_, 0)));
    RETURN_IF_ERROR(Check("kernels", driver_.cuLibraryLoadData(&library_, kKernels, nullptr,
                                                               nullptr, 0, nullptr, nullptr, 0)));
    int multiprocessors = 0;
    RETURN_IF_ERROR(
        Check("multiprocessors",
              driver_.cuDeviceGetAttribute(
                  &multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_.device())));
    blocks_ = kBlocksOfMultiprocessor * static_cast<unsigned>(std::max(multiprocessors, 1));
    // What `arithmetic` writes must fit.
    blocks_ = std::min<unsigned>(blocks_, static_cast<unsigned>(bytes_ / 4 / kThreads));
    return absl::OkStatus();
  }

  absl::StatusOr<double> ToDevice() {
    return Rate(static_cast<double>(copied_),
                [this] { return driver_.cuMemcpyHtoDAsync_v2(buffer_, host_, copied_, stream_); });
  }

  absl::StatusOr<double> ToHost() {
    return Rate(static_cast<double>(copied_),
                [this] { return driver_.cuMemcpyDtoHAsync_v2(host_, buffer_, copied_, stream_); });
  }

  absl::StatusOr<double> Memory() {
    const auto vectors = static_cast<uint32_t>(bytes_ / 16);
    return Rate(2.0 * 16 * vectors, [this, vectors] { return Launch("memory", vectors); });
  }

  absl::StatusOr<double> Arithmetic() {
    uint32_t rounds = kRoundsMin;
    const auto run = [&] { return Launch("arithmetic", rounds); };
    RETURN_IF_ERROR(Time(run).status());  // the first makes the code
    while (true) {
      ASSIGN_OR_RETURN(const Nanos took, Time(run));
      if (took >= kRunMin || rounds >= kRoundsMax) break;
      rounds *= 4;
    }
    return Rate(kOperationsOfRound * rounds * blocks_ * kThreads, run);
  }

 private:
  absl::Status Check(const char* what, CUresult result) const {
    if (result == CUDA_SUCCESS) return absl::OkStatus();
    const char* name = nullptr;
    driver_.cuGetErrorName(result, &name);
    const std::string text = absl::StrCat(what, ": ", name != nullptr ? name : "an unknown error");
    return result == CUDA_ERROR_OUT_OF_MEMORY ? absl::ResourceExhaustedError(text)
                                              : absl::UnavailableError(text);
  }

  CUresult Launch(const char* name, uint32_t number) {
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    CUresult found = driver_.cuLibraryGetKernel(&kernel, library_, name);
    if (found == CUDA_SUCCESS) found = driver_.cuKernelGetFunction(&function, kernel);
    if (found != CUDA_SUCCESS) return found;
    CUlaunchConfig config = {};
    config.gridDimX = blocks_;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = kThreads;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream_;
    void* parameters[] = {&buffer_, &number};
    return driver_.cuLaunchKernelEx(&config, function, parameters, nullptr);
  }

  absl::StatusOr<Nanos> Time(const std::function<CUresult()>& run) {
    const Nanos begin = MonotonicNow();
    RETURN_IF_ERROR(Check("run", run()));
    RETURN_IF_ERROR(Check("wait", driver_.cuStreamSynchronize(stream_)));
    return std::max<Nanos>(MonotonicNow() - begin, 1);
  }

  // Of `amount` a run, a second.
  absl::StatusOr<double> Rate(double amount, const std::function<CUresult()>& run) {
    RETURN_IF_ERROR(Time(run).status());  // the first finds caches cold and clocks low
    Nanos shortest = std::numeric_limits<Nanos>::max();
    const Nanos begin = MonotonicNow();
    for (int runs = 0; runs < kRunsMin || MonotonicNow() - begin < kMeasureFor; ++runs) {
      ASSIGN_OR_RETURN(const Nanos took, Time(run));
      shortest = std::min(shortest, took);
    }
    return amount * kSecond / static_cast<double>(shortest);
  }

  const device::DriverTable& driver_;
  const WorkerDevice& device_;
  CUstream stream_ = nullptr;
  CUdeviceptr buffer_ = 0;
  Bytes bytes_ = 0;
  CUmemGenericAllocationHandle memory_ = 0;
  bool mapped_ = false;
  void* host_ = nullptr;
  Bytes copied_ = 0;
  CUlibrary library_ = nullptr;
  unsigned blocks_ = 0;
};

}  // namespace

absl::StatusOr<Calibrated> CalibrateDevice(const WorkerDevice& device) {
  Bench bench(device);
  RETURN_IF_ERROR(bench.Prepare());
  Calibrated found;
  ASSIGN_OR_RETURN(found.to_device, bench.ToDevice());
  ASSIGN_OR_RETURN(found.to_host, bench.ToHost());
  ASSIGN_OR_RETURN(found.memory, bench.Memory());
  ASSIGN_OR_RETURN(found.arithmetic, bench.Arithmetic());
  return found;
}

}  // namespace consort::host
