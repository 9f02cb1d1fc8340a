// SPDX-License-Identifier: Apache-2.0
// Green contexts: resources, their partition, and streams whose kernels keep to them. Source: CUDA
// Driver API, Green Contexts.
#include <cstring>
#include <set>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

constexpr unsigned kBlocks = 2048;

// Each block says which multiprocessor it ran on.
constexpr char kWhereText[] = R"(
.version 7.0
.target sm_52
.address_size 64
.visible .entry where(.param .u64 out) {
  .reg .u64 %d<4>;
  .reg .u32 %r<3>;
  ld.param.u64 %d0, [out];
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %smid;
  mul.wide.u32 %d1, %r0, 4;
  add.u64 %d2, %d0, %d1;
  st.global.u32 [%d2], %r1;
  ret;
}
)";

// A green context, destroyed at the end.
class Green {
 public:
  Green(CUdevice device, CUdevResource* resources, unsigned count) {
    CUdevResourceDesc description = nullptr;
    Require(Drv().cuDevResourceGenerateDesc(&description, resources, count),
            "cuDevResourceGenerateDesc");
    Require(Drv().cuGreenCtxCreate(&green_, description, device, CU_GREEN_CTX_DEFAULT_STREAM),
            "cuGreenCtxCreate");
  }
  ~Green() {
    if (green_ != nullptr) Drv().cuGreenCtxDestroy(green_);
  }
  Green(const Green&) = delete;
  Green& operator=(const Green&) = delete;
  CUgreenCtx get() const { return green_; }
  operator CUgreenCtx() const { return green_; }  // NOLINT: the cases read better
  CUcontext Current() const {
    CUcontext context = nullptr;
    Require(Drv().cuCtxFromGreenCtx(&context, green_), "cuCtxFromGreenCtx");
    return context;
  }
  CUstream NewStream() const {
    CUstream stream = nullptr;
    Require(Drv().cuGreenCtxStreamCreate(&stream, green_, CU_STREAM_NON_BLOCKING, 0),
            "cuGreenCtxStreamCreate");
    return stream;
  }
  CUresult Destroy() {
    const CUgreenCtx gone = green_;
    green_ = nullptr;
    return Drv().cuGreenCtxDestroy(gone);
  }

 private:
  CUgreenCtx green_ = nullptr;
};

class GreenContextTest : public ContextTest {
 protected:
  CUdevResource Whole() const {
    CUdevResource whole = {};
    Require(Drv().cuDeviceGetDevResource(device(), &whole, CU_DEV_RESOURCE_TYPE_SM),
            "cuDeviceGetDevResource");
    return whole;
  }
  // One group of as few multiprocessors as there may be.
  CUdevResource Smallest(const CUdevResource& whole, CUdevResource* rest = nullptr) const {
    CUdevResource group = {};
    unsigned groups = 1;
    Require(Drv().cuDevSmResourceSplitByCount(&group, &groups, &whole, rest, 0,
                                              whole.sm.minSmPartitionSize),
            "cuDevSmResourceSplitByCount");
    return group;
  }
  std::set<unsigned> WhereBlocksRun(CUfunction where, CUstream stream) const {
    const DeviceBuffer out(kBlocks * sizeof(unsigned));
    out.Fill(0xFF);
    Require(Drv().cuCtxSynchronize(), "cuCtxSynchronize");
    Require(Launch(where, kBlocks, 32, stream, out.get()), "cuLaunchKernel");
    Require(Drv().cuStreamSynchronize(stream), "cuStreamSynchronize");
    const std::vector<unsigned> words = out.Read<unsigned>(kBlocks);
    return {words.begin(), words.end()};
  }
};

API_TEST(GreenContextTest, ADeviceHasItsMultiprocessors) {
  const CUdevResource whole = Whole();
  EXPECT_EQ(whole.type, CU_DEV_RESOURCE_TYPE_SM);
  EXPECT_EQ(whole.sm.smCount,
            static_cast<unsigned>(Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)));
  EXPECT_GE(whole.sm.minSmPartitionSize, 1u);
  EXPECT_GE(whole.sm.smCoscheduledAlignment, 1u);
  CUdevResource same = {};
  EXPECT_OK(Drv().cuCtxGetDevResource(context(), &same, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT_EQ(same.sm.smCount, whole.sm.smCount);
}

API_TEST(GreenContextTest, ResourcesRefuseWhatIsNone) {
  CUdevResource resource = {};
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuDeviceGetDevResource(device(), nullptr, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE,
                Drv().cuDeviceGetDevResource(4096, &resource, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT_RESULT(CUDA_ERROR_INVALID_RESOURCE_TYPE,
                Drv().cuDeviceGetDevResource(device(), &resource, CU_DEV_RESOURCE_TYPE_INVALID));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuCtxGetDevResource(context(), nullptr, CU_DEV_RESOURCE_TYPE_SM));
}

API_TEST(GreenContextTest, ASplitGivesEqualGroupsAndWhatRemains) {
  const CUdevResource whole = Whole();
  const unsigned fewest = whole.sm.minSmPartitionSize;
  unsigned possible = 0;
  EXPECT_OK(Drv().cuDevSmResourceSplitByCount(nullptr, &possible, &whole, nullptr, 0, fewest));
  ASSERT_GE(possible, 1u);
  EXPECT_LE(possible * fewest, whole.sm.smCount);
  std::vector<CUdevResource> groups(possible + 3);
  unsigned made = possible + 3;
  CUdevResource rest = {};
  EXPECT_OK(Drv().cuDevSmResourceSplitByCount(groups.data(), &made, &whole, &rest, 0, fewest));
  EXPECT_EQ(made, possible);
  unsigned sum = rest.type == CU_DEV_RESOURCE_TYPE_SM ? rest.sm.smCount : 0;
  for (unsigned i = 0; i < made; ++i) {
    EXPECT_EQ(groups[i].type, CU_DEV_RESOURCE_TYPE_SM);
    EXPECT_EQ(groups[i].sm.smCount, groups[0].sm.smCount);
    EXPECT_GE(groups[i].sm.smCount, fewest);
    sum += groups[i].sm.smCount;
  }
  EXPECT_EQ(sum, whole.sm.smCount);
}

API_TEST(GreenContextTest, ASplitRefusesWhatCannotBe) {
  const CUdevResource whole = Whole();
  CUdevResource group = {};
  unsigned one = 1;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuDevSmResourceSplitByCount(&group, nullptr, &whole, nullptr, 0, 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuDevSmResourceSplitByCount(&group, &one, nullptr, nullptr, 0, 1));
  EXPECT_ONE_OF(
      Drv().cuDevSmResourceSplitByCount(&group, &one, &whole, nullptr, 0, whole.sm.smCount + 1),
      CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CUdevResource none = {};
  EXPECT_ONE_OF(Drv().cuDevSmResourceSplitByCount(&group, &one, &none, nullptr, 0, 1),
                CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_RESOURCE_TYPE);
}

API_TEST(GreenContextTest, ADescriptorIsOfOneSplit) {
  const CUdevResource whole = Whole();
  CUdevResource here = Smallest(whole);
  CUdevResourceDesc description = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuDevResourceGenerateDesc(nullptr, &here, 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuDevResourceGenerateDesc(&description, nullptr, 1));
  CUdevResource both[] = {here, whole};
  EXPECT_RESULT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
                Drv().cuDevResourceGenerateDesc(&description, both, 2));
}

API_TEST(GreenContextTest, KernelsKeepToTheirMultiprocessors) {
  CUdevResource whole = Whole();
  CUdevResource rest = {};
  CUdevResource group = Smallest(whole, &rest);
  const Module module(Image{reinterpret_cast<const unsigned char*>(kWhereText), sizeof kWhereText});
  const CUfunction where = module.Function("where");
  const Green part(device(), &group, 1);
  CUdevResource has = {};
  EXPECT_OK(Drv().cuGreenCtxGetDevResource(part, &has, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT_EQ(has.sm.smCount, group.sm.smCount);
  const CUstream stream = part.NewStream();
  const std::set<unsigned> ran = WhereBlocksRun(where, stream);
  EXPECT_LE(ran.size(), group.sm.smCount);
  EXPECT_OK(Drv().cuStreamDestroy_v2(stream));
  // Its default stream, too.
  EXPECT_OK(Drv().cuCtxPushCurrent_v2(part.Current()));
  EXPECT_LE(WhereBlocksRun(where, nullptr).size(), group.sm.smCount);
  EXPECT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
  // A device of one multiprocessor leaves nothing.
  if (rest.type != CU_DEV_RESOURCE_TYPE_SM) return;
  const Green others(device(), &rest, 1);
  const CUstream beside = others.NewStream();
  const std::set<unsigned> ran_beside = WhereBlocksRun(where, beside);
  EXPECT_LE(ran_beside.size(), rest.sm.smCount);
  EXPECT_OK(Drv().cuStreamDestroy_v2(beside));
}

API_TEST(GreenContextTest, AGreenContextCanBeSplitAgain) {
  CUdevResource whole = Whole();
  Green all(device(), &whole, 1);
  CUdevResource had = {};
  EXPECT_OK(Drv().cuGreenCtxGetDevResource(all, &had, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT_EQ(had.sm.smCount, whole.sm.smCount);
  CUdevResource group = Smallest(had);
  const Green part(device(), &group, 1);
  EXPECT_OK(Drv().cuCtxGetDevResource(part.Current(), &had, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT_EQ(had.sm.smCount, group.sm.smCount);
}

API_TEST(GreenContextTest, ContextsRefuseWhatIsNone) {
  CUdevResource whole = Whole();
  CUdevResourceDesc description = nullptr;
  ASSERT_OK(Drv().cuDevResourceGenerateDesc(&description, &whole, 1));
  CUgreenCtx green = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuGreenCtxCreate(nullptr, description, device(), 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuGreenCtxCreate(&green, description, device(), 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, Drv().cuGreenCtxCreate(&green, description, 4096, 1));
  const Green made(device(), &whole, 1);
  CUstream stream = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuGreenCtxStreamCreate(&stream, made, CU_STREAM_DEFAULT, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuGreenCtxStreamCreate(nullptr, made, CU_STREAM_NON_BLOCKING, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuCtxFromGreenCtx(nullptr, made));
}

API_TEST(GreenContextTest, StreamsAndThePrimaryContextKnowEachOther) {
  CUdevResource group = Smallest(Whole());
  const Green green(device(), &group, 1);
  const CUstream stream = green.NewStream();
  CUcontext found = nullptr;
  CUgreenCtx found_green = nullptr;
  EXPECT_OK(Drv().cuStreamGetCtx_v2(stream, &found, &found_green));
  EXPECT_EQ(found, context());
  EXPECT_EQ(found_green, green.get());
  found_green = nullptr;
  EXPECT_OK(Drv().cuStreamGetGreenCtx(stream, &found_green));
  EXPECT_EQ(found_green, green.get());
  EXPECT_OK(Drv().cuStreamGetCtx(stream, &found));
  EXPECT_EQ(found, green.Current());
  const Stream other;
  EXPECT_OK(Drv().cuStreamGetGreenCtx(other, &found_green));
  EXPECT_EQ(found_green, nullptr);
  // What is made while it is current is the primary context's: it outlives it.
  EXPECT_OK(Drv().cuCtxPushCurrent_v2(green.Current()));
  CUstream made = nullptr;
  EXPECT_OK(Drv().cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
  EXPECT_OK(Drv().cuStreamGetGreenCtx(made, &found_green));
  EXPECT_EQ(found_green, green.get());
  EXPECT_OK(Drv().cuStreamGetGreenCtx(nullptr, &found_green));
  EXPECT_EQ(found_green, green.get());
  CUdeviceptr memory = 0;
  EXPECT_OK(Drv().cuMemAlloc_v2(&memory, 4));
  EXPECT_OK(Drv().cuMemsetD32_v2(memory, 7, 1));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
  unsigned word = 0;
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(&word, memory, sizeof word));
  EXPECT_EQ(word, 7u);
  EXPECT_OK(Drv().cuMemFree_v2(memory));
  EXPECT_OK(Drv().cuStreamDestroy_v2(made));
  EXPECT_OK(Drv().cuStreamDestroy_v2(stream));
}

API_TEST(GreenContextTest, AnEventStandsForTheWorkOfAllItsStreams) {
  CUdevResource group = Smallest(Whole());
  const Green green(device(), &group, 1);
  const Event event(CU_EVENT_DISABLE_TIMING);
  const CUstream one = green.NewStream();
  const CUstream two = green.NewStream();
  const Stream apart;
  {
    StreamGate gate(two);
    EXPECT_OK(Drv().cuGreenCtxRecordEvent(green, event));
    EXPECT_OK(Drv().cuStreamSynchronize(one));
    EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuEventQuery(event));
    EXPECT_FALSE(gate.timed_out());
  }
  EXPECT_OK(Drv().cuEventSynchronize(event));
  // All of them wait for an event, streams that are made later included.
  {
    StreamGate gate(apart);
    EXPECT_OK(Drv().cuEventRecord(event, apart));
    EXPECT_OK(Drv().cuGreenCtxWaitEvent(green, event));
    const CUstream later = green.NewStream();
    EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(one));
    EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(later));
    EXPECT_FALSE(gate.timed_out());
    gate.Open();
    EXPECT_OK(Drv().cuStreamSynchronize(later));
    EXPECT_OK(Drv().cuStreamDestroy_v2(later));
  }
  EXPECT_OK(Drv().cuStreamDestroy_v2(one));
  EXPECT_OK(Drv().cuStreamDestroy_v2(two));
}

API_TEST(GreenContextTest, SynchronisingItWaitsForItsStreamsOnly) {
  CUdevResource group = Smallest(Whole());
  const Green green(device(), &group, 1);
  const CUstream stream = green.NewStream();
  const DeviceBuffer word(sizeof(unsigned));
  word.Fill(0);
  EXPECT_OK(Drv().cuCtxSynchronize());
  const Stream apart;
  {
    StreamGate gate(apart);
    EXPECT_OK(Drv().cuMemsetD32Async(word, 5, 1, stream));
    EXPECT_OK(Drv().cuCtxSynchronize_v2(green.Current()));
    EXPECT_OK(Drv().cuStreamQuery(stream));
    EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(apart));
    EXPECT_FALSE(gate.timed_out());
  }
  EXPECT_EQ(word.ReadWord(), 5u);
  EXPECT_OK(Drv().cuStreamDestroy_v2(stream));
}

// Streams made as blocking ones while it is current are ordered with its default stream.
API_TEST(GreenContextTest, ItsDefaultStreamOrdersItsBlockingStreams) {
  SKIP_ON_ORACLE("the reference does not say what a blocking stream is in a green context");
  CUdevResource group = Smallest(Whole());
  const Green green(device(), &group, 1);
  EXPECT_OK(Drv().cuCtxPushCurrent_v2(green.Current()));
  CUstream blocking = nullptr;
  EXPECT_OK(Drv().cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  {
    StreamGate gate(blocking);
    EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(nullptr));
    EXPECT_FALSE(gate.timed_out());
  }
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_OK(Drv().cuStreamDestroy_v2(blocking));
  EXPECT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
}

API_TEST(GreenContextTest, ItsNumberIsItsOwn) {
  CUdevResource whole = Whole();
  CUdevResource group = Smallest(whole);
  const Green one(device(), &group, 1);
  const Green two(device(), &group, 1);
  unsigned long long first = 0, second = 0, current = 0;
  EXPECT_OK(Drv().cuGreenCtxGetId(one, &first));
  EXPECT_OK(Drv().cuGreenCtxGetId(two, &second));
  EXPECT_NE(first, second);
  EXPECT_OK(Drv().cuCtxPushCurrent_v2(two.Current()));
  EXPECT_OK(Drv().cuGreenCtxGetId(nullptr, &current));
  EXPECT_EQ(current, second);
  EXPECT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuGreenCtxGetId(one, nullptr));
}

API_TEST(GreenContextTest, StreamsEndWithTheirGreenContext) {
  CUdevResource group = Smallest(Whole());
  Green green(device(), &group, 1);
  const CUstream stream = green.NewStream();
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  const CUgreenCtx handle = green.get();
  const CUcontext current = green.Current();
  EXPECT_OK(green.Destroy());
  EXPECT_RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, Drv().cuStreamQuery(stream));
  EXPECT_RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, Drv().cuStreamDestroy_v2(stream));
  SKIP_ON_ORACLE("it follows handles of green contexts that are gone");
  EXPECT_RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, Drv().cuCtxSetCurrent(current));
  CUcontext found = nullptr;
  EXPECT_RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, Drv().cuCtxFromGreenCtx(&found, handle));
  EXPECT_RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, Drv().cuGreenCtxDestroy(handle));
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, Drv().cuGreenCtxDestroy(nullptr));
}

}  // namespace
}  // namespace consort::tests::api
