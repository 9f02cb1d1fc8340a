// SPDX-License-Identifier: Apache-2.0
// Names and texts of results. Source: CUDA Driver API reference 13.0, "Error Handling" (unknown
// code: INVALID_VALUE and the pointer set to NULL); texts as every driver since 11 gives them.
#include <cstring>
#include <set>
#include <string>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using ErrorTest = UninitializedTest;

// One code of old (deprecated since 3.2) and one newer than some drivers of the 13.0 line: a driver
// may not recognize or not describe them.
bool MayBeUnknown(CUresult code) {
  return code == CUDA_ERROR_CONTEXT_ALREADY_CURRENT || code == CUDA_ERROR_KEY_ROTATION;
}

API_TEST(ErrorTest, NameOfEveryCodeIsItsEnumerator) {
  for (const NamedResult& known : AllResults()) {
    const char* name = nullptr;
    const CUresult result = Drv().cuGetErrorName(known.result, &name);
    if (MayBeUnknown(known.result) && result == CUDA_ERROR_INVALID_VALUE) continue;
    EXPECT_RESULT(CUDA_SUCCESS, result) << known.name;
    EXPECT_STREQ(name, known.name);
  }
}

API_TEST(ErrorTest, EveryCodeHasAText) {
  for (const NamedResult& known : AllResults()) {
    const char* text = nullptr;
    const CUresult result = Drv().cuGetErrorString(known.result, &text);
    if (MayBeUnknown(known.result)) continue;
    EXPECT_RESULT(CUDA_SUCCESS, result) << known.name;
    ASSERT_NE(text, nullptr) << known.name;
    EXPECT_GT(std::strlen(text), 2u) << known.name;
  }
}

API_TEST(ErrorTest, TextsDiffer) {
  std::set<std::string> texts;
  for (const NamedResult& known : AllResults()) {
    const char* text = nullptr;
    if (Drv().cuGetErrorString(known.result, &text) == CUDA_SUCCESS) texts.insert(text);
  }
  // A few texts are shared by nature; most are not.
  EXPECT_GT(texts.size(), static_cast<size_t>(AllResults().count) * 9 / 10);
}

API_TEST(ErrorTest, WellKnownTextsAreLetterForLetter) {
  const struct {
    CUresult result;
    const char* text;
  } expected[] = {
      {CUDA_SUCCESS, "no error"},
      {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
      {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
      {CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
      {CUDA_ERROR_DEINITIALIZED, "driver shutting down"},
      {CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"},
      {CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"},
      {CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"},
      {CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
      {CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"},
      {CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"},
      {CUDA_ERROR_NOT_FOUND, "named symbol not found"},
      {CUDA_ERROR_NOT_READY, "device not ready"},
      {CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
      {CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"},
      {CUDA_ERROR_NOT_SUPPORTED, "operation not supported"},
      {CUDA_ERROR_UNKNOWN, "unknown error"},
  };
  for (const auto& one : expected) {
    const char* text = nullptr;
    EXPECT_OK(Drv().cuGetErrorString(one.result, &text));
    EXPECT_STREQ(text, one.text) << ResultName(one.result);
  }
}

API_TEST(ErrorTest, UnknownCodeHasNoName) {
  for (int code : {9, 99, 9999, -1}) {
    const char* name = "untouched";
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  Drv().cuGetErrorName(static_cast<CUresult>(code), &name))
        << code;
    EXPECT_EQ(name, nullptr) << code;
  }
}

API_TEST(ErrorTest, UnknownCodeHasNoText) {
  for (int code : {9, 99, 9999, -1}) {
    const char* text = "untouched";
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  Drv().cuGetErrorString(static_cast<CUresult>(code), &text))
        << code;
    EXPECT_EQ(text, nullptr) << code;
  }
}

API_TEST(ErrorTest, NullOutputIsRefused) {
  SKIP_ON_ORACLE("driver 580 writes through a null output");
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuGetErrorName(CUDA_SUCCESS, nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuGetErrorString(CUDA_SUCCESS, nullptr));
}

API_TEST(ErrorTest, TextsStayWhereTheyAre) {
  const char* first = nullptr;
  const char* second = nullptr;
  ASSERT_OK(Drv().cuGetErrorString(CUDA_ERROR_INVALID_VALUE, &first));
  const std::string copy = first;
  for (const NamedResult& known : AllResults()) Drv().cuGetErrorString(known.result, &second);
  EXPECT_EQ(copy, first) << "a text must outlive later calls";
}

}  // namespace
}  // namespace consort::tests::api
