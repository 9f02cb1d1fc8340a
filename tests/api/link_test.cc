// SPDX-License-Identifier: Apache-2.0
// The just-in-time linker. Source: CUDA Driver API reference 13.0, "Module Management" (cuLink*),
// CUjit_option, CUjitInputType. Which call of a link says that a symbol is missing or twice there,
// and by which error, the reference leaves open.
#include <cstring>
#include <string>
#include <vector>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using LinkTest = ContextTest;

constexpr char kHead[] = ".version 7.0\n.target sm_75\n.address_size 64\n";

// A link with both logs and the time.
class Link {
 public:
  Link() {
    Require(Drv().cuLinkCreate_v2(kOptionCount, options_, values_, &state_), "cuLinkCreate");
  }
  ~Link() {
    if (state_ != nullptr) Drv().cuLinkDestroy(state_);
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  CUlinkState get() const { return state_; }
  CUresult Add(CUjitInputType type, const Image& image, const char* name) {
    return Drv().cuLinkAddData_v2(state_, type, const_cast<unsigned char*>(image.data),
                                  image.bytes + (type == CU_JIT_INPUT_PTX ? 1 : 0), name, 0,
                                  nullptr, nullptr);
  }
  CUresult AddPtx(const std::string& text, const char* name) {
    return Add(CU_JIT_INPUT_PTX,
               {reinterpret_cast<const unsigned char*>(text.c_str()), text.size()}, name);
  }
  CUresult Complete() { return Drv().cuLinkComplete(state_, &cubin_, &bytes_); }
  CUresult Destroy() {
    const CUresult result = Drv().cuLinkDestroy(state_);
    state_ = nullptr;
    return result;
  }

  // Of the first call that fails, of adding the inputs a, b, ... and completing.
  CUresult Try(const std::vector<std::string>& inputs) {
    char name[] = "a";
    for (const std::string& input : inputs) {
      const CUresult result = AddPtx(input, name);
      if (result != CUDA_SUCCESS) return result;
      ++name[0];
    }
    return Complete();
  }

  const void* cubin() const { return cubin_; }
  size_t bytes() const { return bytes_; }
  std::string errors() const { return error_; }
  unsigned error_bytes() const {
    return static_cast<unsigned>(reinterpret_cast<uintptr_t>(values_[3]));
  }
  unsigned info_bytes() const {
    return static_cast<unsigned>(reinterpret_cast<uintptr_t>(values_[1]));
  }
  float wall_time() const {
    float milliseconds = 0;
    std::memcpy(&milliseconds, &values_[4], sizeof milliseconds);
    return milliseconds;
  }
  static constexpr size_t kLogBytes = 8192;

 private:
  static constexpr unsigned kOptionCount = 5;
  char info_[kLogBytes] = {};
  char error_[kLogBytes] = {};
  CUjit_option options_[kOptionCount] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                                         CU_JIT_ERROR_LOG_BUFFER,
                                         CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_WALL_TIME};
  void* values_[kOptionCount] = {info_, reinterpret_cast<void*>(sizeof info_), error_,
                                 reinterpret_cast<void*>(sizeof error_), nullptr};
  CUlinkState state_ = nullptr;
  void* cubin_ = nullptr;
  size_t bytes_ = 0;
};

// A module of what was linked.
class Linked {
 public:
  explicit Linked(const Link& link) {
    Require(Drv().cuModuleLoadData(&module_, link.cubin()), "cuModuleLoadData of what was linked");
  }
  ~Linked() { Drv().cuModuleUnload(module_); }
  Linked(const Linked&) = delete;
  Linked& operator=(const Linked&) = delete;
  CUfunction Function(const char* name) const {
    CUfunction function = nullptr;
    Require(Drv().cuModuleGetFunction(&function, module_, name), "cuModuleGetFunction");
    return function;
  }
  CUmodule get() const { return module_; }

 private:
  CUmodule module_ = nullptr;
};

// linkmain.cu and linkhelper.cu together.
void ExpectBothUnits(const Link& link) {
  Linked linked(link);
  const CUfunction kernel = linked.Function("linked");
  DeviceBuffer out(8);
  ASSERT_OK(Launch(kernel, 1, 1, nullptr, out.get(), 4u));
  EXPECT_EQ(out.Read<unsigned>(2), (std::vector<unsigned>{4 * 2 * 3 + 500 + 1000, 4 + 1 + 10}));
  ASSERT_OK(Launch(kernel, 1, 1, nullptr, out.get(), 5u));
  EXPECT_EQ(out.Read<unsigned>(2), (std::vector<unsigned>{5 * 2 * 3 + 600 + 1000, 5 + 1 + 20}));
  // One variable for both units, which the host finds by its name.
  CUdeviceptr factor = 0;
  size_t bytes = 0;
  ASSERT_OK(Drv().cuModuleGetGlobal_v2(&factor, &bytes, linked.get(), "factor"));
  EXPECT_EQ(bytes, 4u);
  const unsigned seven = 7;
  ASSERT_OK(Drv().cuMemcpyHtoD_v2(factor, &seven, sizeof seven));
  ASSERT_OK(Launch(kernel, 1, 1, nullptr, out.get(), 4u));
  EXPECT_EQ(out.ReadWord(), 4u * 2 * 7 + 500 + 1000);
}

API_TEST(LinkTest, OneInputRuns) {
  Link link;
  ASSERT_OK(link.Add(CU_JIT_INPUT_PTX, kBasicPtx, "basic"));
  ASSERT_OK(link.Complete());
  ASSERT_NE(link.cubin(), nullptr);
  EXPECT_GT(link.bytes(), 0u);
  Linked linked(link);
  DeviceBuffer out(4);
  ASSERT_OK(Launch(linked.Function("store"), 1, 1, nullptr, out.get(), 31337u));
  EXPECT_EQ(out.ReadWord(), 31337u);
  EXPECT_OK(link.Destroy());
  // The module does not need what it was loaded from.
  ASSERT_OK(Launch(linked.Function("store"), 1, 1, nullptr, out.get(), 5u));
  EXPECT_EQ(out.ReadWord(), 5u);
}

API_TEST(LinkTest, TwoUnitsUseEachOther) {
  Link link;
  ASSERT_OK(link.Add(CU_JIT_INPUT_PTX, kLinkMainPtx, "main"));
  ASSERT_OK(link.Add(CU_JIT_INPUT_PTX, kLinkHelperPtx, "helper"));
  ASSERT_OK(link.Complete());
  ExpectBothUnits(link);
}

API_TEST(LinkTest, TheOrderOfInputsDoesNotMatter) {
  Link link;
  ASSERT_OK(link.Add(CU_JIT_INPUT_PTX, kLinkHelperPtx, "helper"));
  ASSERT_OK(link.Add(CU_JIT_INPUT_PTX, kLinkMainPtx, "main"));
  ASSERT_OK(link.Complete());
  ExpectBothUnits(link);
}

API_TEST(LinkTest, FatBinariesAreInputs) {
  Link link;
  ASSERT_OK(link.Add(CU_JIT_INPUT_PTX, kLinkMainPtx, nullptr));
  ASSERT_OK(link.Add(CU_JIT_INPUT_FATBINARY, kLinkHelperFatbin, "helper"));
  ASSERT_OK(link.Complete());
  ExpectBothUnits(link);
}

API_TEST(LinkTest, CubinsAreInputsOnTheirArchitecture) {
  Link link;
  ASSERT_OK(link.Add(CU_JIT_INPUT_PTX, kLinkMainPtx, "main"));
  const CUresult result = link.Add(CU_JIT_INPUT_CUBIN, kLinkHelperCubin, "helper");
  if (Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) == 9 && result == CUDA_SUCCESS) {
    ASSERT_OK(link.Complete());
    ExpectBothUnits(link);
    return;
  }
  EXPECT_ONE_OF(result, CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_INVALID_IMAGE);
}

API_TEST(LinkTest, FilesAreInputs) {
  TemporaryFile main(kLinkMainPtx);
  TemporaryFile helper(kLinkHelperFatbin);
  Link link;
  ASSERT_OK(Drv().cuLinkAddFile_v2(link.get(), CU_JIT_INPUT_PTX, main.path(), 0, nullptr, nullptr));
  ASSERT_OK(Drv().cuLinkAddFile_v2(link.get(), CU_JIT_INPUT_FATBINARY, helper.path(), 0, nullptr,
                                   nullptr));
  ASSERT_OK(link.Complete());
  ExpectBothUnits(link);
}

API_TEST(LinkTest, AMissingFileIsReported) {
  Link link;
  EXPECT_RESULT(CUDA_ERROR_FILE_NOT_FOUND,
                Drv().cuLinkAddFile_v2(link.get(), CU_JIT_INPUT_PTX, "/nonexistent/input.ptx", 0,
                                       nullptr, nullptr));
}

API_TEST(LinkTest, BrokenPtxIsRefusedAndTheLogSaysWhere) {
  Link link;
  EXPECT_RESULT(
      CUDA_ERROR_INVALID_PTX,
      link.AddPtx(std::string(kHead) + ".visible .entry broken()\n{\n  .reg .b32 %r<;\n  ret;\n}\n",
                  "broken"));
  EXPECT_NE(link.errors().find("line"), std::string::npos) << link.errors();
  EXPECT_GT(link.error_bytes(), 0u);
  EXPECT_LE(link.error_bytes(), Link::kLogBytes);
}

API_TEST(LinkTest, ASymbolThatIsNowhereIsNamed) {
  Link link;
  EXPECT_NE(
      link.Try({std::string(kHead) + ".extern .func nowhere_to_be_found();\n"
                                     ".visible .entry k() { call nowhere_to_be_found; ret; }\n",
                std::string(kHead) + ".visible .func other() { ret; }\n"}),
      CUDA_SUCCESS);
  EXPECT_NE(link.errors().find("nowhere_to_be_found"), std::string::npos) << link.errors();
}

API_TEST(LinkTest, ASymbolThatIsThereTwiceIsNamed) {
  const std::string unit = std::string(kHead) + ".visible .func duplicate() { ret; }\n";
  Link link;
  EXPECT_NE(link.Try({unit + ".visible .entry k() { call duplicate; ret; }\n", unit}),
            CUDA_SUCCESS);
  EXPECT_NE(link.errors().find("duplicate"), std::string::npos) << link.errors();
}

API_TEST(LinkTest, AVariableThatIsThereTwiceIsNamed) {
  const std::string unit = std::string(kHead) + ".visible .global .u32 twofold = 1;\n";
  Link link;
  EXPECT_NE(link.Try({unit, unit}), CUDA_SUCCESS);
  EXPECT_NE(link.errors().find("twofold"), std::string::npos) << link.errors();
}

API_TEST(LinkTest, OfWeakFunctionsOneIsTaken) {
  const std::string weak =
      ".weak .func (.param .b32 r) number() {\n"
      "  .reg .b32 %r<2>;\n  mov.u32 %r1, 42;\n"
      "  st.param.b32 [r], %r1;\n  ret;\n}\n";
  const std::string kernel =
      ".visible .entry ask(.param .u64 out) {\n"
      "  .reg .b32 %r<2>;\n  .reg .b64 %rd<3>;\n"
      "  ld.param.u64 %rd1, [out];\n  cvta.to.global.u64 %rd2, %rd1;\n"
      "  { .param .b32 value;\n  call (value), number;\n  ld.param.b32 %r1, [value]; }\n"
      "  st.global.u32 [%rd2], %r1;\n  ret;\n}\n";
  Link link;
  ASSERT_OK(link.Try({kHead + weak + kernel, kHead + weak}));
  Linked linked(link);
  DeviceBuffer out(4);
  ASSERT_OK(Launch(linked.Function("ask"), 1, 1, nullptr, out.get()));
  EXPECT_EQ(out.ReadWord(), 42u);
}

API_TEST(LinkTest, LogsAndTimeAreWritten) {
  Link link;
  ASSERT_OK(link.Add(CU_JIT_INPUT_PTX, kLinkMainPtx, "main"));
  ASSERT_OK(link.Add(CU_JIT_INPUT_PTX, kLinkHelperPtx, "helper"));
  ASSERT_OK(link.Complete());
  EXPECT_EQ(link.errors(), "");
  EXPECT_EQ(link.error_bytes(), 0u) << "the size option returns the amount of log";
  EXPECT_LE(link.info_bytes(), Link::kLogBytes);
  if (IsOracle()) {
    EXPECT_GE(link.wall_time(), 0.0f);
  } else {
    EXPECT_GT(link.wall_time(), 0.0f);
  }
}

API_TEST(LinkTest, OptionsAreNotNeeded) {
  CUlinkState state = nullptr;
  ASSERT_OK(Drv().cuLinkCreate_v2(0, nullptr, nullptr, &state));
  EXPECT_OK(Drv().cuLinkAddData_v2(state, CU_JIT_INPUT_PTX,
                                   const_cast<unsigned char*>(kBasicPtx.data), kBasicPtx.bytes + 1,
                                   nullptr, 0, nullptr, nullptr));
  void* cubin = nullptr;
  size_t bytes = 0;
  EXPECT_OK(Drv().cuLinkComplete(state, &cubin, &bytes));
  EXPECT_NE(cubin, nullptr);
  EXPECT_GT(bytes, 0u);
  EXPECT_OK(Drv().cuLinkDestroy(state));
}

API_TEST(LinkTest, AResultOfManyPiecesIsWhole) {
  constexpr unsigned kBytes = 1 << 20;
  std::string text =
      std::string(kHead) + ".visible .global .align 4 .b8 many[" + std::to_string(kBytes) + "] = {";
  for (unsigned i = 0; i < kBytes; ++i) {
    if (i != 0) text += ',';
    text += std::to_string(i * 7 % 251);
  }
  text += "};\n.visible .entry k() { ret; }\n";
  Link link;
  ASSERT_OK(link.Try({text}));
  EXPECT_GT(link.bytes(), kBytes);
  Linked linked(link);
  CUdeviceptr address = 0;
  size_t bytes = 0;
  ASSERT_OK(Drv().cuModuleGetGlobal_v2(&address, &bytes, linked.get(), "many"));
  ASSERT_EQ(bytes, kBytes);
  std::vector<unsigned char> found(kBytes);
  ASSERT_OK(Drv().cuMemcpyDtoH_v2(found.data(), address, kBytes));
  unsigned wrong = 0;
  for (unsigned i = 0; i < kBytes; ++i) wrong += found[i] != i * 7 % 251 ? 1 : 0;
  EXPECT_EQ(wrong, 0u);
}

API_TEST(LinkTest, TwoLinksAreApart) {
  Link one;
  Link other;
  ASSERT_OK(one.Add(CU_JIT_INPUT_PTX, kLinkMainPtx, "main"));
  ASSERT_OK(other.Add(CU_JIT_INPUT_PTX, kBasicPtx, "basic"));
  ASSERT_OK(one.Add(CU_JIT_INPUT_PTX, kLinkHelperPtx, "helper"));
  ASSERT_OK(other.Complete());
  ASSERT_OK(one.Complete());
  ExpectBothUnits(one);
}

API_TEST(LinkTest, NullsAndStaleStatesAreRefused) {
  SKIP_ON_ORACLE("NVIDIA's library follows them");
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuLinkCreate_v2(0, nullptr, nullptr, nullptr));
  CUlinkState state = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuLinkCreate_v2(1, nullptr, nullptr, &state));
  ASSERT_OK(Drv().cuLinkCreate_v2(0, nullptr, nullptr, &state));
  char text[] = "x";
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, nullptr,
                                                                 1, nullptr, 0, nullptr, nullptr));
  EXPECT_RESULT(
      CUDA_ERROR_INVALID_VALUE,
      Drv().cuLinkAddData_v2(state, CU_JIT_NUM_INPUT_TYPES, text, 1, nullptr, 0, nullptr, nullptr));
  void* cubin = nullptr;
  size_t bytes = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuLinkComplete(state, nullptr, &bytes));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuLinkComplete(state, &cubin, nullptr));
  EXPECT_OK(Drv().cuLinkDestroy(state));
  EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, Drv().cuLinkDestroy(state));
  EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, Drv().cuLinkComplete(state, &cubin, &bytes));
  EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, Drv().cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, text, 1,
                                                                  nullptr, 0, nullptr, nullptr));
}

}  // namespace
}  // namespace consort::tests::api
