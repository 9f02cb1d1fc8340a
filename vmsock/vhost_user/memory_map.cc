// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/memory_map.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/units.h"

namespace consort::vhost_user {
namespace {

// [start, start + bytes) wraps around 2^64.
bool Wraps(uint64_t start, uint64_t bytes) { return start + bytes < start; }

bool Overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

absl::Status CheckSpecs(std::span<const MemoryRegionSpec> specs) {
  for (size_t i = 0; i < specs.size(); ++i) {
    const MemoryRegionSpec& a = specs[i];
    if (a.bytes == 0 || Wraps(a.guest_addr, a.bytes) || Wraps(a.user_addr, a.bytes) ||
        Wraps(a.mmap_offset, a.bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("region ", i, " is empty or wraps around"));
    }
    for (size_t k = 0; k < i; ++k) {
      const MemoryRegionSpec& b = specs[k];
      if (Overlap(a.guest_addr, a.bytes, b.guest_addr, b.bytes) ||
          Overlap(a.user_addr, a.bytes, b.user_addr, b.bytes)) {
        return absl::InvalidArgumentError(absl::StrCat("regions ", k, " and ", i, " overlap"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

class MemoryMap::Mapping {
 public:
  // What identifies one: equal keys are the same bytes of the same file.
  struct Key {
    dev_t dev = 0;
    ino_t inode = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    bool operator==(const Key&) const = default;
  };

  // kInvalidArgument: the file is shorter than the range. kResourceExhausted: mmap failed.
  static absl::StatusOr<std::shared_ptr<Mapping>> Create(int fd, const Key& key) {
    struct statfs fs {};
    if (fstatfs(fd, &fs) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("fstatfs: ", std::strerror(errno)));
    }
    // A mapping of huge pages begins and ends on one (mmap(2), "Huge page mappings").
    const uint64_t page_bytes = fs.f_type == HUGETLBFS_MAGIC
                                    ? static_cast<uint64_t>(fs.f_bsize)
                                    : static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const uint64_t file_offset = key.offset & ~(page_bytes - 1);
    const uint64_t length = AlignUp(key.offset - file_offset + key.bytes, page_bytes);
    if (length < key.bytes) return absl::InvalidArgumentError("region too large");
    // NORESERVE: the frontend has accounted for its RAM already.
    void* addr = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
                      static_cast<off_t>(file_offset));
    if (addr == MAP_FAILED) {
      return absl::ResourceExhaustedError(absl::StrCat("mmap: ", std::strerror(errno)));
    }
    // Guest RAM in a core dump would be a leak and a very large file.
    madvise(addr, length, MADV_DONTDUMP);
    return std::make_shared<Mapping>(key, addr, length, key.offset - file_offset);
  }

  Mapping(const Key& key, void* addr, size_t length, size_t lead)
      : key_(key), addr_(addr), length_(length), lead_(lead) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(addr_, length_); }

  const Key& key() const { return key_; }
  // The byte at key().offset.
  std::byte* base() const { return static_cast<std::byte*>(addr_) + lead_; }

 private:
  const Key key_;
  void* const addr_;
  const size_t length_;
  const size_t lead_;
};

absl::Status MemoryMap::Update(std::span<const MemoryRegionSpec> specs, std::vector<UniqueFd> fds,
                               bool require_sealed) {
  CHECK_EQ(specs.size(), fds.size());
  if (specs.size() > kMemoryRegionsMax) return absl::InvalidArgumentError("too many regions");
  RETURN_IF_ERROR(CheckSpecs(specs));

  std::vector<Region> next;
  uint64_t made = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    struct stat file {};
    if (fstat(fds[i].get(), &file) != 0 || !S_ISREG(file.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat("region ", i, " is not a file"));
    }
    // Touching a mapped page beyond the end of its file is a SIGBUS.
    if (specs[i].mmap_offset + specs[i].bytes > static_cast<uint64_t>(file.st_size)) {
      return absl::InvalidArgumentError(absl::StrCat("region ", i, " ends at ",
                                                     specs[i].mmap_offset + specs[i].bytes,
                                                     " of a file of ", file.st_size, " bytes"));
    }
    const int seals = fcntl(fds[i].get(), F_GET_SEALS);
    if (require_sealed && (seals < 0 || !(seals & F_SEAL_SHRINK))) {
      return absl::FailedPreconditionError(absl::StrCat("region ", i, " is not sealed"));
    }
    const Mapping::Key key{.dev = file.st_dev,
                           .inode = file.st_ino,
                           .offset = specs[i].mmap_offset,
                           .bytes = specs[i].bytes};
    Region region{.spec = specs[i], .base = nullptr, .mapping = nullptr, .file = {}};
    const auto same = std::find_if(regions_.begin(), regions_.end(),
                                   [&](const Region& r) { return r.mapping->key() == key; });
    if (same != regions_.end()) {
      region.mapping = same->mapping;
    } else {
      ASSIGN_OR_RETURN(region.mapping, Mapping::Create(fds[i].get(), key));
      ++made;
    }
    region.base = region.mapping->base();
    region.file = std::move(fds[i]);
    next.push_back(std::move(region));
  }
  regions_ = std::move(next);
  last_ = {};
  mappings_made_ += made;
  return absl::OkStatus();
}

std::vector<RegionState> MemoryMap::Save() const {
  std::vector<RegionState> state;
  for (const Region& region : regions_) state.push_back({region.spec, region.file.get()});
  return state;
}

void MemoryMap::Clear() {
  regions_.clear();
  last_ = {};
}

std::byte* MemoryMap::FromUser(uint64_t user_addr, uint64_t bytes) const {
  for (const Region& region : regions_) {
    const Window window{region.spec.user_addr, region.spec.bytes, region.base};
    if (window.Contains(user_addr, bytes)) return window.At(user_addr);
  }
  return nullptr;
}

std::byte* MemoryMap::FindGuest(uint64_t guest_addr, uint64_t bytes) const {
  for (const Region& region : regions_) {
    const Window window{region.spec.guest_addr, region.spec.bytes, region.base};
    if (window.Contains(guest_addr, bytes)) {
      last_ = window;
      return window.At(guest_addr);
    }
  }
  return nullptr;
}

bool MemoryMap::AppendGuest(uint64_t guest_addr, uint64_t bytes, std::vector<iovec>& out) const {
  if (bytes == 0) return true;
  if (std::byte* const all = FromGuest(guest_addr, bytes); all != nullptr) {
    out.push_back({all, bytes});
    return true;
  }
  if (Wraps(guest_addr, bytes)) return false;
  while (bytes > 0) {
    const auto region = std::find_if(regions_.begin(), regions_.end(), [&](const Region& r) {
      return guest_addr >= r.spec.guest_addr && guest_addr - r.spec.guest_addr < r.spec.bytes;
    });
    if (region == regions_.end()) return false;
    const uint64_t offset = guest_addr - region->spec.guest_addr;
    const uint64_t piece = std::min(bytes, region->spec.bytes - offset);
    out.push_back({region->base + offset, piece});
    guest_addr += piece;
    bytes -= piece;
  }
  return true;
}

}  // namespace consort::vhost_user
