// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/driver/state.h"

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "device/cpu/driver/options.h"
#include "device/cpu/driver/thread_state.h"

namespace consort::cpu {
namespace {

// Published by cuInit's release store; read with acquire by every entry point.
constinit std::atomic<State*> global_state{nullptr};
constinit absl::Mutex init_mutex(absl::kConstInit);

std::string_view Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

CUresult Initialize() {
  absl::MutexLock lock(&init_mutex);
  if (GetState() != nullptr) return CUDA_SUCCESS;
  std::string devices(Environment("CONSORT_CPU_DEVICES"));
  if (!devices.empty() && devices[0] == '/') {
    std::ifstream file(devices);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (file.fail() || text.find('=') == std::string::npos) {
      LOG(ERROR) << "CONSORT_CPU_DEVICES: no list of devices in " << devices;
      return CUDA_ERROR_INVALID_VALUE;
    }
    devices = text;
  }
  absl::StatusOr<Options> options = ParseOptions(devices, Environment("CONSORT_CPU_MEMORY"));
  if (!options.ok()) {
    LOG(ERROR) << options.status().message();
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (options->devices.empty()) return CUDA_ERROR_NO_DEVICE;
  auto state = std::make_unique<State>();
  const absl::StatusOr<GuardOptions> guards =
      ParseGuards(Environment("CONSORT_CPU_SANITIZE"), Environment("CONSORT_CPU_KERNEL_LIMIT"));
  if (!guards.ok()) {
    LOG(ERROR) << guards.status().message();
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (guards->checks_memory) {
    state->address_space.RememberFreed();
    state->load_options.memory = &state->address_space;
  }
  state->load_options.time_limit = guards->kernel_limit;
  state->load_options.cache_directory = CacheDirectory(
      {std::getenv("CONSORT_CPU_CACHE"), std::getenv("XDG_CACHE_HOME"), std::getenv("HOME")});
  for (DeviceOptions& device_options : options->devices) {
    const int index = static_cast<int>(state->devices.size());
    auto device = std::make_unique<Device>(index, std::move(device_options));
    // The handle exists before the context is retained: cudart makes it current first.
    device->primary = state->contexts.Insert(nullptr);
    state->contexts.Replace(
        device->primary,
        std::make_shared<Context>(device.get(), device->primary, 0, /*active=*/false));
    state->devices.push_back(std::move(device));
  }
  global_state.store(state.release(), std::memory_order_release);
  return CUDA_SUCCESS;
}

}  // namespace

State* GetState() { return global_state.load(std::memory_order_acquire); }

CUresult CurrentContext(State& state, std::shared_ptr<Context>* context) {
  const CUcontext current = ThisThread().current();
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *context = state.contexts.Find(current);
  if (*context == nullptr || !(*context)->active()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return CUDA_SUCCESS;
}

CUresult ResolveStream(State& state, CUstream handle, std::shared_ptr<Stream>* stream) {
  if (handle != nullptr && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
    *stream = state.streams.Find(handle);
    return *stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  }
  std::shared_ptr<Context> context;
  if (const CUresult result = CurrentContext(state, &context); result != CUDA_SUCCESS) {
    return result;
  }
  *stream = handle == CU_STREAM_PER_THREAD ? ThisThread().DefaultStream(context)
                                           : context->LegacyStream();
  return CUDA_SUCCESS;
}

bool InHostFunction() { return ThisThread().in_host_function; }

}  // namespace consort::cpu

using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuInit(unsigned int Flags) {
  if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return Guarded(Initialize);
}

CUresult CUDAAPI cuDriverGetVersion(int* driverVersion) {
  if (driverVersion == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *driverVersion = kDriverVersion;
  return CUDA_SUCCESS;
}

}  // extern "C"
