// SPDX-License-Identifier: Apache-2.0
#include "host/session/partition.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/driver/driver_loader.h"

namespace consort::host {
namespace {

// What the driver rounds up to the fewest that it allows.
constexpr unsigned kFewest = 1;

}  // namespace

absl::StatusOr<std::unique_ptr<Partition>> Partition::Create(const device::DriverTable& driver,
                                                             CUdevice device,
                                                             PartitionRange range) {
  if (driver.cuDeviceGetDevResource == nullptr || driver.cuDevSmResourceSplitByCount == nullptr ||
      driver.cuDevResourceGenerateDesc == nullptr || driver.cuGreenCtxCreate == nullptr ||
      driver.cuGreenCtxDestroy == nullptr || driver.cuGreenCtxStreamCreate == nullptr) {
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
  unsigned count = 0;
  result = driver.cuDevSmResourceSplitByCount(nullptr, &count, &whole, nullptr, 0, kFewest);
  if (result != CUDA_SUCCESS) return failed("cutting the device", result);
  std::vector<CUdevResource> groups(count);
  CUdevResource rest = {};
  result = driver.cuDevSmResourceSplitByCount(groups.data(), &count, &whole, &rest, 0, kFewest);
  if (result != CUDA_SUCCESS) return failed("cutting the device", result);
  groups.resize(count);
  if (groups.empty())
    return failed("cutting the device", CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);

  const size_t begin =
      std::min(groups.size() - 1, groups.size() * range.begin / size_t{kPartitionWhole});
  const size_t end =
      std::clamp(groups.size() * range.end / size_t{kPartitionWhole}, begin + 1, groups.size());
  uint32_t multiprocessors = 0;
  for (size_t i = begin; i < end; ++i) multiprocessors += groups[i].sm.smCount;
  CUdevResourceDesc description = nullptr;
  result = driver.cuDevResourceGenerateDesc(&description, &groups[begin],
                                            static_cast<unsigned>(end - begin));
  if (result != CUDA_SUCCESS) return failed("joining multiprocessors", result);
  CUgreenCtx context = nullptr;
  result = driver.cuGreenCtxCreate(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM);
  if (result != CUDA_SUCCESS) return failed("a green context", result);
  return std::unique_ptr<Partition>(new Partition(driver, context, multiprocessors));
}

Partition::~Partition() { driver_.cuGreenCtxDestroy(context_); }

}  // namespace consort::host
