// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/shared_window.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace consort::cpu {
namespace {

// All 32-bit offsets, and a little more for the widest access at the last one.
constexpr size_t kWindowBytes = (size_t{1} << 32) + 65536;

}  // namespace

SharedWindow::~SharedWindow() {
  if (base_ != nullptr) munmap(base_, kWindowBytes);
}

absl::Status SharedWindow::Reserve() {
  void* mapping =
      mmap(nullptr, kWindowBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no addresses for shared memory: ", std::strerror(errno)));
  }
  base_ = static_cast<uint8_t*>(mapping);
  return absl::OkStatus();
}

absl::Status SharedWindow::Prepare(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t wanted = (bytes + page - 1) / page * page;
  auto protect = [this](size_t from, size_t to, int protection) {
    return from >= to || mprotect(base_ + from, to - from, protection) == 0;
  };
  if (!protect(accessible_bytes_, wanted, PROT_READ | PROT_WRITE) ||
      !protect(wanted, accessible_bytes_, PROT_NONE)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no shared memory of ", bytes, " bytes: ", std::strerror(errno)));
  }
  accessible_bytes_ = wanted;
  std::memset(base_, 0, wanted);
  return absl::OkStatus();
}

}  // namespace consort::cpu
