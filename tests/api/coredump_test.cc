// SPDX-License-Identifier: Apache-2.0
// Settings of GPU core dumps, and the profiler's switches. Source: CUDA Driver API, Coredump
// Attributes Control API, Profiler Control.
#include <unistd.h>

#include <cstring>
#include <string>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

constexpr size_t kTextBytes = 1024;

class CoredumpTest : public ContextTest {
 protected:
  static std::string Name(const char* prefix) {
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    return std::string(prefix) + host + "." + std::to_string(getpid());
  }
  bool Flag(CUcoredumpSettings setting) const {
    bool value = false;
    size_t bytes = sizeof value;
    Require(Drv().cuCoredumpGetAttribute(setting, &value, &bytes), "cuCoredumpGetAttribute");
    return value;
  }
  std::string Text(CUcoredumpSettings setting) const {
    char value[kTextBytes] = {};
    size_t bytes = sizeof value;
    Require(Drv().cuCoredumpGetAttribute(setting, value, &bytes), "cuCoredumpGetAttribute");
    return value;
  }
};

API_TEST_ALONE(CoredumpTest, DefaultsAreTheDocumentedOnes) {
  EXPECT_FALSE(Flag(CU_COREDUMP_ENABLE_ON_EXCEPTION));
  EXPECT_TRUE(Flag(CU_COREDUMP_TRIGGER_HOST));
  EXPECT_FALSE(Flag(CU_COREDUMP_LIGHTWEIGHT));
  EXPECT_FALSE(Flag(CU_COREDUMP_ENABLE_USER_TRIGGER));
  SKIP_ON_ORACLE("it may write the host's name and the process's number as patterns");
  EXPECT_EQ(Text(CU_COREDUMP_FILE), Name("core.cuda."));
  EXPECT_EQ(Text(CU_COREDUMP_PIPE), Name("corepipe.cuda."));
  int flags = -1;
  size_t bytes = sizeof flags;
  EXPECT_OK(Drv().cuCoredumpGetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &bytes));
  EXPECT_EQ(flags, CU_COREDUMP_DEFAULT_FLAGS);
}

API_TEST_ALONE(CoredumpTest, ANullValueAsksForTheSize) {
  size_t bytes = 0;
  EXPECT_OK(Drv().cuCoredumpGetAttribute(CU_COREDUMP_TRIGGER_HOST, nullptr, &bytes));
  EXPECT_EQ(bytes, sizeof(bool));
  EXPECT_OK(Drv().cuCoredumpGetAttributeGlobal(CU_COREDUMP_TRIGGER_HOST, nullptr, &bytes));
  EXPECT_EQ(bytes, sizeof(bool));
  SKIP_ON_ORACLE("the reference gives no sizes of texts");
  EXPECT_OK(Drv().cuCoredumpSetAttributeGlobal(CU_COREDUMP_FILE, nullptr, &bytes));
  EXPECT_EQ(bytes, kTextBytes);
}

API_TEST_ALONE(CoredumpTest, AContextsOwnSettingComesBeforeTheProcesss) {
  bool on = true, off = false;
  size_t bytes = sizeof on;
  EXPECT_OK(Drv().cuCoredumpSetAttributeGlobal(CU_COREDUMP_LIGHTWEIGHT, &on, &bytes));
  EXPECT_TRUE(Flag(CU_COREDUMP_LIGHTWEIGHT));
  EXPECT_OK(Drv().cuCoredumpSetAttribute(CU_COREDUMP_LIGHTWEIGHT, &off, &bytes));
  EXPECT_FALSE(Flag(CU_COREDUMP_LIGHTWEIGHT));
  bool global = false;
  bytes = sizeof global;
  EXPECT_OK(Drv().cuCoredumpGetAttributeGlobal(CU_COREDUMP_LIGHTWEIGHT, &global, &bytes));
  EXPECT_TRUE(global);
  // Another context has none of its own.
  const CreatedContext other(device());
  EXPECT_OK(Drv().cuCtxPushCurrent_v2(other));
  EXPECT_TRUE(Flag(CU_COREDUMP_LIGHTWEIGHT));
  EXPECT_OK(Drv().cuCtxPopCurrent_v2(nullptr));
}

API_TEST_ALONE(CoredumpTest, ATextIsKept) {
  char path[kTextBytes] = "/tmp/core.of.this.case";
  size_t bytes = std::strlen(path) + 1;
  EXPECT_OK(Drv().cuCoredumpSetAttributeGlobal(CU_COREDUMP_FILE, path, &bytes));
  char read[kTextBytes] = {};
  bytes = sizeof read;
  EXPECT_OK(Drv().cuCoredumpGetAttributeGlobal(CU_COREDUMP_FILE, read, &bytes));
  EXPECT_STREQ(read, path);
}

API_TEST_ALONE(CoredumpTest, WhatIsNoSettingIsRefused) {
  bool value = false;
  size_t bytes = sizeof value;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuCoredumpGetAttribute(static_cast<CUcoredumpSettings>(0), &value, &bytes));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuCoredumpSetAttributeGlobal(CU_COREDUMP_MAX, &value, &bytes));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuCoredumpGetAttributeGlobal(CU_COREDUMP_FILE, &value, nullptr));
  EXPECT_ONE_OF(Drv().cuCoredumpSetAttribute(CU_COREDUMP_ENABLE_USER_TRIGGER, &value, &bytes),
                CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
  PopAllContexts();
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT,
                Drv().cuCoredumpGetAttribute(CU_COREDUMP_TRIGGER_HOST, &value, &bytes));
  EXPECT_OK(Drv().cuCtxPushCurrent_v2(context()));
}

API_TEST(CoredumpTest, TheProfilersSwitchesAreHarmless) {
  EXPECT_OK(Drv().cuProfilerStart());
  EXPECT_OK(Drv().cuProfilerStart());
  EXPECT_OK(Drv().cuProfilerStop());
  EXPECT_OK(Drv().cuProfilerStop());
  // "Starting with CUDA 12.0, it always returns error code CUDA_ERROR_NOT_SUPPORTED."
  EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED,
                Drv().cuProfilerInitialize("config", "output", CU_OUT_CSV));
}

}  // namespace
}  // namespace consort::tests::api
