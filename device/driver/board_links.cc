// SPDX-License-Identifier: Apache-2.0
#include "device/driver/board_links.h"

#include <dlfcn.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "device/driver/driver_loader.h"

namespace consort::device {
namespace {

constexpr char kLibrary[] = "libnvidia-ml.so.1";

// Source: NVML API Reference, and the layouts in NVIDIA's public bindings for Go
// (github.com/NVIDIA/go-nvml, pkg/nvml/types_gen.go and const.go, Apache-2.0).
struct NvmlDevice;
struct NvmlPciInfo {
  char bus_id_legacy[16];
  uint32_t domain;
  uint32_t bus;
  uint32_t device;
  uint32_t device_id;
  uint32_t subsystem_id;
  char bus_id[32];
};
struct NvmlFieldValue {
  uint32_t field;
  uint32_t scope;
  int64_t timestamp;
  int64_t latency;
  uint32_t type;
  uint32_t result;
  union {
    uint32_t number;
    uint64_t bytes;
  };
};
static_assert(sizeof(NvmlPciInfo) == 68 && sizeof(NvmlFieldValue) == 40);
constexpr int kSuccess = 0;
constexpr uint32_t kCarriesPeers = 0;  // NVML_NVLINK_CAP_P2P_SUPPORTED
constexpr uint32_t kToGpu = 0;         // NVML_NVLINK_DEVICE_TYPE_GPU
constexpr uint32_t kToProcessor = 1;   // NVML_NVLINK_DEVICE_TYPE_IBMNPU
constexpr uint32_t kToUnknown = 255;   // NVML_NVLINK_DEVICE_TYPE_UNKNOWN
constexpr uint32_t kFieldSpeed = 164;  // NVML_FI_DEV_NVLINK_GET_SPEED
constexpr uint32_t kFieldState = 165;  // NVML_FI_DEV_NVLINK_GET_STATE

// The functions used here, under NVML's names. Made once a process.
class Nvml {
 public:
  // False: there is no such library, or it is too old, or finds no driver.
  bool Open() {
    library_ = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return false;
    const bool complete = Find("nvmlInit_v2", &init_) && Find("nvmlShutdown", &shutdown_) &&
                          Find("nvmlDeviceGetHandleByPciBusId_v2", &by_slot) &&
                          Find("nvmlDeviceGetFieldValues", &fields) &&
                          Find("nvmlDeviceGetNvLinkCapability", &capability) &&
                          Find("nvmlDeviceGetNvLinkState", &state) &&
                          Find("nvmlDeviceGetNvLinkVersion", &version) &&
                          Find("nvmlDeviceGetNvLinkRemotePciInfo_v2", &remote);
    Find("nvmlDeviceGetNvLinkRemoteDeviceType", &remote_type);
    open_ = complete && init_() == kSuccess;
    return open_;
  }
  Nvml() = default;
  ~Nvml() {
    if (open_) shutdown_();
    if (library_ != nullptr) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  int (*by_slot)(const char* slot, NvmlDevice** device) = nullptr;
  int (*fields)(NvmlDevice* device, int count, NvmlFieldValue* values) = nullptr;
  int (*capability)(NvmlDevice* device, uint32_t link, uint32_t which, uint32_t* has) = nullptr;
  int (*state)(NvmlDevice* device, uint32_t link, uint32_t* active) = nullptr;
  int (*version)(NvmlDevice* device, uint32_t link, uint32_t* version) = nullptr;
  int (*remote)(NvmlDevice* device, uint32_t link, NvmlPciInfo* slot) = nullptr;
  int (*remote_type)(NvmlDevice* device, uint32_t link, uint32_t* type) = nullptr;  // may be null

 private:
  template <typename Function>
  bool Find(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(dlsym(library_, name));
    return *function != nullptr;
  }

  void* library_ = nullptr;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  bool open_ = false;
};

// The field's number for one link, or 0.
uint32_t Field(const Nvml& nvml, NvmlDevice* device, uint32_t link, uint32_t field) {
  NvmlFieldValue value = {};
  value.field = field;
  value.scope = link;
  if (nvml.fields(device, 1, &value) != kSuccess || value.result != kSuccess) return 0;
  return value.number;
}

// From Hopper on NVML tells the state as a field, before that by a function. One that sleeps, state
// 2, wakes up when it is used.
bool IsUp(const Nvml& nvml, NvmlDevice* device, uint32_t link) {
  uint32_t active = 0;
  return Field(nvml, device, link, kFieldState) != 0 ||
         (nvml.state(device, link, &active) == kSuccess && active != 0);
}

BoardLink ReadLink(const Nvml& nvml, NvmlDevice* device, uint32_t link) {
  BoardLink read;
  uint32_t carries = 0;
  if (nvml.capability(device, link, kCarriesPeers, &carries) != kSuccess || carries == 0 ||
      !IsUp(nvml, device, link)) {
    return read;
  }
  uint32_t type = kToUnknown;
  if (nvml.remote_type != nullptr && nvml.remote_type(device, link, &type) != kSuccess) {
    type = kToUnknown;
  }
  if (type == kToProcessor) return read;
  if (type == kToGpu) {
    NvmlPciInfo slot = {};
    if (nvml.remote(device, link, &slot) != kSuccess) return read;
    read.to = BoardLink::To::kSlot;
    read.slot = {slot.domain, slot.bus, slot.device};
  } else {
    // What is unknown is a switch that a machine with passed-through GPUs does not see. NCCL takes
    // it for one, too (src/graph/xml.cc).
    read.to = BoardLink::To::kSwitch;
  }
  return read;
}

bool IsThere(const BoardLink& link) { return link.to != BoardLink::To::kNothing; }

}  // namespace

BoardLinks ReadBoardLinks(const LoadedDriver& driver, int index, const PciSlot& slot) {
  BoardLinks read;
  if (driver.cpu) {
    const uint32_t count = driver.links != nullptr ? driver.links(index) : 0;
    for (uint32_t link = 0; link < std::min(count, kBoardLinksMax); ++link) {
      read.links[link].to = BoardLink::To::kSwitch;
    }
    return read;
  }
  Nvml nvml;
  NvmlDevice* device = nullptr;
  const std::string name = absl::StrFormat("%08X:%02X:%02X.0", slot.domain, slot.bus, slot.device);
  if (!nvml.Open() || nvml.by_slot(name.c_str(), &device) != kSuccess) {
    LOG(INFO) << kLibrary << " does not tell of links of the GPU in " << name;
    return read;
  }
  for (uint32_t link = 0; link < kBoardLinksMax; ++link) {
    read.links[link] = ReadLink(nvml, device, link);
  }
  const auto first = std::find_if(read.links.begin(), read.links.end(), IsThere);
  if (first == read.links.end()) return read;
  const auto link = static_cast<uint32_t>(first - read.links.begin());
  if (nvml.version(device, link, &read.version) != kSuccess) read.version = 0;
  read.speed = Field(nvml, device, link, kFieldSpeed);
  return read;
}

}  // namespace consort::device
