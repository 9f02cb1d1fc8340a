// SPDX-License-Identifier: Apache-2.0
// guest/nvml/links.cc: what NVML says of how devices are connected, by links (NVLink) and
// otherwise.
//
// A vGPU has those links of its board that lead to vGPUs whose memory it reaches. NCCL goes by
// them: it has GPUs without links copy through memory of the host.
#include <string.h>

#include "guest/nvml/pci_address.h"
#include "guest/nvml/state.h"

namespace consort::nvml {
namespace {

// Source: NVML API Reference, constants.
constexpr uint32_t kP2pOk = 0;            // NVML_P2P_STATUS_OK
constexpr uint32_t kP2pNotSupported = 5;  // NVML_P2P_STATUS_NOT_SUPPORTED
constexpr uint32_t kP2pCapsNvlink = 2;    // NVML_P2P_CAPS_INDEX_NVLINK
constexpr uint32_t kP2pCapsAtomics = 3;   // NVML_P2P_CAPS_INDEX_ATOMICS
constexpr uint32_t kP2pCapsMax = 5;       // NVML_P2P_CAPS_INDEX_UNKNOWN
constexpr uint32_t kTopologyInternal = 0;
constexpr uint32_t kTopologySystem = 50;
// Where a switch is that this machine does not have on its PCI bus: nowhere. Who looks for a device
// there finds none, and takes it for a switch (NCCL, src/graph/xml.cc).
constexpr PciAddress kUnseen = {0xFFFFFFFF, 0xFF, 0xFF, 0};

using Wanted = StatusScope::Wanted;

// Whether both are devices.
nvmlReturn_t TwoDevices(nvmlDevice_t first, nvmlDevice_t second) {
  const nvmlReturn_t result =
      WithDevice(first, Wanted::kAny, [](const Status&, uint32_t) { return NVML_SUCCESS; });
  if (result != NVML_SUCCESS) return result;
  return WithDevice(second, Wanted::kAny, [](const Status&, uint32_t) { return NVML_SUCCESS; });
}

bool IsUp(uint8_t end) { return end != wire::kLinkToNothing; }

uint32_t LinkCount(const wire::DeviceSnapshot& snapshot) {
  uint32_t count = 0;
  for (const uint8_t end : snapshot.links) count += IsUp(end) ? 1 : 0;
  return count;
}

// Whether links connect two devices. All switches are one.
bool LinksLeadTo(const Status& status, uint32_t index, uint32_t peer) {
  const wire::DeviceSnapshot& from = status.devices[index];
  if (memchr(from.links, wire::kLinkToDevice + static_cast<int>(peer), sizeof(from.links)))
    return true;
  return memchr(from.links, wire::kLinkToSwitch, sizeof(from.links)) != nullptr &&
         memchr(status.devices[peer].links, wire::kLinkToSwitch, sizeof(from.links)) != nullptr;
}

// Calls `then` with the status, the device's index and the end of one of its links, which may be
// down. `function` is the caller's name: without any link it is not supported.
template <typename Then>
nvmlReturn_t WithLink(const char* function, nvmlDevice_t device, uint32_t link, const void* out,
                      Then then) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  bool none = false;
  const nvmlReturn_t result =
      WithDevice(device, Wanted::kAny, [&](const Status& status, uint32_t index) {
        none = LinkCount(status.devices[index]) == 0;
        if (none) return NVML_ERROR_NOT_SUPPORTED;
        if (link >= wire::kDeviceLinksMax) return NVML_ERROR_INVALID_ARGUMENT;
        return then(status, index, status.devices[index].links[link]);
      });
  return none ? NotSupported(function) : result;
}

// The other end of a link that is up.
nvmlReturn_t FillRemote(const Status& status, uint8_t end, nvmlPciInfo_t* pci) {
  if (!IsUp(end)) return NVML_ERROR_NOT_SUPPORTED;
  PciAddress address = kUnseen;
  if (end != wire::kLinkToSwitch) {
    const uint32_t peer = end - wire::kLinkToDevice;
    if (peer >= status.device_count ||
        !ParsePciAddress(status.devices[peer].pci_bus_id, &address)) {
      return NVML_ERROR_UNKNOWN;
    }
  }
  FillPciInfo(address, pci);
  return NVML_SUCCESS;
}

// A link's speed where it is up and the speed is known.
nvmlReturn_t SpeedOf(const wire::DeviceSnapshot& snapshot, uint32_t link, uint64_t* value) {
  if (link >= wire::kDeviceLinksMax) return NVML_ERROR_INVALID_ARGUMENT;
  if (!IsUp(snapshot.links[link]) || snapshot.link_speed == 0) return NVML_ERROR_NOT_SUPPORTED;
  *value = snapshot.link_speed;
  return NVML_SUCCESS;
}

// What the field says of the device's links.
nvmlReturn_t LinkField(const wire::DeviceSnapshot& snapshot, const nvmlFieldValue_t& field,
                       uint64_t* value) {
  const uint32_t id = field.fieldId;
  const uint32_t count = LinkCount(snapshot);
  if (count == 0) return NVML_ERROR_NOT_SUPPORTED;
  if (id >= NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 && id < NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 + 6) {
    return SpeedOf(snapshot, id - NVML_FI_DEV_NVLINK_SPEED_MBPS_L0, value);
  }
  if (id >= NVML_FI_DEV_NVLINK_SPEED_MBPS_L6 && id < NVML_FI_DEV_NVLINK_SPEED_MBPS_L6 + 6) {
    return SpeedOf(snapshot, id - NVML_FI_DEV_NVLINK_SPEED_MBPS_L6 + 6, value);
  }
  if (id == NVML_FI_DEV_NVLINK_GET_SPEED) return SpeedOf(snapshot, field.scopeId, value);
  if (id == NVML_FI_DEV_NVLINK_LINK_COUNT || id == NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON) {
    *value = id == NVML_FI_DEV_NVLINK_LINK_COUNT ? count : snapshot.link_speed;
    return *value != 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
  }
  if (id != NVML_FI_DEV_NVLINK_GET_STATE && id != NVML_FI_DEV_NVLINK_GET_VERSION)
    return NVML_ERROR_NOT_SUPPORTED;
  if (field.scopeId >= wire::kDeviceLinksMax) return NVML_ERROR_INVALID_ARGUMENT;
  const bool up = IsUp(snapshot.links[field.scopeId]);
  *value = id == NVML_FI_DEV_NVLINK_GET_STATE ? up : snapshot.link_version;
  return id == NVML_FI_DEV_NVLINK_GET_STATE || (up && *value != 0) ? NVML_SUCCESS
                                                                   : NVML_ERROR_NOT_SUPPORTED;
}

}  // namespace

// --- Pairs of devices

NVML_API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2,
                                             uint32_t p2pIndex, uint32_t* p2pStatus) {
  if (p2pStatus == nullptr || p2pIndex >= kP2pCapsMax) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t result = TwoDevices(device1, device2);
  if (result != NVML_SUCCESS) return result;
  uint32_t peer = 0;
  IndexOf(device2, &peer);
  return WithDevice(device1, Wanted::kAny, [&](const Status& status, uint32_t index) {
    const wire::DeviceSnapshot& snapshot = status.devices[index];
    const uint64_t can = p2pIndex == kP2pCapsAtomics ? snapshot.peer_atomics : snapshot.peers;
    const bool good =
        (can >> peer & 1) != 0 && (p2pIndex != kP2pCapsNvlink || LinksLeadTo(status, index, peer));
    *p2pStatus = good ? kP2pOk : kP2pNotSupported;
    return NVML_SUCCESS;
  });
}

// Nothing is known of the path on PCI between two vGPUs, so it is the longest.
NVML_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1,
                                                          nvmlDevice_t device2,
                                                          uint32_t* pathInfo) {
  if (pathInfo == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t result = TwoDevices(device1, device2);
  if (result == NVML_SUCCESS) {
    *pathInfo = device1 == device2 ? kTopologyInternal : kTopologySystem;
  }
  return result;
}

// At that level, which all others are, and with no nearer one. `*count` 0: sets it to their number.
NVML_API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, uint32_t level,
                                                       uint32_t* count, nvmlDevice_t* devices) {
  if (count == nullptr || level > kTopologySystem || (*count != 0 && devices == nullptr))
    return NVML_ERROR_INVALID_ARGUMENT;
  return WithDevice(device, Wanted::kAny, [&](const Status& status, uint32_t index) {
    const uint32_t others = level == kTopologySystem ? status.device_count - 1 : 0;
    if (*count == 0) {
      *count = others;
      return NVML_SUCCESS;
    }
    if (*count > others) *count = others;
    for (uint32_t i = 0; i < *count; ++i) devices[i] = HandleOf(i < index ? i : i + 1);
    return NVML_SUCCESS;
  });
}

NVML_API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2,
                                            int* onSameBoard) {
  if (onSameBoard == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t result = TwoDevices(device1, device2);
  if (result == NVML_SUCCESS) *onSameBoard = device1 == device2 ? 1 : 0;
  return result;
}

// --- Links

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, uint32_t link,
                                               uint32_t* isActive) {
  return WithLink(__func__, device, link, isActive, [&](const Status&, uint32_t, uint8_t end) {
    *isActive = IsUp(end) ? 1 : 0;
    return NVML_SUCCESS;
  });
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, uint32_t link,
                                                 uint32_t* version) {
  return WithLink(__func__, device, link, version,
                  [&](const Status& status, uint32_t index, uint8_t end) {
                    const uint32_t told = status.devices[index].link_version;
                    if (!IsUp(end) || told == 0) return NVML_ERROR_NOT_SUPPORTED;
                    *version = told;
                    return NVML_SUCCESS;
                  });
}

// Memory of the host is not reached by links, however the board is made.
NVML_API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, uint32_t link,
                                                    uint32_t capability, uint32_t* capResult) {
  if (capability >= NVML_NVLINK_CAP_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  return WithLink(
      __func__, device, link, capResult, [&](const Status& status, uint32_t index, uint8_t end) {
        const bool has =
            capability == NVML_NVLINK_CAP_P2P_SUPPORTED || capability == NVML_NVLINK_CAP_VALID ||
            (capability == NVML_NVLINK_CAP_P2P_ATOMICS && status.devices[index].peer_atomics != 0);
        *capResult = IsUp(end) && has ? 1 : 0;
        return NVML_SUCCESS;
      });
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, uint32_t link,
                                                          nvmlPciInfo_t* pci) {
  return WithLink(__func__, device, link, pci, [&](const Status& status, uint32_t, uint8_t end) {
    return FillRemote(status, end, pci);
  });
}

// NCCL calls it by this name and reads all of it (src/misc/nvmlwrap.cc).
NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, uint32_t link,
                                                       nvmlPciInfo_t* pci) {
  return nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, pci);
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, uint32_t link,
                                                          uint32_t* type) {
  return WithLink(__func__, device, link, type, [&](const Status&, uint32_t, uint8_t end) {
    if (!IsUp(end)) return NVML_ERROR_NOT_SUPPORTED;
    *type =
        end == wire::kLinkToSwitch ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
    return NVML_SUCCESS;
  });
}

// Of all fields, those of links are there; each other one says for itself that it is not.
NVML_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount,
                                               nvmlFieldValue_t* values) {
  if (values == nullptr || valuesCount <= 0) return NVML_ERROR_INVALID_ARGUMENT;
  return WithDevice(device, Wanted::kAny, [&](const Status& status, uint32_t index) {
    for (int i = 0; i < valuesCount; ++i) {
      nvmlFieldValue_t& field = values[i];
      uint64_t value = 0;
      field.nvmlReturn = LinkField(status.devices[index], field, &value);
      if (field.nvmlReturn != NVML_SUCCESS) continue;
      field.timestamp = static_cast<int64_t>(WallClockMicroseconds());
      field.latencyUsec = 0;
      field.valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
      field.value = value;
    }
    return NVML_SUCCESS;
  });
}

}  // namespace consort::nvml
