// SPDX-License-Identifier: Apache-2.0
// Conditional nodes of graphs. Source: CUDA Driver API reference 13.0,
// cuGraphConditionalHandleCreate and CUDA_CONDITIONAL_NODE_PARAMS; CUDA C++ Programming Guide,
// "Conditional Graph Nodes".
#include <initializer_list>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

// A graph, what it was instantiated to, and the kernels that set its conditions.
class GraphConditionTest : public ContextTest {
 protected:
  void SetUp() override {
    ContextTest::SetUp();
    Require(Drv().cuGraphCreate(&graph_, 0), "cuGraphCreate");
    module_.emplace(kConditionPtx);
    stream_.emplace();
  }
  void TearDown() override {
    DropExec();
    if (graph_ != nullptr) DropGraph();
    stream_.reset();
    module_.reset();
    ContextTest::TearDown();
  }

  CUgraph graph() const { return graph_; }
  CUgraphExec exec() const { return exec_; }
  void DropGraph() { Drv().cuGraphDestroy(std::exchange(graph_, nullptr)); }
  void DropExec() {
    if (exec_ != nullptr) Drv().cuGraphExecDestroy(std::exchange(exec_, nullptr));
  }
  void Instantiate() {
    Require(Drv().cuGraphInstantiateWithFlags(&exec_, graph_, 0), "cuGraphInstantiateWithFlags");
  }
  void Run() {
    Require(Drv().cuGraphLaunch(exec_, *stream_), "cuGraphLaunch");
    Require(Drv().cuStreamSynchronize(*stream_), "cuStreamSynchronize");
  }

  CUgraphConditionalHandle Condition(unsigned initial = 0, unsigned flags = 0) {
    CUgraphConditionalHandle handle = 0;
    Require(Drv().cuGraphConditionalHandleCreate(&handle, graph_, context(), initial, flags),
            "cuGraphConditionalHandleCreate");
    return handle;
  }
  CUresult AddConditional(CUgraph graph, std::initializer_list<CUgraphNode> after,
                          CUgraphConditionalHandle handle, CUgraphConditionalNodeType type,
                          unsigned size, std::vector<CUgraph>* bodies,
                          CUgraphNode* node = nullptr) {
    CUgraphNodeParams params = {};
    params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = size;
    params.conditional.ctx = context();
    CUgraphNode made = nullptr;
    const CUresult result = Drv().cuGraphAddNode_v2(
        node != nullptr ? node : &made, graph, std::data(after), nullptr, after.size(), &params);
    if (result == CUDA_SUCCESS) {
      bodies->assign(params.conditional.phGraph_out, params.conditional.phGraph_out + size);
    }
    return result;
  }
  std::vector<CUgraph> Conditional(CUgraph graph, std::initializer_list<CUgraphNode> after,
                                   CUgraphConditionalHandle handle, CUgraphConditionalNodeType type,
                                   unsigned size) {
    std::vector<CUgraph> bodies;
    Require(AddConditional(graph, after, handle, type, size, &bodies), "cuGraphAddNode");
    return bodies;
  }
  // One thread of a kernel with two parameters.
  template <typename First, typename Second>
  CUgraphNode Kernel(CUgraph graph, std::initializer_list<CUgraphNode> after, const char* name,
                     First first, Second second) {
    void* pointers[] = {&first, &second};
    CUDA_KERNEL_NODE_PARAMS_v2 params = {};
    params.func = module_->Function(name);
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = pointers;
    CUgraphNode node = nullptr;
    Require(Drv().cuGraphAddKernelNode_v2(&node, graph, std::data(after), after.size(), &params),
            "cuGraphAddKernelNode");
    return node;
  }
  CUgraphNode SetFrom(CUgraphConditionalHandle handle, const DeviceBuffer& word) {
    return Kernel(graph_, {}, "set_from", handle, word.get());
  }
  CUgraphNode Add(CUgraph graph, std::initializer_list<CUgraphNode> after, const DeviceBuffer& out,
                  unsigned value) {
    return Kernel(graph, after, "add_to", out.get(), value);
  }

  CUfunction Function(const char* name) { return module_->Function(name); }
  CUstream stream() { return *stream_; }

 private:
  std::optional<Module> module_;
  std::optional<Stream> stream_;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

API_TEST(GraphConditionTest, IfRunsItsBodyWhenTheConditionIsSet) {
  DeviceBuffer flag(4);
  DeviceBuffer sum(4);
  sum.Write<unsigned>({0});
  const CUgraphConditionalHandle condition = Condition();
  const CUgraphNode set = SetFrom(condition, flag);
  const auto bodies = Conditional(graph(), {set}, condition, CU_GRAPH_COND_TYPE_IF, 1);
  Add(bodies[0], {}, sum, 1);
  Instantiate();
  for (const unsigned value : {0u, 1u, 0u, 5u}) {
    flag.Write<unsigned>({value});
    Run();
  }
  EXPECT_EQ(sum.ReadWord(), 2u);
}

API_TEST(GraphConditionTest, ElseRunsWhenItIsNot) {
  DeviceBuffer flag(4);
  DeviceBuffer sum(4);
  sum.Write<unsigned>({0});
  const CUgraphConditionalHandle condition = Condition();
  const CUgraphNode set = SetFrom(condition, flag);
  const auto bodies = Conditional(graph(), {set}, condition, CU_GRAPH_COND_TYPE_IF, 2);
  Add(bodies[0], {}, sum, 1);
  Add(bodies[1], {}, sum, 100);
  Instantiate();
  flag.Write<unsigned>({1});
  Run();
  EXPECT_EQ(sum.ReadWord(), 1u);
  flag.Write<unsigned>({0});
  Run();
  EXPECT_EQ(sum.ReadWord(), 101u);
}

API_TEST(GraphConditionTest, WhileRepeatsWhatWasCapturedIntoItsBody) {
  DeviceBuffer left(4);
  DeviceBuffer sum(4);
  sum.Write<unsigned>({0});
  const CUgraphConditionalHandle condition = Condition(1, CU_GRAPH_COND_ASSIGN_DEFAULT);
  const auto bodies = Conditional(graph(), {}, condition, CU_GRAPH_COND_TYPE_WHILE, 1);
  ASSERT_OK(Drv().cuStreamBeginCaptureToGraph(stream(), bodies[0], nullptr, nullptr, 0,
                                              CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_OK(Launch(Function("add_to"), 1, 1, stream(), sum.get(), 1u));
  ASSERT_OK(Launch(Function("count_down"), 1, 1, stream(), condition, left.get()));
  ASSERT_OK(Drv().cuStreamEndCapture(stream(), nullptr));
  Instantiate();
  // The default is the condition's value at each launch, so that the loop begins each time.
  for (const unsigned times : {10u, 1u, 3u}) {
    left.Write<unsigned>({times});
    Run();
  }
  EXPECT_EQ(sum.ReadWord(), 14u);
  EXPECT_EQ(left.ReadWord(), 0u);
}

API_TEST(GraphConditionTest, SwitchRunsTheBodyOfTheValue) {
  DeviceBuffer which(4);
  DeviceBuffer sum(4);
  sum.Write<unsigned>({0});
  const CUgraphConditionalHandle condition = Condition();
  const CUgraphNode set = SetFrom(condition, which);
  const auto bodies = Conditional(graph(), {set}, condition, CU_GRAPH_COND_TYPE_SWITCH, 3);
  Add(bodies[0], {}, sum, 1);
  Add(bodies[1], {}, sum, 10);
  Add(bodies[2], {}, sum, 100);
  Instantiate();
  // No body has the number 3.
  for (const unsigned value : {2u, 0u, 3u, 2u}) {
    which.Write<unsigned>({value});
    Run();
  }
  EXPECT_EQ(sum.ReadWord(), 201u);
}

API_TEST(GraphConditionTest, ConditionsNest) {
  DeviceBuffer left(4);
  DeviceBuffer sum(4);
  left.Write<unsigned>({4});
  sum.Write<unsigned>({0});
  const CUgraphConditionalHandle loop = Condition(1, CU_GRAPH_COND_ASSIGN_DEFAULT);
  const CUgraphConditionalHandle branch = Condition();
  const auto outer = Conditional(graph(), {}, loop, CU_GRAPH_COND_TYPE_WHILE, 1);
  const CUgraphNode count = Kernel(outer[0], {}, "count_down", loop, left.get());
  const CUgraphNode set = Kernel(outer[0], {count}, "set_from", branch, left.get());
  const auto inner = Conditional(outer[0], {set}, branch, CU_GRAPH_COND_TYPE_IF, 2);
  Add(inner[0], {}, sum, 1);
  Add(inner[1], {}, sum, 100);
  Instantiate();
  Run();
  EXPECT_EQ(sum.ReadWord(), 103u);
}

API_TEST(GraphConditionTest, BodiesCopyAndFill) {
  DeviceBuffer from(64);
  DeviceBuffer to(64);
  to.Fill(0);
  const CUgraphConditionalHandle condition = Condition(1, CU_GRAPH_COND_ASSIGN_DEFAULT);
  const auto bodies = Conditional(graph(), {}, condition, CU_GRAPH_COND_TYPE_IF, 1);
  ASSERT_OK(Drv().cuStreamBeginCaptureToGraph(stream(), bodies[0], nullptr, nullptr, 0,
                                              CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_OK(Drv().cuMemsetD32Async(from, 7, 16, stream()));
  ASSERT_OK(Drv().cuMemcpyDtoDAsync_v2(to, from, 64, stream()));
  ASSERT_OK(Drv().cuMemsetD8Async(from, 1, 64, stream()));
  ASSERT_OK(Drv().cuStreamEndCapture(stream(), nullptr));
  Instantiate();
  Run();
  EXPECT_EQ(to.Read<unsigned>(16), std::vector<unsigned>(16, 7));
  EXPECT_EQ(from.ReadWord(), 0x01010101u);
}

API_TEST(GraphConditionTest, ACaptureTakesAConditionalNode) {
  DropGraph();
  DeviceBuffer left(4);
  DeviceBuffer sum(4);
  sum.Write<unsigned>({0});
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream(), CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUstreamCaptureStatus status;
  cuuint64_t id = 0;
  CUgraph captured = nullptr;
  const CUgraphNode* dependencies = nullptr;
  size_t count = 0;
  ASSERT_OK(Drv().cuStreamGetCaptureInfo_v2(stream(), &status, &id, &captured, nullptr, nullptr));
  CUgraphConditionalHandle condition = 0;
  ASSERT_OK(Drv().cuGraphConditionalHandleCreate(&condition, captured, context(), 0, 0));
  ASSERT_OK(Launch(Function("count_down"), 1, 1, stream(), condition, left.get()));
  ASSERT_OK(
      Drv().cuStreamGetCaptureInfo_v2(stream(), &status, &id, &captured, &dependencies, &count));
  ASSERT_EQ(count, 1u);
  CUgraphNode node = nullptr;
  std::vector<CUgraph> bodies;
  ASSERT_OK(AddConditional(captured, {dependencies[0]}, condition, CU_GRAPH_COND_TYPE_WHILE, 1,
                           &bodies, &node));
  ASSERT_OK(Drv().cuStreamUpdateCaptureDependencies_v2(stream(), &node, nullptr, 1,
                                                       CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  ASSERT_OK(Launch(Function("add_to"), 1, 1, stream(), sum.get(), 100u));
  CUgraph made = nullptr;
  ASSERT_OK(Drv().cuStreamEndCapture(stream(), &made));
  Add(bodies[0], {Kernel(bodies[0], {}, "count_down", condition, left.get())}, sum, 1);
  CUgraphExec exec = nullptr;
  ASSERT_OK(Drv().cuGraphInstantiateWithFlags(&exec, made, 0));
  // What is launched need not have its graph.
  ASSERT_OK(Drv().cuGraphDestroy(made));
  for (const unsigned times : {1u, 6u}) {
    left.Write<unsigned>({times});
    ASSERT_OK(Drv().cuGraphLaunch(exec, stream()));
    ASSERT_OK(Drv().cuStreamSynchronize(stream()));
  }
  EXPECT_EQ(sum.ReadWord(), 205u);
  EXPECT_OK(Drv().cuGraphExecDestroy(exec));
}

API_TEST(GraphConditionTest, IsInstantiatedAnewWithWhatItsBodiesHaveThen) {
  DeviceBuffer sum(4);
  sum.Write<unsigned>({0});
  const CUgraphConditionalHandle condition = Condition(1, CU_GRAPH_COND_ASSIGN_DEFAULT);
  const auto bodies = Conditional(graph(), {}, condition, CU_GRAPH_COND_TYPE_IF, 1);
  const CUgraphNode first = Add(bodies[0], {}, sum, 1);
  Instantiate();
  Run();
  // "Only one instantiation of the graph may exist at any point in time."
  DropExec();
  Add(bodies[0], {first}, sum, 10);
  Instantiate();
  Run();
  EXPECT_EQ(sum.ReadWord(), 12u);
}

API_TEST(GraphConditionTest, ChangesOfTheExecutableGraphHold) {
  DeviceBuffer zero(4);
  DeviceBuffer one(4);
  DeviceBuffer sum(4);
  zero.Write<unsigned>({0});
  one.Write<unsigned>({1});
  sum.Write<unsigned>({0});
  const CUgraphConditionalHandle condition = Condition();
  const CUgraphNode set = SetFrom(condition, zero);
  const auto bodies = Conditional(graph(), {set}, condition, CU_GRAPH_COND_TYPE_IF, 1);
  Add(bodies[0], {}, sum, 1);
  Instantiate();
  Run();
  EXPECT_EQ(sum.ReadWord(), 0u);
  CUgraphConditionalHandle handle = condition;
  CUdeviceptr word = one.get();
  void* pointers[] = {&handle, &word};
  CUDA_KERNEL_NODE_PARAMS_v2 params = {};
  ASSERT_OK(Drv().cuGraphKernelNodeGetParams_v2(set, &params));
  params.kernelParams = pointers;
  ASSERT_OK(Drv().cuGraphExecKernelNodeSetParams_v2(exec(), set, &params));
  Run();
  Run();
  EXPECT_EQ(sum.ReadWord(), 2u);
}

API_TEST(GraphConditionTest, BodiesBelongToTheirNode) {
  const CUgraphConditionalHandle condition = Condition();
  std::vector<CUgraph> bodies;
  CUgraphNode node = nullptr;
  ASSERT_OK(AddConditional(graph(), {}, condition, CU_GRAPH_COND_TYPE_SWITCH, 4, &bodies, &node));
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  ASSERT_OK(Drv().cuGraphNodeGetType(node, &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_CONDITIONAL);
  for (CUgraph body : bodies) {
    size_t count = 1;
    EXPECT_OK(Drv().cuGraphGetNodes(body, nullptr, &count));
    EXPECT_EQ(count, 0u);
  }
  EXPECT_EQ(std::set<CUgraph>(bodies.begin(), bodies.end()).size(), 4u);
}

API_TEST(GraphConditionTest, NumbersOfBodiesAreChecked) {
  const CUgraphConditionalHandle condition = Condition();
  std::vector<CUgraph> bodies;
  const auto add = [&](CUgraphConditionalNodeType type, unsigned size) {
    return AddConditional(graph(), {}, condition, type, size, &bodies);
  };
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, add(CU_GRAPH_COND_TYPE_IF, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, add(CU_GRAPH_COND_TYPE_IF, 3));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, add(CU_GRAPH_COND_TYPE_WHILE, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, add(CU_GRAPH_COND_TYPE_WHILE, 2));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, add(CU_GRAPH_COND_TYPE_SWITCH, 0));
  EXPECT_OK(add(CU_GRAPH_COND_TYPE_WHILE, 1));
}

API_TEST(GraphConditionTest, AConditionIsOfOneNode) {
  const CUgraphConditionalHandle condition = Condition();
  std::vector<CUgraph> bodies;
  EXPECT_OK(AddConditional(graph(), {}, condition, CU_GRAPH_COND_TYPE_IF, 1, &bodies));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                AddConditional(graph(), {}, condition, CU_GRAPH_COND_TYPE_IF, 1, &bodies));
}

API_TEST(GraphConditionTest, HandlesAreOfKnownGraphsAndFlags) {
  CUgraphConditionalHandle handle = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuGraphConditionalHandleCreate(nullptr, graph(), context(), 0, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuGraphConditionalHandleCreate(&handle, nullptr, context(), 0, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuGraphConditionalHandleCreate(&handle, graph(), context(), 0, 2));
  EXPECT_NE(Condition(), Condition());
}

API_TEST(GraphConditionTest, IsNeitherClonedNorAChild) {
  Conditional(graph(), {}, Condition(), CU_GRAPH_COND_TYPE_IF, 1);
  CUgraph clone = nullptr;
  EXPECT_NE(Drv().cuGraphClone(&clone, graph()), CUDA_SUCCESS);
  CUgraph parent = nullptr;
  ASSERT_OK(Drv().cuGraphCreate(&parent, 0));
  CUgraphNode node = nullptr;
  EXPECT_NE(Drv().cuGraphAddChildGraphNode(&node, parent, nullptr, 0, graph()), CUDA_SUCCESS);
  EXPECT_OK(Drv().cuGraphDestroy(parent));
}

API_TEST(GraphConditionTest, HostFunctionsBesideItAreRefusedByName) {
  SKIP_ON_ORACLE("NVIDIA's driver takes them outside of bodies");
  CUDA_HOST_NODE_PARAMS params = {};
  params.fn = [](void*) {};
  CUgraphNode node = nullptr;
  ASSERT_OK(Drv().cuGraphAddHostNode(&node, graph(), nullptr, 0, &params));
  Conditional(graph(), {node}, Condition(1, CU_GRAPH_COND_ASSIGN_DEFAULT), CU_GRAPH_COND_TYPE_IF,
              1);
  CUgraphExec exec = nullptr;
  EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, Drv().cuGraphInstantiateWithFlags(&exec, graph(), 0));
}

}  // namespace
}  // namespace consort::tests::api
