// SPDX-License-Identifier: Apache-2.0
#include "guest/nvml/pci_address.h"

namespace consort::nvml {

bool ParsePciAddress(const char* text, PciAddress* address) {
  *address = PciAddress();
  int end = 0;
  if (sscanf(text, "%x:%x:%x.%x%n", &address->domain, &address->bus, &address->device,
             &address->function, &end) == 4 ||
      sscanf(text, "%x:%x:%x%n", &address->domain, &address->bus, &address->device, &end) == 3) {
    return text[end] == '\0';
  }
  *address = PciAddress();
  return sscanf(text, "%x:%x.%x%n", &address->bus, &address->device, &address->function, &end) ==
             3 &&
         text[end] == '\0';
}

void FillPciInfo(const PciAddress& address, nvmlPciInfo_t* info) {
  FillPciInfo<nvmlPciInfo_t>(address, info);
  snprintf(info->busIdLegacy, sizeof(info->busIdLegacy), "%04X:%02X:%02X.0",
           address.domain & 0xFFFF, address.bus & 0xFF, address.device & 0xFF);
}

}  // namespace consort::nvml
