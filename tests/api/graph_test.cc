// SPDX-License-Identifier: Apache-2.0
// Graphs, made of nodes and by stream capture. Source: CUDA Driver API reference 13.0, "Graph
// Management", "Stream Management"; CUDA C++ Programming Guide, "CUDA Graphs".
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using GraphTest = ContextTest;
using CaptureTest = ContextTest;

class Graph {
 public:
  Graph() { Require(Drv().cuGraphCreate(&graph_, 0), "cuGraphCreate"); }
  explicit Graph(CUgraph graph) : graph_(graph) {}
  ~Graph() { Drv().cuGraphDestroy(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  operator CUgraph() const { return graph_; }  // NOLINT

 private:
  CUgraph graph_ = nullptr;
};

class Exec {
 public:
  explicit Exec(CUgraph graph, unsigned long long flags = 0) {
    Require(Drv().cuGraphInstantiateWithFlags(&exec_, graph, flags), "cuGraphInstantiateWithFlags");
  }
  ~Exec() { Drv().cuGraphExecDestroy(exec_); }
  Exec(const Exec&) = delete;
  Exec& operator=(const Exec&) = delete;
  operator CUgraphExec() const { return exec_; }  // NOLINT

 private:
  CUgraphExec exec_ = nullptr;
};

// One thread of `function` with two parameters.
struct KernelParams {
  KernelParams(CUfunction function, CUdeviceptr address, unsigned value)
      : address_(address), value_(value) {
    params.func = function;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = pointers_;
  }
  CUDA_KERNEL_NODE_PARAMS_v2 params = {};

 private:
  CUdeviceptr address_;
  unsigned value_;
  void* pointers_[2] = {&address_, &value_};
};

CUDA_MEMCPY3D LinearCopy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.dstDevice = to;
  copy.WidthInBytes = bytes;
  copy.Height = copy.Depth = 1;
  return copy;
}

size_t CountNodes(CUgraph graph) {
  size_t count = 0;
  Require(Drv().cuGraphGetNodes(graph, nullptr, &count), "cuGraphGetNodes");
  return count;
}

CUstreamCaptureStatus Status(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  Require(Drv().cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
  return status;
}

// ---- Stream capture

API_TEST(CaptureTest, RecordsAndReplays) {
  Module module(kBasicPtx);
  CUfunction add_to = module.Function("add_to");
  Stream stream;
  DeviceBuffer word(4);
  word.Write<unsigned>({5});
  ASSERT_OK(Launch(add_to, 1, 1, stream, word.get(), 0u));  // loaded before the capture
  ASSERT_OK(Drv().cuStreamSynchronize(stream));

  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(Status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ASSERT_OK(Launch(add_to, 1, 1, stream, word.get(), 10u));
  ASSERT_OK(Launch(add_to, 1, 1, stream, word.get(), 100u));
  CUgraph made = nullptr;
  ASSERT_OK(Drv().cuStreamEndCapture(stream, &made));
  Graph graph(made);
  EXPECT_EQ(Status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
  // Nothing has run.
  EXPECT_EQ(word.ReadWord(), 5u);
  EXPECT_EQ(CountNodes(graph), 2u);

  Exec exec(graph);
  for (int i = 0; i < 3; ++i) ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(word.ReadWord(), 335u);
}

API_TEST(CaptureTest, FillsAndCopiesAreNodesInOrder) {
  Stream stream;
  DeviceBuffer from(256);
  DeviceBuffer to(256);
  from.Fill(0);
  to.Fill(0);
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_OK(Drv().cuMemsetD32Async(from, 7, 64, stream));
  ASSERT_OK(Drv().cuMemcpyDtoDAsync_v2(to, from, 256, stream));
  ASSERT_OK(Drv().cuMemsetD8Async(from, 1, 256, stream));
  CUgraph made = nullptr;
  ASSERT_OK(Drv().cuStreamEndCapture(stream, &made));
  Graph graph(made);
  CUgraphNode nodes[3] = {};
  size_t count = 3;
  ASSERT_OK(Drv().cuGraphGetNodes(graph, nodes, &count));
  ASSERT_EQ(count, 3u);
  CUgraphNodeType type;
  ASSERT_OK(Drv().cuGraphNodeGetType(nodes[0], &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_MEMSET);
  ASSERT_OK(Drv().cuGraphNodeGetType(nodes[1], &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_MEMCPY);
  Exec exec(graph);
  ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(to.Read<unsigned>(64), std::vector<unsigned>(64, 7));
  EXPECT_EQ(from.ReadWord(), 0x01010101u);
}

API_TEST(CaptureTest, PinnedMemoryIsReadWhenTheGraphRuns) {
  Stream stream;
  DeviceBuffer word(4);
  PinnedBuffer in(4);
  PinnedBuffer out(4);
  *in.as<unsigned>() = 1;
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_OK(Drv().cuMemcpyHtoDAsync_v2(word, in.get(), 4, stream));
  ASSERT_OK(Drv().cuMemcpyDtoHAsync_v2(out.get(), word, 4, stream));
  CUgraph made = nullptr;
  ASSERT_OK(Drv().cuStreamEndCapture(stream, &made));
  Graph graph(made);
  Exec exec(graph);
  for (unsigned value : {21u, 42u}) {
    *in.as<unsigned>() = value;
    ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
    ASSERT_OK(Drv().cuStreamSynchronize(stream));
    EXPECT_EQ(*out.as<unsigned>(), value);
  }
}

API_TEST(CaptureTest, HostFunctionsRunWithEachLaunch) {
  Stream stream;
  int runs = 0;
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_OK(Drv().cuLaunchHostFunc(
      stream, [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &runs));
  CUgraph made = nullptr;
  ASSERT_OK(Drv().cuStreamEndCapture(stream, &made));
  Graph graph(made);
  EXPECT_EQ(runs, 0);
  Exec exec(graph);
  ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
  ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(runs, 2);
}

API_TEST(CaptureTest, SpreadsToStreamsThatWaitForItsEvents) {
  Stream origin;
  Stream other;
  Event fork;
  Event join;
  DeviceBuffer first(4);
  DeviceBuffer second(4);
  first.Fill(0);
  second.Fill(0);
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_OK(Drv().cuMemsetD32Async(first, 3, 1, origin));
  ASSERT_OK(Drv().cuEventRecord(fork, origin));
  ASSERT_OK(Drv().cuStreamWaitEvent(other, fork, 0));
  EXPECT_EQ(Status(other), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ASSERT_OK(Drv().cuMemcpyDtoDAsync_v2(second, first, 4, other));
  ASSERT_OK(Drv().cuEventRecord(join, other));
  ASSERT_OK(Drv().cuStreamWaitEvent(origin, join, 0));
  ASSERT_OK(Drv().cuMemsetD32Async(first, 4, 1, origin));
  CUgraph made = nullptr;
  ASSERT_OK(Drv().cuStreamEndCapture(origin, &made));
  Graph graph(made);
  EXPECT_EQ(CountNodes(graph), 3u);
  EXPECT_EQ(Status(other), CU_STREAM_CAPTURE_STATUS_NONE);
  Exec exec(graph);
  ASSERT_OK(Drv().cuGraphLaunch(exec, origin));
  ASSERT_OK(Drv().cuStreamSynchronize(origin));
  EXPECT_EQ(second.ReadWord(), 3u);
  EXPECT_EQ(first.ReadWord(), 4u);
}

API_TEST(CaptureTest, UnjoinedWorkIsAnError) {
  Stream origin;
  Stream other;
  Event fork;
  DeviceBuffer word(4);
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_OK(Drv().cuMemsetD32Async(word, 3, 1, origin));
  ASSERT_OK(Drv().cuEventRecord(fork, origin));
  ASSERT_OK(Drv().cuStreamWaitEvent(other, fork, 0));
  ASSERT_OK(Drv().cuMemsetD32Async(word, 4, 1, other));
  CUgraph made = nullptr;
  EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, Drv().cuStreamEndCapture(origin, &made));
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(Status(origin), CU_STREAM_CAPTURE_STATUS_NONE);
}

// A stream that joined may go before the capture ends; so may one that did not, whose work is
// missed.
API_TEST(CaptureTest, OutlivesAStreamThatItReached) {
  for (const bool joins : {true, false}) {
    Stream origin;
    Event fork, join;
    DeviceBuffer word(4);
    word.Fill(0);
    CUstream other = nullptr;
    ASSERT_OK(Drv().cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    ASSERT_OK(Drv().cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ASSERT_OK(Drv().cuEventRecord(fork, origin));
    ASSERT_OK(Drv().cuStreamWaitEvent(other, fork, 0));
    ASSERT_OK(Drv().cuMemsetD32Async(word, 4, 1, other));
    if (joins) {
      ASSERT_OK(Drv().cuEventRecord(join, other));
      ASSERT_OK(Drv().cuStreamWaitEvent(origin, join, 0));
    }
    ASSERT_OK(Drv().cuStreamDestroy_v2(other));
    CUgraph made = nullptr;
    if (!joins) {
      EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, Drv().cuStreamEndCapture(origin, &made));
      continue;
    }
    ASSERT_OK(Drv().cuStreamEndCapture(origin, &made));
    Graph graph(made);
    Exec exec(graph);
    ASSERT_OK(Drv().cuGraphLaunch(exec, origin));
    ASSERT_OK(Drv().cuStreamSynchronize(origin));
    EXPECT_EQ(word.ReadWord(), 4u);
  }
}

API_TEST(CaptureTest, WaitingForTheStreamInvalidatesIt) {
  Stream stream;
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(Status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CUgraph made = reinterpret_cast<CUgraph>(1);
  EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, Drv().cuStreamEndCapture(stream, &made));
  EXPECT_EQ(made, nullptr);
  // The stream is an ordinary one again.
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
}

API_TEST(CaptureTest, AnEventFromOutsideInvalidatesIt) {
  Stream stream;
  Stream outside;
  Event event;
  ASSERT_OK(Drv().cuEventRecord(event, outside));
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, Drv().cuStreamWaitEvent(stream, event, 0));
  EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, Drv().cuStreamEndCapture(stream, nullptr));
}

API_TEST(CaptureTest, AnEventRecordedInItCannotBeWaitedForByTheHost) {
  Stream stream;
  Event event;
  DeviceBuffer word(4);
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASSERT_OK(Drv().cuMemsetD32Async(word, 1, 1, stream));
  ASSERT_OK(Drv().cuEventRecord(event, stream));
  EXPECT_RESULT(CUDA_ERROR_CAPTURED_EVENT, Drv().cuEventSynchronize(event));
  Drv().cuStreamEndCapture(stream, nullptr);
  // Recorded outside, it is an ordinary event again.
  ASSERT_OK(Drv().cuEventRecord(event, stream));
  EXPECT_OK(Drv().cuEventSynchronize(event));
}

API_TEST(CaptureTest, TheLegacyStreamCannotBeCaptured) {
  EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                Drv().cuStreamBeginCapture_v2(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_RELAXED));
}

API_TEST(CaptureTest, TheLegacyStreamMustNotBeUsedBesideACapturedBlockingStream) {
  Stream stream(CU_STREAM_DEFAULT);
  DeviceBuffer word(4);
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                Drv().cuMemsetD32Async(word, 1, 1, CU_STREAM_LEGACY));
  EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, Drv().cuStreamEndCapture(stream, nullptr));
}

API_TEST(CaptureTest, ACapturedNonBlockingStreamLeavesTheLegacyStreamAlone) {
  Stream stream;
  DeviceBuffer word(4);
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_OK(Drv().cuMemsetD32Async(word, 9, 1, CU_STREAM_LEGACY));
  CUgraph made = nullptr;
  EXPECT_OK(Drv().cuStreamEndCapture(stream, &made));
  Graph graph(made);
  EXPECT_EQ(CountNodes(graph), 0u);
  EXPECT_EQ(word.ReadWord(), 9u);
}

API_TEST(CaptureTest, AllocatingIsRefusedInGlobalModeAndAllowedInRelaxedMode) {
  for (CUstreamCaptureMode mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    Stream stream;
    ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, mode));
    CUdeviceptr memory = 0;
    const CUresult result = Drv().cuMemAlloc_v2(&memory, 256);
    EXPECT_RESULT(mode == CU_STREAM_CAPTURE_MODE_GLOBAL ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                                        : CUDA_SUCCESS,
                  result);
    CUgraph made = nullptr;
    EXPECT_RESULT(mode == CU_STREAM_CAPTURE_MODE_GLOBAL ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                                        : CUDA_SUCCESS,
                  Drv().cuStreamEndCapture(stream, &made));
    if (made != nullptr) {
      EXPECT_OK(Drv().cuGraphDestroy(made));
    }
    if (memory != 0) {
      EXPECT_OK(Drv().cuMemFree_v2(memory));
    }
  }
}

API_TEST(CaptureTest, TheThreadsModeCanAllowWhatTheCaptureForbids) {
  Stream stream;
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_OK(Drv().cuThreadExchangeStreamCaptureMode(&mode));
  CUdeviceptr memory = 0;
  EXPECT_OK(Drv().cuMemAlloc_v2(&memory, 256));
  ASSERT_OK(Drv().cuThreadExchangeStreamCaptureMode(&mode));
  CUgraph made = nullptr;
  EXPECT_OK(Drv().cuStreamEndCapture(stream, &made));
  EXPECT_OK(Drv().cuGraphDestroy(made));
  EXPECT_OK(Drv().cuMemFree_v2(memory));
}

API_TEST(CaptureTest, EndsWhereItBegan) {
  Stream origin;
  Stream other;
  Event fork;
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_STATE, Drv().cuStreamEndCapture(origin, nullptr));
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_RESULT(CUDA_ERROR_ILLEGAL_STATE,
                Drv().cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_OK(Drv().cuEventRecord(fork, origin));
  ASSERT_OK(Drv().cuStreamWaitEvent(other, fork, 0));
  EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, Drv().cuStreamEndCapture(other, nullptr));
  Drv().cuStreamEndCapture(origin, nullptr);
  EXPECT_EQ(Status(origin), CU_STREAM_CAPTURE_STATUS_NONE);
}

API_TEST(CaptureTest, EndsInTheThreadWhereItBeganUnlessRelaxed) {
  Stream stream;
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CUresult result = CUDA_SUCCESS;
  std::thread([&] { result = Drv().cuStreamEndCapture(stream, nullptr); }).join();
  EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, result);
  Drv().cuStreamEndCapture(stream, nullptr);
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUgraph made = nullptr;
  std::thread([&] { result = Drv().cuStreamEndCapture(stream, &made); }).join();
  EXPECT_OK(result);
  EXPECT_OK(Drv().cuGraphDestroy(made));
}

API_TEST(CaptureTest, InfoNamesTheGraphAndWhatComesLast) {
  Stream stream;
  DeviceBuffer word(4);
  CUstreamCaptureStatus status;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* last = nullptr;
  size_t count = 7;
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_OK(Drv().cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &last, &count));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(count, 0u);
  ASSERT_OK(Drv().cuMemsetD32Async(word, 1, 1, stream));
  ASSERT_OK(Drv().cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &last, &count));
  ASSERT_EQ(count, 1u);
  CUgraphNodeType type;
  ASSERT_OK(Drv().cuGraphNodeGetType(last[0], &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_MEMSET);
  CUgraph made = nullptr;
  ASSERT_OK(Drv().cuStreamEndCapture(stream, &made));
  EXPECT_EQ(made, graph);
  EXPECT_OK(Drv().cuGraphDestroy(made));
}

API_TEST(CaptureTest, StreamOrderedAllocationBecomesNodes) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) == 0) {
    GTEST_SKIP() << "the device says that it has no memory pools";
  }
  Stream stream;
  DeviceBuffer word(4);
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUdeviceptr memory = 0;
  ASSERT_OK(Drv().cuMemAllocAsync(&memory, 1 << 16, stream));
  ASSERT_OK(Drv().cuMemsetD32Async(memory, 77, 1 << 14, stream));
  ASSERT_OK(Drv().cuMemcpyDtoDAsync_v2(word, memory, 4, stream));
  ASSERT_OK(Drv().cuMemFreeAsync(memory, stream));
  CUgraph made = nullptr;
  ASSERT_OK(Drv().cuStreamEndCapture(stream, &made));
  Graph graph(made);
  EXPECT_EQ(CountNodes(graph), 4u);
  Exec exec(graph);
  for (int i = 0; i < 2; ++i) {
    word.Fill(0);
    ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
    ASSERT_OK(Drv().cuStreamSynchronize(stream));
    EXPECT_EQ(word.ReadWord(), 77u);
  }
}

// The programming guide, "Graph memory nodes": what is freed in a graph is used again in it, where
// the edges allow.
API_TEST(CaptureTest, AllocationsOneAfterTheOtherShareAnAddress) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) == 0) {
    GTEST_SKIP() << "the device says that it has no memory pools";
  }
  constexpr size_t kBytes = 4 << 20;
  Stream stream;
  DeviceBuffer words(12);
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUdeviceptr memory[4] = {};
  const auto use = [&](int index, unsigned value) {
    ASSERT_OK(Drv().cuMemsetD32Async(memory[index], value, kBytes / 4, stream));
    ASSERT_OK(Drv().cuMemcpyDtoDAsync_v2(words + 4 * std::min(index, 2), memory[index] + kBytes - 4,
                                         4, stream));
  };
  ASSERT_OK(Drv().cuMemAllocAsync(&memory[0], kBytes, stream));
  use(0, 11);
  ASSERT_OK(Drv().cuMemFreeAsync(memory[0], stream));
  ASSERT_OK(Drv().cuMemAllocAsync(&memory[1], kBytes, stream));
  ASSERT_OK(Drv().cuMemAllocAsync(&memory[2], kBytes, stream));
  use(1, 22);
  use(2, 33);
  ASSERT_OK(Drv().cuMemFreeAsync(memory[1], stream));
  ASSERT_OK(Drv().cuMemFreeAsync(memory[2], stream));
  CUgraph made = nullptr;
  ASSERT_OK(Drv().cuStreamEndCapture(stream, &made));
  Graph graph(made);
  EXPECT_EQ(memory[1], memory[0]);
  EXPECT_NE(memory[2], memory[1]);
  Exec exec(graph);
  for (int i = 0; i < 2; ++i) {
    words.Fill(0);
    ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
    ASSERT_OK(Drv().cuStreamSynchronize(stream));
    EXPECT_EQ(words.Read<unsigned>(3), (std::vector<unsigned>{11, 22, 33}));
  }
}

API_TEST(GraphTest, AnAllocationBesideAFreeDoesNotShareItsAddress) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) == 0) {
    GTEST_SKIP() << "the device says that it has no memory pools";
  }
  Graph graph;
  const auto allocate = [&](const CUgraphNode* after, size_t count, CUgraphNode* node) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device()}};
    params.bytesize = 1 << 20;
    EXPECT_OK(Drv().cuGraphAddMemAllocNode(node, graph, after, count, &params));
    return params.dptr;
  };
  CUgraphNode first, freed, beside, behind, end;
  const CUdeviceptr memory = allocate(nullptr, 0, &first);
  ASSERT_OK(Drv().cuGraphAddMemFreeNode(&freed, graph, &first, 1, memory));
  const CUdeviceptr other = allocate(&first, 1, &beside);
  EXPECT_NE(other, memory);
  EXPECT_EQ(allocate(&freed, 1, &behind), memory);
  ASSERT_OK(Drv().cuGraphAddMemFreeNode(&end, graph, &behind, 1, memory));
  ASSERT_OK(Drv().cuGraphAddMemFreeNode(&end, graph, &beside, 1, other));
  Exec exec(graph);
  Stream stream;
  for (int i = 0; i < 2; ++i) ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
}

API_TEST(GraphTest, MemoryIsAGraphsFromItsLaunchToATrim) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) == 0) {
    GTEST_SKIP() << "the device says that it has no memory pools";
  }
  constexpr size_t kBytes = 64 << 20;
  const auto used = [&] {
    cuuint64_t bytes = 0;
    EXPECT_OK(
        Drv().cuDeviceGetGraphMemAttribute(device(), CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &bytes));
    return bytes;
  };
  Graph graph;
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device()}};
  params.bytesize = kBytes;
  CUgraphNode allocated, freed;
  ASSERT_OK(Drv().cuGraphAddMemAllocNode(&allocated, graph, nullptr, 0, &params));
  ASSERT_OK(Drv().cuGraphAddMemFreeNode(&freed, graph, &allocated, 1, params.dptr));
  Graph keeping;
  CUDA_MEM_ALLOC_NODE_PARAMS kept = params;
  ASSERT_OK(Drv().cuGraphAddMemAllocNode(&allocated, keeping, nullptr, 0, &kept));
  Exec exec(graph);
  Exec keeper(keeping);
  Stream stream;
  EXPECT_EQ(used(), 0u);
  ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(used(), kBytes);
  EXPECT_OK(Drv().cuDeviceGraphMemTrim(device()));
  EXPECT_EQ(used(), 0u);
  // What the program has not freed stays.
  ASSERT_OK(Drv().cuGraphLaunch(keeper, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_OK(Drv().cuDeviceGraphMemTrim(device()));
  EXPECT_EQ(used(), kBytes);
  EXPECT_OK(Drv().cuMemFree_v2(kept.dptr));
  EXPECT_EQ(used(), kBytes);
  EXPECT_OK(Drv().cuDeviceGraphMemTrim(device()));
  EXPECT_EQ(used(), 0u);
}

// ---- Graphs made of nodes

API_TEST(GraphTest, NodesRunInTheOrderOfTheirEdges) {
  Module module(kBasicPtx);
  DeviceBuffer words(8);
  words.Fill(0);
  Graph graph;
  CUgraphNode copy_node;
  CUgraphNode fill_node;
  CUgraphNode kernel_node;
  // Made in the opposite order of running.
  const CUDA_MEMCPY3D copy = LinearCopy(words + 4, words, 4);
  ASSERT_OK(Drv().cuGraphAddMemcpyNode(&copy_node, graph, nullptr, 0, &copy, context()));
  CUDA_MEMSET_NODE_PARAMS_v1 fill = {words, 0, 5, 4, 1, 1};
  ASSERT_OK(Drv().cuGraphAddMemsetNode(&fill_node, graph, nullptr, 0, &fill, context()));
  KernelParams add(module.Function("add_to"), words, 30);
  ASSERT_OK(Drv().cuGraphAddKernelNode_v2(&kernel_node, graph, &fill_node, 1, &add.params));
  ASSERT_OK(Drv().cuGraphAddDependencies(graph, &kernel_node, &copy_node, 1));
  Exec exec(graph);
  Stream stream;
  ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(words.Read<unsigned>(2), (std::vector<unsigned>{35, 35}));
}

API_TEST(GraphTest, ACircleOfEdgesDoesNotInstantiate) {
  Graph graph;
  CUgraphNode one;
  CUgraphNode two;
  ASSERT_OK(Drv().cuGraphAddEmptyNode(&one, graph, nullptr, 0));
  ASSERT_OK(Drv().cuGraphAddEmptyNode(&two, graph, &one, 1));
  ASSERT_OK(Drv().cuGraphAddDependencies(graph, &two, &one, 1));
  CUgraphExec exec = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuGraphInstantiateWithFlags(&exec, graph, 0));
}

API_TEST(GraphTest, RefusesBadArguments) {
  Graph graph;
  Graph other;
  CUgraphNode node;
  CUgraphNode foreign;
  ASSERT_OK(Drv().cuGraphAddEmptyNode(&foreign, other, nullptr, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuGraphCreate(nullptr, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuGraphAddEmptyNode(nullptr, graph, nullptr, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuGraphAddEmptyNode(&node, graph, &foreign, 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuGraphInstantiateWithFlags(nullptr, graph, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, nullptr));
  CUDA_MEMSET_NODE_PARAMS_v1 fill = {0, 0, 0, 3, 1, 1};
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuGraphAddMemsetNode(&node, graph, nullptr, 0, &fill, context()));
  EXPECT_EQ(CountNodes(graph), 0u);
}

API_TEST(GraphTest, ParametersAreReadBackAndChanged) {
  Module module(kBasicPtx);
  DeviceBuffer word(4);
  word.Fill(0);
  Graph graph;
  CUgraphNode node;
  KernelParams first(module.Function("store"), word, 11);
  ASSERT_OK(Drv().cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &first.params));
  CUDA_KERNEL_NODE_PARAMS_v2 read = {};
  ASSERT_OK(Drv().cuGraphKernelNodeGetParams_v2(node, &read));
  EXPECT_EQ(read.func, first.params.func);
  EXPECT_EQ(read.gridDimX, 1u);
  ASSERT_NE(read.kernelParams, nullptr);
  EXPECT_EQ(*static_cast<unsigned*>(read.kernelParams[1]), 11u);
  Exec exec(graph);
  Stream stream;
  // In the executable graph alone.
  KernelParams second(module.Function("store"), word, 22);
  ASSERT_OK(Drv().cuGraphExecKernelNodeSetParams_v2(exec, node, &second.params));
  ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(word.ReadWord(), 22u);
  // In the graph, for those made of it from now on.
  KernelParams third(module.Function("store"), word, 33);
  ASSERT_OK(Drv().cuGraphKernelNodeSetParams_v2(node, &third.params));
  Exec renewed(graph);
  ASSERT_OK(Drv().cuGraphLaunch(renewed, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(word.ReadWord(), 33u);
}

API_TEST(GraphTest, UpdatesFromAGraphOfTheSameShapeOnly) {
  DeviceBuffer word(4);
  Stream stream;
  const auto fill_graph = [&](CUgraph graph, unsigned value, int count) {
    CUgraphNode last = nullptr;
    for (int i = 0; i < count; ++i) {
      CUgraphNode node;
      CUDA_MEMSET_NODE_PARAMS_v1 fill = {word, 0, value, 4, 1, 1};
      ASSERT_OK(Drv().cuGraphAddMemsetNode(&node, graph, &last, i == 0 ? 0 : 1, &fill, context()));
      last = node;
    }
  };
  Graph first;
  fill_graph(first, 1, 1);
  Graph second;
  fill_graph(second, 2, 1);
  Graph longer;
  fill_graph(longer, 3, 2);
  Exec exec(first);
  CUgraphExecUpdateResultInfo info = {};
  ASSERT_OK(Drv().cuGraphExecUpdate_v2(exec, second, &info));
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
  ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(word.ReadWord(), 2u);
  EXPECT_RESULT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                Drv().cuGraphExecUpdate_v2(exec, longer, &info));
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
}

API_TEST(GraphTest, ChildGraphsRunInTheirPlace) {
  DeviceBuffer words(8);
  words.Fill(0);
  Graph child;
  CUgraphNode node;
  CUDA_MEMSET_NODE_PARAMS_v1 fill = {words, 0, 6, 4, 1, 1};
  ASSERT_OK(Drv().cuGraphAddMemsetNode(&node, child, nullptr, 0, &fill, context()));
  Graph graph;
  CUgraphNode child_node;
  ASSERT_OK(Drv().cuGraphAddChildGraphNode(&child_node, graph, nullptr, 0, child));
  CUgraphNode copy_node;
  const CUDA_MEMCPY3D copy = LinearCopy(words + 4, words, 4);
  ASSERT_OK(Drv().cuGraphAddMemcpyNode(&copy_node, graph, &child_node, 1, &copy, context()));
  CUgraph embedded = nullptr;
  ASSERT_OK(Drv().cuGraphChildGraphNodeGetGraph(child_node, &embedded));
  EXPECT_EQ(CountNodes(embedded), 1u);
  Exec exec(graph);
  Stream stream;
  ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(words.Read<unsigned>(2), (std::vector<unsigned>{6, 6}));
}

API_TEST(GraphTest, AnExecutableGraphOutlivesItsGraph) {
  DeviceBuffer word(4);
  word.Fill(0);
  Stream stream;
  CUgraphExec exec = nullptr;
  {
    Graph graph;
    CUgraphNode node;
    CUDA_MEMSET_NODE_PARAMS_v1 fill = {word, 0, 12, 4, 1, 1};
    ASSERT_OK(Drv().cuGraphAddMemsetNode(&node, graph, nullptr, 0, &fill, context()));
    ASSERT_OK(Drv().cuGraphInstantiateWithFlags(&exec, graph, 0));
  }
  ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(word.ReadWord(), 12u);
  EXPECT_OK(Drv().cuGraphExecDestroy(exec));
}

API_TEST(GraphTest, ACloneIsAGraphOfItsOwn) {
  DeviceBuffer word(4);
  Graph graph;
  CUgraphNode node;
  CUgraphNode second;
  CUDA_MEMSET_NODE_PARAMS_v1 fill = {word, 0, 1, 4, 1, 1};
  ASSERT_OK(Drv().cuGraphAddMemsetNode(&node, graph, nullptr, 0, &fill, context()));
  ASSERT_OK(Drv().cuGraphAddEmptyNode(&second, graph, &node, 1));
  CUgraph made = nullptr;
  ASSERT_OK(Drv().cuGraphClone(&made, graph));
  Graph clone(made);
  CUgraphNode found = nullptr;
  ASSERT_OK(Drv().cuGraphNodeFindInClone(&found, node, clone));
  EXPECT_NE(found, node);
  ASSERT_OK(Drv().cuGraphDestroyNode(found));
  EXPECT_EQ(CountNodes(clone), 1u);
  EXPECT_EQ(CountNodes(graph), 2u);
  size_t edges = 99;
  ASSERT_OK(Drv().cuGraphGetEdges(graph, nullptr, nullptr, &edges));
  EXPECT_EQ(edges, 1u);
  ASSERT_OK(Drv().cuGraphGetEdges(clone, nullptr, nullptr, &edges));
  EXPECT_EQ(edges, 0u);
}

API_TEST(GraphTest, ADisabledNodeDoesNothing) {
  DeviceBuffer word(4);
  word.Write<unsigned>({9});
  Graph graph;
  CUgraphNode node;
  CUDA_MEMSET_NODE_PARAMS_v1 fill = {word, 0, 1, 4, 1, 1};
  ASSERT_OK(Drv().cuGraphAddMemsetNode(&node, graph, nullptr, 0, &fill, context()));
  Exec exec(graph);
  ASSERT_OK(Drv().cuGraphNodeSetEnabled(exec, node, 0));
  Stream stream;
  ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(word.ReadWord(), 9u);
}

// NVIDIA's driver calls the destructor from a thread of its own.
void WaitForDestructor(const std::atomic<int>& destroyed) {
  for (int i = 0; i < 1000 && destroyed == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

API_TEST(GraphTest, AChildThatIsRefusedHoldsNoUserObjects) {
  std::atomic<int> destroyed = 0;
  CUuserObject object = nullptr;
  ASSERT_OK(Drv().cuUserObjectCreate(
      &object, &destroyed, [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, 1,
      CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CUgraph parent = nullptr;
  CUgraph child = nullptr;
  ASSERT_OK(Drv().cuGraphCreate(&parent, 0));
  ASSERT_OK(Drv().cuGraphCreate(&child, 0));
  ASSERT_OK(Drv().cuGraphRetainUserObject(child, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CUgraphNode stranger = nullptr;
  ASSERT_OK(Drv().cuGraphAddEmptyNode(&stranger, child, nullptr, 0));
  CUgraphNode node = nullptr;
  EXPECT_EQ(Drv().cuGraphAddChildGraphNode(&node, parent, &stranger, 1, child),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_OK(Drv().cuGraphDestroy(child));
  WaitForDestructor(destroyed);
  EXPECT_EQ(destroyed, 1);
  EXPECT_OK(Drv().cuGraphDestroy(parent));
}

API_TEST(GraphTest, UserObjectsGoWithTheirLastHolder) {
  std::atomic<int> destroyed = 0;
  CUuserObject object = nullptr;
  ASSERT_OK(Drv().cuUserObjectCreate(
      &object, &destroyed, [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, 1,
      CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CUgraphExec exec = nullptr;
  {
    Graph graph;
    ASSERT_OK(Drv().cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    ASSERT_OK(Drv().cuGraphInstantiateWithFlags(&exec, graph, 0));
  }
  EXPECT_EQ(destroyed, 0);
  ASSERT_OK(Drv().cuGraphExecDestroy(exec));
  WaitForDestructor(destroyed);
  EXPECT_EQ(destroyed, 1);
}

}  // namespace
}  // namespace consort::tests::api
