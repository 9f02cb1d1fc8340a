// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/gpu_list.h"

#include <gtest/gtest.h>

#include "host/limits.h"

namespace consort::host {
namespace {

TEST(GpuList, NoNamesAreAllGpus) {
  const GpuList list;
  EXPECT_TRUE(list.all());
  EXPECT_TRUE(list.Has(3, "GPU-1", "NVIDIA H200"));
  EXPECT_EQ(list.Text(), "all");
}

TEST(GpuList, GoesByNumberUuidOrModel) {
  const GpuList list = {{"1", "GPU-01020304", "NVIDIA H200"}};
  EXPECT_TRUE(list.Has(1, "", ""));
  EXPECT_TRUE(list.Has(7, "GPU-01020304", "other"));
  EXPECT_TRUE(list.Has(7, "other", "NVIDIA H200"));
  EXPECT_FALSE(list.Has(7, "GPU-0102030", "NVIDIA H20"));
  EXPECT_FALSE(list.Has(11, "", ""));
  EXPECT_EQ(list.Text(), "1, GPU-01020304, NVIDIA H200");
}

TEST(GpuList, IsCheckedAtItsBounds) {
  GpuList list;
  for (uint32_t i = 0; i < kTenantGpusMax; ++i) list.names.push_back(std::to_string(i));
  EXPECT_TRUE(CheckGpuList(list).ok());
  list.names.push_back("more");
  EXPECT_FALSE(CheckGpuList(list).ok());
  EXPECT_TRUE(CheckGpuList({{std::string(kGpuNameBytesMax, 'x')}}).ok());
  EXPECT_FALSE(CheckGpuList({{std::string(kGpuNameBytesMax + 1, 'x')}}).ok());
  EXPECT_FALSE(CheckGpuList({{""}}).ok());
  EXPECT_FALSE(CheckGpuList({{"two\nlines"}}).ok());
  EXPECT_FALSE(CheckGpuList({{"0", "1", "0"}}).ok());
}

}  // namespace
}  // namespace consort::host
