// SPDX-License-Identifier: Apache-2.0
#include "device/driver/driver_loader.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>

#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace consort::device {
namespace {

constexpr char kNvidiaLibrary[] = "libcuda.so.1";
constexpr char kCpuLibrary[] = "libconsort-cpu.so";
// Every Consort guest library has this symbol and no vendor's driver has it: a worker must not open
// the library that sends calls to workers.
constexpr char kGuestLibraryMark[] = "consort_guest_library";
// Of the CPU driver: device/cpu/driver/worker_calls.cc.
constexpr char kChecksMemory[] = "consort_cpu_checks_memory";
constexpr char kPlaced[] = "consort_cpu_allocation_placed";
constexpr char kGone[] = "consort_cpu_allocation_gone";
constexpr char kStreamOutput[] = "consort_cpu_stream_output";
constexpr char kManagedMemory[] = "consort_cpu_managed_memory";
constexpr char kLinks[] = "consort_cpu_links";

// The version in the name of the library's file, libcuda.so.VERSION, which NVIDIA's packages and
// installer give it; libcuda.so.1 is a link to it.
std::string ReleaseOf(void* library) {
  link_map* map = nullptr;
  char path[PATH_MAX];
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || realpath(map->l_name, path) == nullptr) {
    return "";
  }
  const std::string_view file(path);
  constexpr std::string_view kMark = "/libcuda.so.";
  const size_t mark = file.rfind(kMark);
  if (mark == std::string_view::npos) return "";
  const std::string_view version = file.substr(mark + kMark.size());
  return version.find('.') == std::string_view::npos ? "" : std::string(version);
}

// Opens `path` and fills the table. The handle stays open.
absl::StatusOr<LoadedDriver> Open(const std::string& path) {
  // Local: the symbols of a driver must not be found by others in this process.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    return absl::NotFoundError(absl::StrCat("cannot open ", error != nullptr ? error : path));
  }
  if (dlsym(library, kGuestLibraryMark) != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        path,
        " is Consort's guest library, not a driver; the host must not have it in its library "
        "path"));
  }
  LoadedDriver driver;
  driver.library = path;
  driver.release = ReleaseOf(library);
  std::vector<std::string> missing;
  ForEachDriverFunction(driver.table, [&](const char* name, void** slot, bool required) {
    *slot = dlsym(library, name);
    if (*slot == nullptr && required) missing.push_back(name);
  });
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is too old: it has no ", absl::StrJoin(missing, ", ")));
  }
  driver.checks_memory = reinterpret_cast<ChecksMemory*>(dlsym(library, kChecksMemory));
  driver.notes.placed = reinterpret_cast<void (*)(uint64_t, uint64_t)>(dlsym(library, kPlaced));
  driver.notes.gone = reinterpret_cast<void (*)(uint64_t)>(dlsym(library, kGone));
  driver.set_stream_output = reinterpret_cast<SetStreamOutput*>(dlsym(library, kStreamOutput));
  driver.set_managed_memory = reinterpret_cast<SetManagedMemory*>(dlsym(library, kManagedMemory));
  driver.links = reinterpret_cast<CountLinks*>(dlsym(library, kLinks));
  return driver;
}

absl::Status Initialise(LoadedDriver* driver) {
  const CUresult initialised = driver->table.cuInit(0);
  if (initialised != CUDA_SUCCESS) {
    return absl::FailedPreconditionError(
        absl::StrCat(driver->library, ": cuInit: ", ResultName(driver->table, initialised)));
  }
  int version = 0;
  int count = 0;
  if (driver->table.cuDriverGetVersion(&version) != CUDA_SUCCESS ||
      driver->table.cuDeviceGetCount(&count) != CUDA_SUCCESS) {
    return absl::FailedPreconditionError(
        absl::StrCat(driver->library, " answers neither version nor device count"));
  }
  if (count <= 0) {
    return absl::FailedPreconditionError(absl::StrCat(driver->library, " has no device"));
  }
  driver->version = static_cast<uint32_t>(version);
  driver->device_count = static_cast<uint32_t>(count);
  return absl::OkStatus();
}

absl::StatusOr<LoadedDriver> LoadNvidia() {
  ASSIGN_OR_RETURN(LoadedDriver driver, Open(kNvidiaLibrary));
  RETURN_IF_ERROR(Initialise(&driver));
  return driver;
}

absl::StatusOr<LoadedDriver> LoadCpu(const std::string& cpu_folder) {
  absl::StatusOr<LoadedDriver> driver = Open(absl::StrCat(cpu_folder, "/", kCpuLibrary));
  if (driver.status().code() == absl::StatusCode::kNotFound) {
    const absl::Status beside = driver.status();
    driver = Open(kCpuLibrary);
    if (driver.status().code() == absl::StatusCode::kNotFound) {
      return absl::NotFoundError(absl::StrCat(beside.message(), "; ", driver.status().message()));
    }
  }
  RETURN_IF_ERROR(driver.status());
  RETURN_IF_ERROR(Initialise(&*driver));
  if (driver->checks_memory == nullptr || driver->checks_memory() == 0) driver->notes = {};
  driver->cpu = true;
  return driver;
}

}  // namespace

absl::StatusOr<DriverKind> ParseDriverKind(std::string_view text) {
  if (text == "auto") return DriverKind::kAuto;
  if (text == "cpu") return DriverKind::kCpu;
  if (text == "nvidia") return DriverKind::kNvidia;
  return absl::InvalidArgumentError(
      absl::StrCat("device must be auto, cpu or nvidia, not ", std::string(text)));
}

absl::StatusOr<LoadedDriver> LoadDriver(DriverKind kind, const std::string& cpu_folder) {
  if (kind == DriverKind::kCpu) return LoadCpu(cpu_folder);
  absl::StatusOr<LoadedDriver> nvidia = LoadNvidia();
  if (nvidia.ok() || kind == DriverKind::kNvidia) return nvidia;
  LOG(INFO) << "no NVIDIA device (" << nvidia.status().message() << "); using the CPU device";
  return LoadCpu(cpu_folder);
}

std::string ResultName(const DriverTable& driver, CUresult result) {
  const char* name = nullptr;
  if (driver.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    return absl::StrCat("CUresult ", static_cast<int>(result));
  }
  return name;
}

}  // namespace consort::device
