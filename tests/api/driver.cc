// SPDX-License-Identifier: Apache-2.0
#include "tests/api/driver.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace consort::tests::api {
namespace {

// Written by OpenDriver before any other thread exists. Never closed: drivers do not support it
// (their exit handlers run after main).
void* library = nullptr;
DriverTable table;

#define CONSORT_TEST_RESULT(name) {name, #name},
constexpr NamedResult kResults[] = {
    CONSORT_TEST_RESULT(CUDA_SUCCESS) CONSORT_TEST_RESULT(CUDA_ERROR_INVALID_VALUE) CONSORT_TEST_RESULT(
        CUDA_ERROR_OUT_OF_MEMORY) CONSORT_TEST_RESULT(CUDA_ERROR_NOT_INITIALIZED)
        CONSORT_TEST_RESULT(CUDA_ERROR_DEINITIALIZED) CONSORT_TEST_RESULT(CUDA_ERROR_PROFILER_DISABLED) CONSORT_TEST_RESULT(
            CUDA_ERROR_PROFILER_NOT_INITIALIZED) CONSORT_TEST_RESULT(CUDA_ERROR_PROFILER_ALREADY_STARTED)
            CONSORT_TEST_RESULT(CUDA_ERROR_PROFILER_ALREADY_STOPPED) CONSORT_TEST_RESULT(
                CUDA_ERROR_STUB_LIBRARY) CONSORT_TEST_RESULT(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER)
                CONSORT_TEST_RESULT(CUDA_ERROR_DEVICE_UNAVAILABLE) CONSORT_TEST_RESULT(
                    CUDA_ERROR_NO_DEVICE) CONSORT_TEST_RESULT(CUDA_ERROR_INVALID_DEVICE)
                    CONSORT_TEST_RESULT(CUDA_ERROR_DEVICE_NOT_LICENSED) CONSORT_TEST_RESULT(
                        CUDA_ERROR_INVALID_IMAGE) CONSORT_TEST_RESULT(CUDA_ERROR_INVALID_CONTEXT)
                        CONSORT_TEST_RESULT(CUDA_ERROR_CONTEXT_ALREADY_CURRENT) CONSORT_TEST_RESULT(
                            CUDA_ERROR_MAP_FAILED) CONSORT_TEST_RESULT(CUDA_ERROR_UNMAP_FAILED)
                            CONSORT_TEST_RESULT(CUDA_ERROR_ARRAY_IS_MAPPED) CONSORT_TEST_RESULT(
                                CUDA_ERROR_ALREADY_MAPPED) CONSORT_TEST_RESULT(CUDA_ERROR_NO_BINARY_FOR_GPU)
                                CONSORT_TEST_RESULT(CUDA_ERROR_ALREADY_ACQUIRED) CONSORT_TEST_RESULT(
                                    CUDA_ERROR_NOT_MAPPED) CONSORT_TEST_RESULT(CUDA_ERROR_NOT_MAPPED_AS_ARRAY)
                                    CONSORT_TEST_RESULT(CUDA_ERROR_NOT_MAPPED_AS_POINTER) CONSORT_TEST_RESULT(
                                        CUDA_ERROR_ECC_UNCORRECTABLE) CONSORT_TEST_RESULT(CUDA_ERROR_UNSUPPORTED_LIMIT)
                                        CONSORT_TEST_RESULT(CUDA_ERROR_CONTEXT_ALREADY_IN_USE) CONSORT_TEST_RESULT(
                                            CUDA_ERROR_PEER_ACCESS_UNSUPPORTED) CONSORT_TEST_RESULT(CUDA_ERROR_INVALID_PTX)
                                            CONSORT_TEST_RESULT(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT) CONSORT_TEST_RESULT(
                                                CUDA_ERROR_NVLINK_UNCORRECTABLE) CONSORT_TEST_RESULT(CUDA_ERROR_JIT_COMPILER_NOT_FOUND)
                                                CONSORT_TEST_RESULT(CUDA_ERROR_UNSUPPORTED_PTX_VERSION) CONSORT_TEST_RESULT(
                                                    CUDA_ERROR_JIT_COMPILATION_DISABLED)
                                                    CONSORT_TEST_RESULT(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY) CONSORT_TEST_RESULT(
                                                        CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC)
                                                        CONSORT_TEST_RESULT(CUDA_ERROR_CONTAINED) CONSORT_TEST_RESULT(
                                                            CUDA_ERROR_INVALID_SOURCE)
                                                            CONSORT_TEST_RESULT(CUDA_ERROR_FILE_NOT_FOUND) CONSORT_TEST_RESULT(
                                                                CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND) CONSORT_TEST_RESULT(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED) CONSORT_TEST_RESULT(CUDA_ERROR_OPERATING_SYSTEM) CONSORT_TEST_RESULT(CUDA_ERROR_INVALID_HANDLE) CONSORT_TEST_RESULT(CUDA_ERROR_ILLEGAL_STATE) CONSORT_TEST_RESULT(CUDA_ERROR_LOSSY_QUERY) CONSORT_TEST_RESULT(CUDA_ERROR_NOT_FOUND) CONSORT_TEST_RESULT(CUDA_ERROR_NOT_READY) CONSORT_TEST_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS) CONSORT_TEST_RESULT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES) CONSORT_TEST_RESULT(CUDA_ERROR_LAUNCH_TIMEOUT) CONSORT_TEST_RESULT(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING) CONSORT_TEST_RESULT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) CONSORT_TEST_RESULT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) CONSORT_TEST_RESULT(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE) CONSORT_TEST_RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED) CONSORT_TEST_RESULT(CUDA_ERROR_ASSERT) CONSORT_TEST_RESULT(CUDA_ERROR_TOO_MANY_PEERS)
                                                                CONSORT_TEST_RESULT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) CONSORT_TEST_RESULT(
                                                                    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
                                                                    CONSORT_TEST_RESULT(
                                                                        CUDA_ERROR_HARDWARE_STACK_ERROR) CONSORT_TEST_RESULT(CUDA_ERROR_ILLEGAL_INSTRUCTION)
                                                                        CONSORT_TEST_RESULT(CUDA_ERROR_MISALIGNED_ADDRESS) CONSORT_TEST_RESULT(
                                                                            CUDA_ERROR_INVALID_ADDRESS_SPACE)
                                                                            CONSORT_TEST_RESULT(CUDA_ERROR_INVALID_PC) CONSORT_TEST_RESULT(
                                                                                CUDA_ERROR_LAUNCH_FAILED) CONSORT_TEST_RESULT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)
                                                                                CONSORT_TEST_RESULT(CUDA_ERROR_TENSOR_MEMORY_LEAK) CONSORT_TEST_RESULT(
                                                                                    CUDA_ERROR_NOT_PERMITTED)
                                                                                    CONSORT_TEST_RESULT(
                                                                                        CUDA_ERROR_NOT_SUPPORTED)
                                                                                        CONSORT_TEST_RESULT(
                                                                                            CUDA_ERROR_SYSTEM_NOT_READY)
                                                                                            CONSORT_TEST_RESULT(
                                                                                                CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
                                                                                                CONSORT_TEST_RESULT(
                                                                                                    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE)
                                                                                                    CONSORT_TEST_RESULT(CUDA_ERROR_MPS_CONNECTION_FAILED) CONSORT_TEST_RESULT(CUDA_ERROR_MPS_RPC_FAILURE) CONSORT_TEST_RESULT(CUDA_ERROR_MPS_SERVER_NOT_READY) CONSORT_TEST_RESULT(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED) CONSORT_TEST_RESULT(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED) CONSORT_TEST_RESULT(CUDA_ERROR_MPS_CLIENT_TERMINATED) CONSORT_TEST_RESULT(CUDA_ERROR_CDP_NOT_SUPPORTED) CONSORT_TEST_RESULT(CUDA_ERROR_CDP_VERSION_MISMATCH) CONSORT_TEST_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) CONSORT_TEST_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) CONSORT_TEST_RESULT(CUDA_ERROR_STREAM_CAPTURE_MERGE) CONSORT_TEST_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)
                                                                                                        CONSORT_TEST_RESULT(
                                                                                                            CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
                                                                                                            CONSORT_TEST_RESULT(
                                                                                                                CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
                                                                                                                CONSORT_TEST_RESULT(
                                                                                                                    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
                                                                                                                    CONSORT_TEST_RESULT(
                                                                                                                        CUDA_ERROR_CAPTURED_EVENT) CONSORT_TEST_RESULT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) CONSORT_TEST_RESULT(CUDA_ERROR_TIMEOUT) CONSORT_TEST_RESULT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE) CONSORT_TEST_RESULT(CUDA_ERROR_EXTERNAL_DEVICE) CONSORT_TEST_RESULT(CUDA_ERROR_INVALID_CLUSTER_SIZE)
                                                                                                                        CONSORT_TEST_RESULT(CUDA_ERROR_FUNCTION_NOT_LOADED) CONSORT_TEST_RESULT(
                                                                                                                            CUDA_ERROR_INVALID_RESOURCE_TYPE)
                                                                                                                            CONSORT_TEST_RESULT(
                                                                                                                                CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)
                                                                                                                                CONSORT_TEST_RESULT(
                                                                                                                                    CUDA_ERROR_KEY_ROTATION)
                                                                                                                                    CONSORT_TEST_RESULT(
                                                                                                                                        CUDA_ERROR_UNKNOWN)};
#undef CONSORT_TEST_RESULT

}  // namespace

const char* OpenDriver() {
  const char* name = std::getenv("CONSORT_TEST_LIBCUDA");
  library =
      dlopen(name != nullptr && name[0] != '\0' ? name : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return dlerror();
#define CONSORT_TEST_LOAD(name) table.name.Set(#name, dlsym(library, #name));
#define CONSORT_TEST_LOAD_OLD(name, type) CONSORT_TEST_LOAD(name)
  CONSORT_TEST_DRIVER_FUNCTIONS(CONSORT_TEST_LOAD, CONSORT_TEST_LOAD_OLD)
#undef CONSORT_TEST_LOAD
#undef CONSORT_TEST_LOAD_OLD
  return "";
}

const DriverTable& Drv() { return table; }

void* DriverSymbol(const char* name) { return dlsym(library, name); }

const char* ResultName(CUresult result) {
  for (const NamedResult& known : kResults) {
    if (known.result == result) return known.name;
  }
  thread_local char other[32];
  std::snprintf(other, sizeof other, "CUresult(%d)", static_cast<int>(result));
  return other;
}

NamedResults AllResults() {
  return {kResults, static_cast<int>(sizeof kResults / sizeof kResults[0])};
}

}  // namespace consort::tests::api
