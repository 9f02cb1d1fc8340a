// SPDX-License-Identifier: Apache-2.0
#include "host/session/peer_addresses.h"

#include "absl/strings/str_cat.h"
#include "device/driver/driver_loader.h"
#include "memmgr/limits.h"

namespace consort::host {

absl::StatusOr<std::shared_ptr<const PeerAddresses>> PeerAddresses::Keep(
    const device::DriverTable& driver, uint64_t base, Bytes bytes) {
  CUdeviceptr given = 0;
  const CUresult result = driver.cuMemAddressReserve(&given, bytes, memmgr::kGranuleBytes, base, 0);
  if (result == CUDA_SUCCESS && given == base) {
    return std::shared_ptr<const PeerAddresses>(new PeerAddresses(driver, base, bytes));
  }
  // The address is a wish to the driver.
  if (result == CUDA_SUCCESS) driver.cuMemAddressFree(given, bytes);
  return absl::UnavailableError(
      absl::StrCat("reserving the other device's addresses: ",
                   result == CUDA_SUCCESS ? "taken" : device::ResultName(driver, result)));
}

}  // namespace consort::host
