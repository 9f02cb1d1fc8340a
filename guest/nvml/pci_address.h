// SPDX-License-Identifier: Apache-2.0
// guest/nvml/pci_address.h: where a board is on PCI, and how NVML writes that. Pure.
#ifndef CONSORT_GUEST_NVML_PCI_ADDRESS_H_
#define CONSORT_GUEST_NVML_PCI_ADDRESS_H_

#include <stdio.h>

#include <cstdint>

#include "base/nvml_types.h"

namespace consort::nvml {

struct PciAddress {
  uint32_t domain = 0;
  uint32_t bus = 0;
  uint32_t device = 0;
  uint32_t function = 0;

  friend bool operator==(const PciAddress&, const PciAddress&) = default;
};

// "0000:1B:00.0", and the same without domain or function, as cuDeviceGetByPCIBusId takes it.
// False: it is none.
bool ParsePciAddress(const char* text, PciAddress* address);

// All of nvmlPciInfoExt_t, but for its version and its classes.
template <typename Info>
void FillPciInfo(const PciAddress& address, Info* info) {
  info->domain = address.domain;
  info->bus = address.bus;
  info->device = address.device;
  // Not known here; the driver API has no word for it.
  info->pciDeviceId = 0;
  info->pciSubSystemId = 0;
  snprintf(info->busId, sizeof(info->busId), "%08X:%02X:%02X.0", address.domain, address.bus,
           address.device);
}

// All of it.
void FillPciInfo(const PciAddress& address, nvmlPciInfo_t* info);

}  // namespace consort::nvml

#endif  // CONSORT_GUEST_NVML_PCI_ADDRESS_H_
