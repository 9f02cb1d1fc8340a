// SPDX-License-Identifier: Apache-2.0
#include "base/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace consort {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(FileIo, WhatWasWrittenIsRead) {
  const UniqueFd file(memfd_create("test", MFD_CLOEXEC));
  ASSERT_TRUE(WriteAt(file.get(), BytesOf("world"), 6));
  ASSERT_TRUE(WriteAt(file.get(), BytesOf("hello "), 0));
  std::string text(32, '?');
  EXPECT_EQ(ReadAt(file.get(), std::as_writable_bytes(std::span(text)), 0), 11);
  EXPECT_EQ(text.substr(0, 12), "hello world?");
  EXPECT_EQ(ReadAt(file.get(), std::as_writable_bytes(std::span(text.data(), 3)), 2), 3);
  EXPECT_EQ(text.substr(0, 3), "llo");
  EXPECT_EQ(ReadAt(file.get(), std::as_writable_bytes(std::span(text)), 11), 0);
}

TEST(FileIo, ErrorsAreTold) {
  EXPECT_FALSE(WriteAt(-1, BytesOf("x"), 0));
  EXPECT_EQ(errno, EBADF);
  std::string text(1, '?');
  EXPECT_EQ(ReadAt(-1, std::as_writable_bytes(std::span(text)), 0), -1);
  const UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.valid());
  EXPECT_FALSE(WriteAt(full.get(), BytesOf("x"), 0));
  EXPECT_EQ(errno, ENOSPC);
}

}  // namespace
}  // namespace consort
