// SPDX-License-Identifier: Apache-2.0
#include "host/session/partition.h"

#include <algorithm>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/driver/driver_loader.h"

namespace consort::host {

absl::StatusOr<std::shared_ptr<GreenContext>> CreatePartition(const device::DriverTable& driver,
                                                              CUdevice device,
                                                              PartitionRange range) {
  if (!GreenContext::Available(driver)) {
    return absl::UnimplementedError(
        "isolation = \"partition\" is not supported: this device's driver has no green contexts; "
        "\"process\" needs none");
  }
  const auto failed = [&](const char* what, CUresult result) {
    return absl::UnavailableError(absl::StrCat("isolation = \"partition\": ", what, ": ",
                                               device::ResultName(driver, result)));
  };
  CUdevResource whole = {};
  CUresult result = driver.cuDeviceGetDevResource(device, &whole, CU_DEV_RESOURCE_TYPE_SM);
  if (result != CUDA_SUCCESS) return failed("the device's multiprocessors", result);
  std::vector<CUdevResource> groups;
  CUdevResource rest = {};
  // The driver rounds one up to the fewest that it allows.
  result = SplitResource(driver, whole, {.fewest = 1}, &groups, &rest);
  if (result != CUDA_SUCCESS) return failed("cutting the device", result);
  if (groups.empty())
    return failed("cutting the device", CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);

  const size_t begin =
      std::min(groups.size() - 1, groups.size() * range.begin / size_t{kPartitionWhole});
  const size_t end =
      std::clamp(groups.size() * range.end / size_t{kPartitionWhole}, begin + 1, groups.size());
  std::shared_ptr<GreenContext> context;
  result =
      GreenContext::Create(driver, device, std::span(groups).subspan(begin, end - begin), &context);
  if (result != CUDA_SUCCESS) return failed("a green context", result);
  return context;
}

}  // namespace consort::host
