// SPDX-License-Identifier: Apache-2.0
#include "device/driver/board_links.h"

#include <dlfcn.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/nvml_types.h"
#include "device/driver/driver_loader.h"

namespace consort::device {
namespace {

constexpr char kLibrary[] = "libnvidia-ml.so.1";

// The functions used here, under NVML's names. Opened and closed with each use.
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
    open_ = complete && init_() == NVML_SUCCESS;
    return open_;
  }
  Nvml() = default;
  ~Nvml() {
    if (open_) shutdown_();
    if (library_ != nullptr) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  nvmlReturn_t (*by_slot)(const char* slot, nvmlDevice_t* device) = nullptr;
  nvmlReturn_t (*fields)(nvmlDevice_t device, int count, nvmlFieldValue_t* values) = nullptr;
  nvmlReturn_t (*capability)(nvmlDevice_t device, uint32_t link, uint32_t which,
                             uint32_t* has) = nullptr;
  nvmlReturn_t (*state)(nvmlDevice_t device, uint32_t link, uint32_t* active) = nullptr;
  nvmlReturn_t (*version)(nvmlDevice_t device, uint32_t link, uint32_t* version) = nullptr;
  nvmlReturn_t (*remote)(nvmlDevice_t device, uint32_t link, nvmlPciInfo_t* slot) = nullptr;
  nvmlReturn_t (*remote_type)(nvmlDevice_t device, uint32_t link,
                              uint32_t* type) = nullptr;  // may be null

 private:
  template <typename Function>
  bool Find(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(dlsym(library_, name));
    return *function != nullptr;
  }

  void* library_ = nullptr;
  nvmlReturn_t (*init_)() = nullptr;
  nvmlReturn_t (*shutdown_)() = nullptr;
  bool open_ = false;
};

// The field's number for one link, or 0.
uint32_t Field(const Nvml& nvml, nvmlDevice_t device, uint32_t link, uint32_t field) {
  nvmlFieldValue_t value = {};
  value.fieldId = field;
  value.scopeId = link;
  if (nvml.fields(device, 1, &value) != NVML_SUCCESS || value.nvmlReturn != NVML_SUCCESS) return 0;
  return static_cast<uint32_t>(value.value);
}

// From Hopper on NVML tells the state as a field, before that by a function. One that sleeps, state
// 2, wakes up when it is used.
bool IsUp(const Nvml& nvml, nvmlDevice_t device, uint32_t link) {
  uint32_t active = 0;
  return Field(nvml, device, link, NVML_FI_DEV_NVLINK_GET_STATE) != 0 ||
         (nvml.state(device, link, &active) == NVML_SUCCESS && active != 0);
}

BoardLink ReadLink(const Nvml& nvml, nvmlDevice_t device, uint32_t link) {
  BoardLink read;
  uint32_t carries = 0;
  if (nvml.capability(device, link, NVML_NVLINK_CAP_P2P_SUPPORTED, &carries) != NVML_SUCCESS ||
      carries == 0 || !IsUp(nvml, device, link)) {
    return read;
  }
  uint32_t type = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
  if (nvml.remote_type != nullptr && nvml.remote_type(device, link, &type) != NVML_SUCCESS) {
    type = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
  }
  if (type == NVML_NVLINK_DEVICE_TYPE_IBMNPU) return read;
  if (type == NVML_NVLINK_DEVICE_TYPE_GPU) {
    nvmlPciInfo_t slot = {};
    if (nvml.remote(device, link, &slot) != NVML_SUCCESS) return read;
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
  nvmlDevice_t device = nullptr;
  const std::string name = absl::StrFormat("%08X:%02X:%02X.0", slot.domain, slot.bus, slot.device);
  if (!nvml.Open() || nvml.by_slot(name.c_str(), &device) != NVML_SUCCESS) {
    LOG(INFO) << kLibrary << " does not tell of links of the GPU in " << name;
    return read;
  }
  for (uint32_t link = 0; link < kBoardLinksMax; ++link) {
    read.links[link] = ReadLink(nvml, device, link);
  }
  const auto first = std::find_if(read.links.begin(), read.links.end(), IsThere);
  if (first == read.links.end()) return read;
  const auto link = static_cast<uint32_t>(first - read.links.begin());
  if (nvml.version(device, link, &read.version) != NVML_SUCCESS) read.version = 0;
  read.speed = Field(nvml, device, link, NVML_FI_DEV_NVLINK_GET_SPEED);
  return read;
}

}  // namespace consort::device
