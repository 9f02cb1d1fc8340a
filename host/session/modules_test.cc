// SPDX-License-Identifier: Apache-2.0
// How libraries are given to the driver.
#include "host/session/modules.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/session/session_test_support.h"

namespace consort::host {
namespace {

std::vector<CUfunction>* loaded;  // by the driver of CountingDevice

std::unique_ptr<WorkerDevice> CountingDevice() {
  device::LoadedDriver driver = CpuDriver();
  driver.table.cuFuncLoad = [](CUfunction function) {
    loaded->push_back(function);
    return CUDA_SUCCESS;
  };
  auto device = WorkerDevice::Open(driver, 0);
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

// Beside the one that LoadLibrary has.
std::string Kernels(size_t count) {
  std::string ptx;
  for (size_t i = 1; i < count; ++i) absl::StrAppend(&ptx, ".visible .entry k", i, "() { ret; }\n");
  return ptx;
}

class ModulesTest : public ::testing::Test {
 protected:
  ModulesTest() { loaded = &loaded_; }
  ~ModulesTest() override { loaded = nullptr; }

  // Of a library of so many kernels.
  void Use(size_t count, const std::vector<std::string>& names) {
    const std::unique_ptr<WorkerDevice> device = CountingDevice();
    PeerOptions options;
    options.device = device.get();
    SessionPeer peer(options);
    LoadLibrary(&peer, Kernels(count), names);
  }

  std::vector<CUfunction> loaded_;
};

TEST_F(ModulesTest, TheFirstKernelThatIsUsedBringsTheOthersOfItsLibrary) {
  Use(3, {"k2"});
  EXPECT_EQ(std::set<CUfunction>(loaded_.begin(), loaded_.end()).size(), 3u);
  EXPECT_EQ(loaded_.size(), 3u);
}

TEST_F(ModulesTest, LargeLibrariesAreLeftToTheDriver) {
  Use(Modules::kKernelsLoadedMax, {});
  EXPECT_EQ(loaded_.size(), Modules::kKernelsLoadedMax);
  loaded_.clear();
  Use(Modules::kKernelsLoadedMax + 1, {});
  EXPECT_TRUE(loaded_.empty());
}

}  // namespace
}  // namespace consort::host
