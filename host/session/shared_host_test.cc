// SPDX-License-Identifier: Apache-2.0
// Host memory that a session of another device takes up from the one that has it: where it lies
// there, and nothing that whoever names it may get wrong. On the CPU device.
#include "host/session/shared_host.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "host/limits.h"
#include "host/session/session_test_support.h"

namespace consort::host {
namespace {

constexpr Bytes kBytes = 64 * kMiB;

class SharedHostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(CpuDevice().MakeCurrent(), CUDA_SUCCESS);
    // A place that is free, and then is not.
    void* place = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(place, MAP_FAILED);
    munmap(place, kBytes);
    base_ = reinterpret_cast<uint64_t>(place);
    auto made = SharedHost::Create(CpuDevice(), base_, kBytes);
    ASSERT_TRUE(made.ok()) << made.status();
    host_ = *std::move(made);
    memory_ = UniqueFd(memfd_create("shared", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(memory_.get(), 16384), 0);
  }
  CUresult TakeUp(uint64_t address, Bytes offset, Bytes bytes) {
    SharedHost::Share share;
    share.address = address;
    share.offset = offset;
    share.bytes = bytes;
    return host_->TakeUp(share, UniqueFd(fcntl(memory_.get(), F_DUPFD_CLOEXEC, 0)));
  }

  uint64_t base_ = 0;
  std::unique_ptr<SharedHost> host_;
  UniqueFd memory_;
};

TEST_F(SharedHostTest, WhatIsTakenUpIsTheFilesMemory) {
  const uint64_t address = base_ + kMiB;
  ASSERT_EQ(TakeUp(address, 4096, 8192), CUDA_SUCCESS);
  std::memcpy(reinterpret_cast<void*>(address), "here", 4);
  char read[4] = {};
  EXPECT_EQ(pread(memory_.get(), read, 4, 4096), 4);
  EXPECT_EQ(std::memcmp(read, "here", 4), 0);
  EXPECT_TRUE(host_->Covers(address, 8192));
  EXPECT_FALSE(host_->Covers(address, 8193));
  // By any of its addresses.
  const auto found = host_->FindAround(address + 8191);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->address, address);
  EXPECT_EQ(found->offset, 4096u);
  EXPECT_EQ(found->bytes, 8192u);
  EXPECT_FALSE(host_->FindAround(address - 1).has_value());
  EXPECT_FALSE(host_->FindAround(address + 8192).has_value());
  // Its place is taken until it goes.
  EXPECT_EQ(TakeUp(address + 4096, 0, 8192), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(host_->Free(address), CUDA_SUCCESS);
  EXPECT_EQ(host_->Free(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(TakeUp(address + 4096, 0, 8192), CUDA_SUCCESS);
}

TEST_F(SharedHostTest, WhatIsNotThereOrNotPagesIsRefused) {
  EXPECT_EQ(TakeUp(base_, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(TakeUp(base_, 0, 4095), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(TakeUp(base_, 1, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(TakeUp(base_ + 1, 0, 4096), CUDA_ERROR_INVALID_VALUE);
  // Past the file's end.
  EXPECT_EQ(TakeUp(base_, 0, 20480), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(TakeUp(base_, 16384, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(TakeUp(base_, ~Bytes{4095}, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(TakeUp(base_, 4096, ~Bytes{4095}), CUDA_ERROR_INVALID_VALUE);
  // Outside the addresses.
  EXPECT_EQ(TakeUp(base_ - 4096, 0, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(TakeUp(base_ + kBytes - 4096, 0, 8192), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(TakeUp(~uint64_t{4095}, 0, 8192), CUDA_ERROR_INVALID_VALUE);
  // No file, and none of pages.
  SharedHost::Share share;
  share.address = base_;
  share.bytes = 4096;
  EXPECT_EQ(host_->TakeUp(share, UniqueFd()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(host_->TakeUp(share, UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC))),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(TakeUp(base_, 0, 4096), CUDA_SUCCESS);
}

}  // namespace
}  // namespace consort::host
