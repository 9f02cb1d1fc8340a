// SPDX-License-Identifier: Apache-2.0
// tests/programs/random_order.cu: random calls against a model of CUDA's ordering rules.
//
//   random_order [--calls N] [--seed S] [--threads T]
//
// Streams of all kinds (legacy default, blocking, non-blocking) get random kernels, copies from and
// to pageable and pinned memory, fills, host functions, events, waits, memory that comes and goes.
// Each stream keeps a log
// on the device: its kernels append a number and how far another stream's log had come. The model
// knows which numbers each log must hold, in which order, and how far the others must have been by
// what streams, events and the host have waited for. So an effect that is lost, doubled or
// reordered shows. Host threads work with streams of their own; the first one has those that the
// legacy stream orders. Source of the rules: CUDA Programming Guide, "Asynchronous Concurrent
// Execution"; CUDA Runtime API, "API synchronization behavior", "Stream synchronization behavior".
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"

namespace {

constexpr int kStreams = 6;
constexpr int kEvents = 8;
constexpr uint32_t kLogEntries = 1024;  // of a stream, between two checks
constexpr int kCells = 256;             // of a stream: what copies and fills leave for kernels
constexpr size_t kLargeBytes = 3 << 20;

struct Entry {
  uint32_t value;
  uint32_t seen;  // entries of another stream's log
};

// All of one world's device memory.
struct Logs {
  uint32_t counts[kStreams];
  Entry entries[kStreams][kLogEntries];
  uint32_t cells[kStreams][kCells];
};

// Appends `value`, or what `source` holds.
__global__ void Append(Logs* logs, int own, int other, uint32_t value, const uint32_t* source) {
  const uint32_t at = logs->counts[own];
  const volatile uint32_t* others = &logs->counts[other];
  logs->entries[own][at].value = source != nullptr ? *source : value;
  logs->entries[own][at].seen = *others;
  __threadfence();
  logs->counts[own] = at + 1;
}

// How far each log has come, as somebody knows.
struct Clock {
  uint32_t at[kStreams] = {};
  void Join(const Clock& other) {
    for (int i = 0; i < kStreams; ++i) {
      if (other.at[i] > at[i]) at[i] = other.at[i];
    }
  }
};

struct Expected {
  uint32_t value;
  int other;
  uint32_t seen_least;
};

struct HostWrite {
  uint32_t* to;
  uint32_t value;
};

void CUDART_CB WriteCell(void* data) {
  const auto* write = static_cast<const HostWrite*>(data);
  *static_cast<volatile uint32_t*>(write->to) = write->value;
}

class World {
 public:
  // `legacy`: its streams 0 to 2 are the legacy default stream and two that it orders.
  World(uint32_t seed, bool legacy) : random_(seed), legacy_(legacy) {
    CUDA_OK(cudaMalloc(&device_, sizeof(Logs)));
    CUDA_OK(cudaMemset(device_, 0, sizeof(Logs)));
    CUDA_OK(cudaMalloc(&large_, kLargeBytes));
    CUDA_OK(cudaMallocHost(&pinned_, kPinnedWords * sizeof(uint32_t)));
    for (int i = 0; i < kStreams; ++i) {
      if (legacy && i == 0) continue;  // stays null
      CUDA_OK(cudaStreamCreateWithFlags(
          &streams_[i], legacy && i < 3 ? cudaStreamDefault : cudaStreamNonBlocking));
    }
    CUDA_OK(cudaStreamCreateWithFlags(&checker_, cudaStreamNonBlocking));
    for (cudaEvent_t& event : events_)
      CUDA_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CUDA_OK(cudaDeviceSynchronize());
  }

  ~World() {
    for (cudaEvent_t event : events_) CUDA_OK(cudaEventDestroy(event));
    for (cudaStream_t stream : streams_) {
      if (stream != nullptr) CUDA_OK(cudaStreamDestroy(stream));
    }
    CUDA_OK(cudaStreamDestroy(checker_));
    CUDA_OK(cudaFreeHost(pinned_));
    CUDA_OK(cudaFree(large_));
    CUDA_OK(cudaFree(device_));
  }

  void Run(uint64_t calls) {
    for (uint64_t call = 0; call < calls; ++call) {
      const int stream = Below(kStreams);
      switch (Below(1000)) {
        case 0 ... 499:
          AppendTo(stream, NextValue(), nullptr);
          break;
        case 500 ... 579:
          CopyIn(stream);
          break;
        case 580 ... 619:
          FillIn(stream);
          break;
        case 620 ... 639:
          HostFunction(stream);
          break;
        case 640 ... 659:
          CopyOut(stream);
          break;
        case 660 ... 779:
          Record(stream);
          break;
        case 780 ... 899:
          WaitFor(stream);
          break;
        case 900 ... 959:
          Query();
          break;
        case 960 ... 979:
          CUDA_OK(cudaStreamSynchronize(streams_[stream]));
          Learn(Submitted(stream), "cudaStreamSynchronize");
          break;
        case 980 ... 984:
          Allocate(stream);
          break;
        case 985 ... 995: {
          const int event = Below(kEvents);
          CUDA_OK(cudaEventSynchronize(events_[event]));
          Learn(recorded_[event], "cudaEventSynchronize");
          break;
        }
        case 996:
          LargeCopies(stream);
          break;
        case 997:
          CopyInNow(stream);
          break;
        default:
          CheckAll();
          break;
      }
      if (expected_[stream].size() >= kLogEntries - 1 || pinned_used_ >= kPinnedWords) CheckAll();
    }
    CheckAll();
  }

 private:
  static constexpr size_t kPinnedWords = 4096;

  int Below(int count) { return static_cast<int>(random_.Next() % static_cast<uint32_t>(count)); }
  uint32_t NextValue() { return ++value_; }
  bool Ordered(int stream) const { return legacy_ && stream < 3; }

  // What the stream's next kernel, copy, fill or host function comes after; to be asked before each
  // submission. Records and waits are no work for this: the rules of the legacy stream do not order
  // them (seen on driver 580).
  Clock& Before(int stream) {
    if (Ordered(stream)) {
      for (int other = 0; other < 3; ++other) {
        if ((stream == 0) != (other == 0)) clocks_[stream].Join(worked_[other]);
      }
    }
    return clocks_[stream];
  }
  void Worked(int stream) { worked_[stream] = clocks_[stream]; }

  // What has been done when everything that was submitted to the stream so far has. Waiting for
  // that and asking is no work, so what would come before the next work does not count.
  const Clock& Submitted(int stream) const { return clocks_[stream]; }

  void AppendTo(int stream, uint32_t value, const uint32_t* source) {
    const int other = (stream + 1 + Below(kStreams - 1)) % kStreams;
    Clock& before = Before(stream);
    expected_[stream].push_back({value, other, before.at[other]});
    Append<<<1, 1, 0, streams_[stream]>>>(device_, stream, other, value, source);
    CUDA_OK(cudaGetLastError());
    before.at[stream] = static_cast<uint32_t>(expected_[stream].size());
    Worked(stream);
  }

  uint32_t* NextCell(int stream) {
    cell_ = (cell_ + 1) % kCells;
    return &device_->cells[stream][cell_];
  }

  void CopyIn(int stream) {
    const uint32_t value = NextValue();
    uint32_t* cell = NextCell(stream);
    Before(stream);
    if (Below(2) == 0) {
      uint32_t pageable = value;
      CUDA_OK(
          cudaMemcpyAsync(cell, &pageable, sizeof value, cudaMemcpyHostToDevice, streams_[stream]));
      // It was read before the call returned.
      *static_cast<volatile uint32_t*>(&pageable) = 0;
    } else {
      uint32_t* word = NextPinned();
      *word = value;
      CUDA_OK(cudaMemcpyAsync(cell, word, sizeof value, cudaMemcpyHostToDevice, streams_[stream]));
    }
    AppendTo(stream, value, cell);
  }

  // Synchronous: done when the call returns, for whatever stream comes next. From pageable memory
  // CUDA promises no more than that the data was read, but programs take it for the same.
  // All but the first find nothing left to wait for in their own stream.
  void CopyInNow(int stream) {
    const uint32_t value = NextValue();
    uint32_t* cell = NextCell(stream);
    uint32_t pageable = 0;
    uint32_t* word = Below(2) == 0 ? &pageable : NextPinned();
    for (int later = Below(16); later >= 0; --later) {
      *static_cast<volatile uint32_t*>(word) = later == 0 ? value : 0;
      CUDA_OK(cudaMemcpy(cell, word, sizeof value, cudaMemcpyHostToDevice));
    }
    *static_cast<volatile uint32_t*>(word) = 0;
    Before(stream);
    AppendTo(stream, value, cell);
  }

  void FillIn(int stream) {
    const auto byte = static_cast<unsigned char>(Below(256));
    uint32_t* cell = NextCell(stream);
    Before(stream);
    CUDA_OK(cudaMemsetAsync(cell, byte, sizeof *cell, streams_[stream]));
    AppendTo(stream, byte * 0x01010101u, cell);
  }

  // Memory that is freed as soon as the last work that uses it is submitted, or done: whoever gets
  // it next, in any stream and thread, comes after that. The next one gets it at once.
  void Allocate(int stream) {
    constexpr size_t kSizes[] = {sizeof(uint32_t), 1000, 1 << 20, 3 << 20};
    const size_t bytes = kSizes[Below(4)];
    // An allocation ends nothing: what is waited for behind it is waited for.
    uint32_t* unused = nullptr;
    CUDA_OK(cudaMalloc(&unused, bytes));
    CUDA_OK(cudaStreamSynchronize(streams_[stream]));
    Learn(Submitted(stream), "cudaStreamSynchronize behind cudaMalloc");
    CUDA_OK(cudaFree(unused));
    UseOnce(stream, bytes);
    const int next = Below(kStreams);
    UseOnce(next, bytes);
    if (expected_[next].size() >= kLogEntries - 1) CheckAll();
  }

  void UseOnce(int stream, size_t bytes) {
    const auto byte = static_cast<unsigned char>(Below(256));
    uint32_t* block = nullptr;
    CUDA_OK(cudaMalloc(&block, bytes));
    Before(stream);
    CUDA_OK(cudaMemsetAsync(block, byte, sizeof *block, streams_[stream]));
    AppendTo(stream, byte * 0x01010101u, block);
    if (Below(2) == 0) {
      CUDA_OK(cudaDeviceSynchronize());
      for (int other = 0; other < kStreams; ++other)
        Learn(Submitted(other), "cudaDeviceSynchronize");
    }
    CUDA_OK(cudaFree(block));
  }

  // A copy behind it reads what it writes.
  void HostFunction(int stream) {
    uint32_t* cell = NextCell(stream);
    writes_.push_back(std::make_unique<HostWrite>(HostWrite{NextPinned(), NextValue()}));
    HostWrite* write = writes_.back().get();
    Before(stream);
    CUDA_OK(cudaLaunchHostFunc(streams_[stream], WriteCell, write));
    CUDA_OK(
        cudaMemcpyAsync(cell, write->to, sizeof *cell, cudaMemcpyHostToDevice, streams_[stream]));
    AppendTo(stream, write->value, cell);
  }

  // To pageable memory: there when the call returns, and the stream's earlier work done.
  void CopyOut(int stream) {
    const uint32_t value = NextValue();
    uint32_t* cell = NextCell(stream);
    uint32_t back = 0;
    Before(stream);
    CUDA_OK(cudaMemcpyAsync(cell, &value, sizeof value, cudaMemcpyHostToDevice, streams_[stream]));
    CUDA_OK(cudaMemcpyAsync(&back, cell, sizeof back, cudaMemcpyDeviceToHost, streams_[stream]));
    Worked(stream);
    EXPECT(back == value, "stream %d: %u came back, expected %u", stream, back, value);
    Learn(Submitted(stream), "a copy to pageable memory");
  }

  void LargeCopies(int stream) {
    std::vector<uint32_t> data(kLargeBytes / sizeof(uint32_t));
    for (uint32_t& word : data) word = NextValue();
    std::vector<uint32_t> back(data.size());
    Before(stream);
    // One stream at a time uses it: the last one has waited for its copy back.
    CUDA_OK(cudaMemcpyAsync(large_, data.data(), kLargeBytes, cudaMemcpyHostToDevice,
                            streams_[stream]));
    CUDA_OK(cudaMemcpyAsync(back.data(), large_, kLargeBytes, cudaMemcpyDeviceToHost,
                            streams_[stream]));
    Worked(stream);
    EXPECT(back == data, "stream %d: a large copy is wrong", stream);
    Learn(Submitted(stream), "a large copy to pageable memory");
  }

  void Record(int stream) {
    const int event = Below(kEvents);
    CUDA_OK(cudaEventRecord(events_[event], streams_[stream]));
    recorded_[event] = Submitted(stream);
  }

  void WaitFor(int stream) {
    const int event = Below(kEvents);
    CUDA_OK(cudaStreamWaitEvent(streams_[stream], events_[event], 0));
    clocks_[stream].Join(recorded_[event]);
  }

  void Query() {
    const bool of_event = Below(3) != 0;
    const int which = Below(of_event ? kEvents : kStreams);
    const cudaError_t state =
        of_event ? cudaEventQuery(events_[which]) : cudaStreamQuery(streams_[which]);
    if (state == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return;
    }
    CUDA_OK(state);
    if (of_event) {
      Learn(recorded_[which], "cudaEventQuery");
    } else {
      Learn(Submitted(which), "cudaStreamQuery");
    }
  }

  uint32_t* NextPinned() { return &pinned_[pinned_used_++]; }

  // The host has waited for that, or asked, by that call.
  void Learn(const Clock& done, const char* call) {
    for (int i = 0; i < kStreams; ++i) {
      if (done.at[i] > host_.at[i]) learned_by_[i] = call;
    }
    host_.Join(done);
    CheckReached();
  }

  // The logs are at least as long as the host knows. Asks through a stream that waits for nobody.
  void CheckReached() {
    if (++checks_ % 4 != 0) return;
    uint32_t counts[kStreams];
    ReadCounts(counts);
    for (int i = 0; i < kStreams; ++i) {
      if (counts[i] >= host_.at[i]) continue;
      // Late, or lost?
      uint32_t later[kStreams];
      CUDA_OK(cudaDeviceSynchronize());
      ReadCounts(later);
      EXPECT(counts[i] >= host_.at[i],
             "the log of stream %d has %u entries, the host waited for %u, by %s; after a wait for "
             "the device it has %u of %zu",
             i, counts[i], host_.at[i], learned_by_[i], later[i], expected_[i].size());
    }
  }

  void ReadCounts(uint32_t (&counts)[kStreams]) {
    CUDA_OK(
        cudaMemcpyAsync(counts, device_->counts, sizeof counts, cudaMemcpyDeviceToHost, checker_));
  }

  // Everything is done, and the logs are as the model says. Begins new ones.
  void CheckAll() {
    for (cudaStream_t stream : streams_) CUDA_OK(cudaStreamSynchronize(stream));
    auto logs = std::make_unique<Logs>();
    CUDA_OK(cudaMemcpyAsync(logs.get(), device_, sizeof(Logs), cudaMemcpyDeviceToHost, checker_));
    for (int stream = 0; stream < kStreams; ++stream) {
      const auto& expected = expected_[stream];
      EXPECT(logs->counts[stream] == expected.size(), "stream %d: %u entries, expected %zu", stream,
             logs->counts[stream], expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        const Entry& entry = logs->entries[stream][i];
        EXPECT(entry.value == expected[i].value, "stream %d, entry %zu: %u, expected %u", stream, i,
               entry.value, expected[i].value);
        EXPECT(entry.seen >= expected[i].seen_least &&
                   entry.seen <= expected_[expected[i].other].size(),
               "stream %d, entry %zu: stream %d had come to %u, expected %u or more", stream, i,
               expected[i].other, entry.seen, expected[i].seen_least);
      }
    }
    for (auto& expected : expected_) expected.clear();
    for (Clock& clock : clocks_) clock = Clock();
    for (Clock& clock : worked_) clock = Clock();
    for (Clock& clock : recorded_) clock = Clock();
    host_ = Clock();
    writes_.clear();
    pinned_used_ = 0;
    CUDA_OK(cudaMemsetAsync(device_, 0, sizeof logs->counts, checker_));
    CUDA_OK(cudaStreamSynchronize(checker_));
  }

  programs::Random random_;
  const bool legacy_;
  Logs* device_ = nullptr;
  uint32_t* large_ = nullptr;
  uint32_t* pinned_ = nullptr;
  size_t pinned_used_ = 0;
  cudaStream_t streams_[kStreams] = {};
  cudaStream_t checker_ = nullptr;
  cudaEvent_t events_[kEvents] = {};
  std::vector<Expected> expected_[kStreams];
  std::vector<std::unique_ptr<HostWrite>> writes_;
  Clock clocks_[kStreams];   // what each stream's next work comes after
  Clock worked_[kStreams];   // the same when it last got work
  Clock recorded_[kEvents];  // what each event's latest record comes after
  Clock host_;
  const char* learned_by_[kStreams] = {};  // the latest of what that holds
  uint32_t value_ = 0;
  int cell_ = 0;
  uint32_t checks_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  uint64_t calls = 20'000;
  uint32_t seed = 1;
  int threads = 2;
  for (int i = 1; i + 1 < argc; i += 2) {
    const unsigned long long value = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--calls") == 0) calls = value;
    if (std::strcmp(argv[i], "--seed") == 0) seed = static_cast<uint32_t>(value);
    if (std::strcmp(argv[i], "--threads") == 0) threads = static_cast<int>(value);
  }
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) {
    others.emplace_back([=] {
      World(seed + static_cast<uint32_t>(i), false).Run(calls / static_cast<uint64_t>(threads));
    });
  }
  World(seed, true).Run(calls / static_cast<uint64_t>(threads));
  for (std::thread& other : others) other.join();
  std::printf("random_order: %llu calls of %d threads in order, seed %u\n",
              static_cast<unsigned long long>(calls), threads, seed);
  return programs::Pass();
}
