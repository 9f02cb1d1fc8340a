// SPDX-License-Identifier: Apache-2.0
// Chains of launches, over a CPU driver whose calls are counted and can be made to fail: results
// are those of launches one by one, and so are errors.
#include "host/session/launch_chain.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/log.h"
#include "host/session/session_test_support.h"

namespace consort::host {
namespace {

constexpr uint32_t kWords = 256;

// words = words * factor + term, with other arguments than `add`.
constexpr char kScalePtx[] = R"(
.visible .entry scale(.param .u64 words, .param .u32 count, .param .u32 factor, .param .u32 term)
{
  .reg .pred %p;
  .reg .b32 %r<9>;
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [words];
  ld.param.u32 %r1, [count];
  ld.param.u32 %r2, [factor];
  ld.param.u32 %r3, [term];
  mov.u32 %r4, %ctaid.x;
  mov.u32 %r5, %ntid.x;
  mov.u32 %r6, %tid.x;
  mad.lo.s32 %r7, %r4, %r5, %r6;
  setp.ge.u32 %p, %r7, %r1;
  @%p bra done;
  cvta.to.global.u64 %rd2, %rd1;
  mul.wide.u32 %rd3, %r7, 4;
  add.s64 %rd4, %rd2, %rd3;
  ld.global.u32 %r8, [%rd4];
  mad.lo.u32 %r8, %r8, %r2, %r3;
  st.global.u32 [%rd4], %r8;
done:
  ret;
}
)";

struct AddArguments {
  uint64_t words;
  uint32_t count;
  uint32_t value;
};
struct ScaleArguments {
  uint64_t words;
  uint32_t count;
  uint32_t factor;
  uint32_t term;
  uint32_t padding = 0;
};

// What the driver below counts and is told. Tests run one after the other.
struct Calls {
  std::atomic<bool> held{false};  // launches one by one wait while it is set
  std::atomic<uint32_t> launches{0};
  std::atomic<uint32_t> chains{0};
  std::atomic<uint32_t> changed_nodes{0};
  std::atomic<uint32_t> graphs{0};
  std::atomic<bool> refuse_nodes{false};   // changes of them
  std::atomic<bool> refuse_chains{false};  // their launches
  std::atomic<bool> busy{false};           // no event has been reached
  std::set<CUgraphExec> running;           // launched while busy; the session's thread only
  std::atomic<uint32_t> relaunched{0};     // of them
};
Calls calls;

CUresult CUDAAPI Launch(const CUlaunchConfig* config, CUfunction kernel, void** arguments,
                        void** extra) {
  while (calls.held) std::this_thread::yield();
  ++calls.launches;
  return CpuDriver().table.cuLaunchKernelEx(config, kernel, arguments, extra);
}
CUresult CUDAAPI LaunchGraph(CUgraphExec exec, CUstream stream) {
  if (calls.refuse_chains) return CUDA_ERROR_NOT_SUPPORTED;
  ++calls.chains;
  if (calls.busy && !calls.running.insert(exec).second) ++calls.relaunched;
  return CpuDriver().table.cuGraphLaunch(exec, stream);
}
CUresult CUDAAPI ChangeNode(CUgraphExec exec, CUgraphNode node,
                            const CUDA_KERNEL_NODE_PARAMS* params) {
  if (calls.refuse_nodes) return CUDA_ERROR_NOT_SUPPORTED;
  ++calls.changed_nodes;
  return CpuDriver().table.cuGraphExecKernelNodeSetParams_v2(exec, node, params);
}
CUresult CUDAAPI Instantiate(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  ++calls.graphs;
  return CpuDriver().table.cuGraphInstantiateWithFlags(exec, graph, flags);
}
CUresult CUDAAPI QueryEvent(CUevent event) {
  return calls.busy ? CUDA_ERROR_NOT_READY : CpuDriver().table.cuEventQuery(event);
}

// Kept.
const WorkerDevice& Device() {
  static const WorkerDevice* const device = [] {
    device::LoadedDriver driver = CpuDriver();
    driver.table.cuLaunchKernelEx = Launch;
    driver.table.cuGraphLaunch = LaunchGraph;
    driver.table.cuGraphExecKernelNodeSetParams_v2 = ChangeNode;
    driver.table.cuGraphInstantiateWithFlags = Instantiate;
    driver.table.cuEventQuery = QueryEvent;
    auto opened = WorkerDevice::Open(driver, 0);
    CHECK(opened.ok()) << opened.status();
    return opened->release();
  }();
  return *device;
}

class LaunchChainTest : public ::testing::Test {
 protected:
  LaunchChainTest() {
    calls.held = calls.refuse_nodes = calls.refuse_chains = calls.busy = false;
    calls.running.clear();
    calls.relaunched = 0;
    calls.launches = calls.chains = calls.changed_nodes = calls.graphs = 0;
    PeerOptions options;
    options.device = &Device();
    options.chains = true;
    peer_ = std::make_unique<SessionPeer>(options);
    LoadLibrary(peer_.get(), kScalePtx, {"scale"});
    wire::MemAllocRequest allocate;
    allocate.bytes = kWords * sizeof(uint32_t);
    wire::MemAllocReply allocated;
    EXPECT_EQ(peer_->Ask(allocate, &allocated), CUDA_SUCCESS);
    words_ = allocated.address;
    wire::cuMemsetD32AsyncRequest fill;
    fill.dstDevice = words_;
    fill.N = kWords;
    fill.hStream = kLegacy;
    peer_->Post(fill);
    // The first launch of a kernel is measured, and goes alone.
    Add(1);
    Scale(3, 1);
    EXPECT_EQ(peer_->Synchronize(), CUDA_SUCCESS);
  }
  ~LaunchChainTest() override { calls.held = false; }

  void Post(uint32_t kernel, std::span<const std::byte> arguments, uint64_t stream,
            uint32_t threads = 128) {
    wire::LaunchRequest launch;
    launch.kernel = GuestId(kKernelKind, kernel);
    launch.stream = stream;
    launch.grid_x = kWords / 128;
    launch.grid_y = launch.grid_z = launch.block_y = launch.block_z = 1;
    launch.block_x = threads;
    launch.params = arguments;
    peer_->Post(launch);
  }
  void Add(uint32_t value, uint64_t stream = kLegacy) {
    const AddArguments arguments = {words_, kWords, value};
    Post(1, std::as_bytes(std::span(&arguments, 1)), stream);
    expected_ += value;
  }
  void Scale(uint32_t factor, uint32_t term, uint64_t stream = kLegacy) {
    const ScaleArguments arguments = {words_, kWords, factor, term};
    Post(2, std::as_bytes(std::span(&arguments, 1)), stream);
    expected_ = expected_ * factor + term;
  }
  // So many launches of both kernels, each with its own arguments, which lie in the ring before the
  // first is let go.
  void PostMany(uint32_t count, uint64_t stream = kLegacy) {
    calls.held = true;
    for (uint32_t i = 0; i < count; ++i) {
      if (random_() % 3 == 0) {
        Scale(static_cast<uint32_t>(random_()) | 1, i, stream);
      } else {
        Add(static_cast<uint32_t>(random_()), stream);
      }
    }
    calls.held = false;
  }
  void ExpectWords() {
    wire::CopyToHostRequest copy;
    copy.stream = kLegacy;
    copy.src = words_;
    copy.width = copy.src_pitch = kWords * sizeof(uint32_t);
    copy.rows = 1;
    copy.transfer = ++transfer_;
    peer_->Post(copy);
    ASSERT_EQ(peer_->Synchronize(), CUDA_SUCCESS);
    const std::vector<std::byte> bytes = peer_->Transfer(transfer_);
    ASSERT_EQ(bytes.size(), kWords * sizeof(uint32_t));
    std::vector<uint32_t> words(kWords);
    std::memcpy(words.data(), bytes.data(), bytes.size());
    EXPECT_EQ(words, std::vector<uint32_t>(kWords, expected_));
  }

  std::unique_ptr<SessionPeer> peer_;
  uint64_t words_ = 0;
  uint32_t expected_ = 0;
  uint64_t transfer_ = 0;
  std::mt19937_64 random_{1};
};

TEST_F(LaunchChainTest, ManyThatWaitGoAsOneAndInOrder) {
  PostMany(600);
  ExpectWords();
  EXPECT_GE(calls.chains, 3u);
  EXPECT_LE(calls.launches, 602 - 3 * LaunchChains::kLengthLeast);
  SessionEnded ended;
  peer_->Close();
  peer_->AwaitEnd(&ended);
  EXPECT_EQ(ended.kernel_launches, 602u);
}

TEST_F(LaunchChainTest, FewGoOneByOne) {
  for (int round = 0; round < 20; ++round) {
    PostMany(LaunchChains::kLengthLeast - 1);
    ASSERT_EQ(peer_->Synchronize(), CUDA_SUCCESS);
  }
  ExpectWords();
  EXPECT_EQ(calls.chains, 0u);
  EXPECT_EQ(calls.graphs, 0u);
}

TEST_F(LaunchChainTest, WhatANodeHasIsNotSetAgain) {
  // Of the same kind throughout: wherever chains begin, nodes stay as they are.
  const auto same = [this](uint32_t count) {
    calls.held = true;
    for (uint32_t i = 0; i < count; ++i) Add(5);
    calls.held = false;
  };
  same(1000);
  ExpectWords();
  EXPECT_GE(calls.chains, 3u);
  EXPECT_EQ(calls.changed_nodes, 0u);
  PostMany(600);
  ExpectWords();
  EXPECT_GE(calls.changed_nodes, 10u);
}

TEST_F(LaunchChainTest, WhatIsRepeatedFindsItsGraphsWhereverItIsCut) {
  // Two kernels in turns, an odd number each time: what began with the one begins with the other.
  constexpr uint32_t kLaunches = 97;
  uint32_t next = 0;
  const auto rounds = [&](int count) {
    for (int round = 0; round < count; ++round) {
      calls.held = true;
      for (uint32_t i = 0; i < kLaunches; ++i) {
        if (++next % 2 == 0) {
          Add(5);
        } else {
          Scale(3, 1);
        }
      }
      calls.held = false;
      ASSERT_EQ(peer_->Synchronize(), CUDA_SUCCESS);
    }
  };
  rounds(60);
  const uint32_t before = calls.changed_nodes;
  const uint32_t chains = calls.chains;
  rounds(20);
  ExpectWords();
  EXPECT_GE(calls.chains, chains + 20);
  // Each node of each chain, if any graph would do.
  EXPECT_LE(calls.changed_nodes - before, 20 * kLaunches / 4);
}

TEST_F(LaunchChainTest, StreamsKeepTheirOrder) {
  // Blocking streams and the default stream, each for some launches at a time.
  const uint64_t streams[] = {kLegacy, 16, kLegacy, 17};
  for (const uint64_t stream : {16, 17}) {
    wire::StreamCreateRequest create;
    create.stream = stream;
    peer_->Post(create);
  }
  for (int round = 0; round < 12; ++round) PostMany(100, streams[round % 4]);
  ExpectWords();
  EXPECT_GE(calls.chains, 8u);
}

TEST_F(LaunchChainTest, NoGraphIsUsedWhileItRuns) {
  calls.busy = true;
  PostMany(1500);
  calls.busy = false;
  ExpectWords();
  EXPECT_GE(calls.chains, 3u);
  EXPECT_EQ(calls.relaunched, 0u);
}

TEST_F(LaunchChainTest, AnErrorIsThatOfItsLaunchAlone) {
  PostMany(400);
  calls.held = true;
  for (uint32_t i = 0; i < 100; ++i) {
    if (i != 70) {
      Add(i);
      continue;
    }
    const AddArguments arguments = {words_, kWords, 1};
    Post(1, std::as_bytes(std::span(&arguments, 1)), kLegacy, /*threads=*/4096);
  }
  calls.held = false;
  EXPECT_EQ(peer_->Synchronize(), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(peer_->Synchronize(), CUDA_SUCCESS);
  PostMany(400);
  ExpectWords();
}

TEST_F(LaunchChainTest, WhatTheDriverRefusesGoesOneByOne) {
  PostMany(400);
  ExpectWords();
  EXPECT_GE(calls.chains, 3u);
  calls.refuse_nodes = true;
  PostMany(600);
  ExpectWords();
  calls.refuse_nodes = false;
  calls.refuse_chains = true;
  PostMany(600);
  ExpectWords();
}

TEST_F(LaunchChainTest, ARefusedChainWasNotLaunched) {
  calls.refuse_chains = true;
  PostMany(600);
  ExpectWords();
  EXPECT_EQ(calls.graphs, 1u) << "it was tried again";
}

TEST_F(LaunchChainTest, KernelsOfAnUnloadedLibraryAreForgotten) {
  PostMany(600);
  ExpectWords();
  const uint32_t graphs = calls.graphs;
  EXPECT_GE(graphs, 1u);
  wire::LibraryUnloadRequest unload;
  unload.library = GuestId(kLibraryKind, 1);
  peer_->Post(unload);
  LoadLibrary(peer_.get(), kScalePtx, {"scale"});
  Add(1);
  Scale(3, 1);
  ASSERT_EQ(peer_->Synchronize(), CUDA_SUCCESS);
  PostMany(600);
  ExpectWords();
  EXPECT_GT(calls.graphs, graphs);
}

}  // namespace
}  // namespace consort::host
