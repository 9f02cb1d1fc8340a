// SPDX-License-Identifier: Apache-2.0
#include "host/session/launch_test_support.h"

#include <cstring>
#include <thread>
#include <vector>

#include "base/log.h"

namespace consort::host {

DriverCalls calls;

namespace {

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

CUresult CUDAAPI Launch(const CUlaunchConfig* config, CUfunction kernel, void** arguments,
                        void** extra) {
  while (calls.held) std::this_thread::yield();
  ++calls.launches;
  return CpuDriver().table.cuLaunchKernelEx(config, kernel, arguments, extra);
}
CUresult CUDAAPI LaunchGraph(CUgraphExec exec, CUstream stream) {
  if (calls.refuse_graphs) return CUDA_ERROR_NOT_SUPPORTED;
  ++calls.graph_launches;
  if (calls.busy && !calls.running.insert(exec).second) ++calls.relaunched;
  if (calls.streams.try_emplace(exec, stream).first->second != stream) ++calls.elsewhere;
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
CUresult CUDAAPI DestroyExec(CUgraphExec exec) {
  ++calls.graphs_gone;
  calls.streams.erase(exec);
  return CpuDriver().table.cuGraphExecDestroy(exec);
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
    driver.table.cuGraphExecDestroy = DestroyExec;
    driver.table.cuEventQuery = QueryEvent;
    return OpenDevice(driver).release();
  }();
  return *device;
}

}  // namespace

LaunchTest::LaunchTest(bool chains, bool repeats) {
  calls.held = calls.refuse_nodes = calls.refuse_graphs = calls.busy = false;
  calls.running.clear();
  calls.streams.clear();
  calls.relaunched = calls.elsewhere = 0;
  calls.launches = calls.graph_launches = calls.changed_nodes = 0;
  calls.graphs = calls.graphs_gone = 0;
  PeerOptions options;
  options.device = &Device();
  options.chains = chains;
  options.repeats = repeats;
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
  LaunchFirst();
}

void LaunchTest::LaunchFirst() {
  // The first launch of a kernel is measured, and goes as any.
  Add(1);
  Scale(3, 1);
  EXPECT_EQ(peer_->Synchronize(), CUDA_SUCCESS);
}

void LaunchTest::SetSharedBytesOfAdd(int bytes) {
  wire::FunctionSetAttributeRequest set;
  set.kernel = GuestId(kKernelKind, 1);
  set.attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  set.value = bytes;
  wire::FunctionSetAttributeReply reply;
  EXPECT_EQ(peer_->Ask(set, &reply), CUDA_SUCCESS);
}

void LaunchTest::LoadAnew() {
  wire::LibraryUnloadRequest unload;
  unload.library = GuestId(kLibraryKind, 1);
  peer_->Post(unload);
  LoadLibrary(peer_.get(), kScalePtx, {"scale"});
  LaunchFirst();
}

void LaunchTest::Post(uint32_t kernel, std::span<const std::byte> arguments, uint64_t stream,
                      uint32_t threads) {
  wire::LaunchRequest launch;
  launch.kernel = GuestId(kKernelKind, kernel);
  launch.stream = stream;
  launch.grid_x = kWords / kThreads;
  launch.grid_y = launch.grid_z = launch.block_y = launch.block_z = 1;
  launch.block_x = threads;
  launch.params = arguments;
  peer_->Post(launch);
}

void LaunchTest::Add(uint32_t value, uint64_t stream, uint32_t threads) {
  const AddArguments arguments = {words_, kWords, value};
  Post(1, std::as_bytes(std::span(&arguments, 1)), stream, threads);
  expected_ += value;
}

void LaunchTest::Scale(uint32_t factor, uint32_t term, uint64_t stream) {
  const ScaleArguments arguments = {words_, kWords, factor, term};
  Post(2, std::as_bytes(std::span(&arguments, 1)), stream, kThreads);
  expected_ = expected_ * factor + term;
}

void LaunchTest::PostImpossible() {
  const AddArguments arguments = {words_, kWords, 1};
  Post(1, std::as_bytes(std::span(&arguments, 1)), kLegacy, /*threads=*/4096);
}

void LaunchTest::PostMany(uint32_t count, uint64_t stream) {
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

void LaunchTest::CreateStream(uint64_t stream) {
  wire::StreamCreateRequest create;
  create.stream = stream;
  peer_->Post(create);
}

void LaunchTest::ExpectWords() {
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

}  // namespace consort::host
