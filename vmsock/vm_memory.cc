// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vm_memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace consort {
namespace {

constexpr unsigned long kVendor = 0x1af4;
constexpr unsigned long kDevice = 0x1110;

__attribute__((format(printf, 3, 4))) void Explain(char* why, size_t why_bytes, const char* format,
                                                   ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(why, why_bytes, format, arguments);
  va_end(arguments);
}

UniqueFd Open(int folder, const char* device, const char* name, int flags) {
  char path[300];
  const int length = snprintf(path, sizeof path, "%s/%s", device, name);
  if (length < 0 || static_cast<size_t>(length) >= sizeof path) return UniqueFd();
  return UniqueFd(openat(folder, path, flags | O_CLOEXEC));
}

// The number in a device's file, 0 if there is none.
unsigned long Number(int folder, const char* device, const char* name) {
  const UniqueFd file = Open(folder, device, name, O_RDONLY);
  char text[32] = {};
  if (!file.valid() || read(file.get(), text, sizeof text - 1) <= 0) return 0;
  return strtoul(text, nullptr, 0);
}

// A device that is not enabled answers no access to its memory. Fails where it is none of ours to
// enable, which its memory then shows.
void Enable(int folder, const char* device) {
  if (Number(folder, device, "enable") != 0) return;
  const UniqueFd file = Open(folder, device, "enable", O_WRONLY);
  if (file.valid() && write(file.get(), "1", 1) != 1) return;
}

bool ReadHead(int file, wire::VmMemoryHead* head) {
  void* mapped = mmap(nullptr, kVmMemoryUnit, PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) return false;
  std::memcpy(head, mapped, sizeof(*head));
  munmap(mapped, kVmMemoryUnit);
  return true;
}

// 0, or an errno of who tried to open its memory.
int OpenMemory(int folder, const char* device, VmMemory* found) {
  // Uncached memory, which the other file maps, would be read a word at a time.
  found->write_combining = true;
  found->file = Open(folder, device, "resource2_wc", O_RDWR);
  if (!found->file.valid() && errno == ENOENT) {
    found->write_combining = false;
    found->file = Open(folder, device, "resource2", O_RDWR);
  }
  if (!found->file.valid()) return errno;
  const off_t bytes = lseek(found->file.get(), 0, SEEK_END);
  if (bytes < 0) return errno;
  found->bytes = static_cast<Bytes>(bytes);
  wire::VmMemoryHead head;
  if (found->bytes < kVmMemoryUnit) return ENODEV;
  if (!ReadHead(found->file.get(), &head)) return errno;
  if (head.mark != wire::VmMemoryHead::kMark || head.token.empty()) return ENODEV;
  found->token = head.token;
  return 0;
}

}  // namespace

bool FindVmMemory(const char* folder, VmMemory* found, char* why, size_t why_bytes) {
  Explain(why, why_bytes, "no PCI device %04lx:%04lx in %s", kVendor, kDevice, folder);
  DIR* const devices = opendir(folder);
  if (devices == nullptr) return false;
  bool any = false;
  while (const dirent* entry = any ? nullptr : readdir(devices)) {
    const int at = dirfd(devices);
    const char* const device = entry->d_name;
    if (Number(at, device, "vendor") != kVendor || Number(at, device, "device") != kDevice) {
      continue;
    }
    Enable(at, device);
    VmMemory memory;
    const int error = OpenMemory(at, device, &memory);
    if (error == 0) {
      *found = static_cast<VmMemory&&>(memory);
      any = true;
    } else if (error == ENODEV) {
      Explain(why, why_bytes, "PCI device %s is not of consortd's making, or not of this consortd",
              device);
    } else {
      Explain(why, why_bytes, "PCI device %s: %s; may this user open its resource2_wc?", device,
              strerror(error));
    }
  }
  closedir(devices);
  return any;
}

}  // namespace consort
