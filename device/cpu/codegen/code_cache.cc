// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/code_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/SHA256.h"

namespace consort::cpu {
namespace {

constexpr std::string_view kMagic = "CONSORTC";
constexpr size_t kDigestBytes = 32;
constexpr size_t kHeaderBytes = kMagic.size() + kDigestBytes;
constexpr std::string_view kSuffix = ".code";
constexpr std::string_view kTemporary = ".tmp.";
// A writer that has not finished by then never will.
constexpr time_t kTemporarySecondsMax = 3600;

llvm::ArrayRef<uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string Digest(std::string_view text) {
  const auto digest = llvm::SHA256::hash(Bytes(text));
  return std::string(digest.begin(), digest.end());
}

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }
  bool ok() const { return descriptor_ >= 0; }

 private:
  const int descriptor_;
};

bool WriteAll(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = write(descriptor, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    text.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}

std::optional<std::string> ReadAll(int descriptor) {
  struct stat info;
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = read(descriptor, text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    have += static_cast<size_t>(got);
  }
  return text;
}

}  // namespace

CodeCache::CodeCache(std::string directory, uint64_t bytes_max)
    : directory_(std::move(directory)), bytes_max_(bytes_max) {}

std::string CodeCache::Key(std::initializer_list<std::string_view> parts) {
  llvm::SHA256 hash;
  for (const std::string_view part : parts) {
    hash.update(llvm::StringRef(absl::StrCat(part.size(), ":")));
    hash.update(Bytes(part));
  }
  return llvm::toHex(hash.final(), /*LowerCase=*/true);
}

// Code in a directory that others may write to is not ours to run.
bool CodeCache::IsOurs(int directory) const {
  struct stat info;
  if (fstat(directory, &info) != 0) return false;
  const bool ours = info.st_uid == geteuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  if (!ours) {
    LOG_FIRST_N(WARNING, 1) << directory_ << " is not used to cache code: others may write to it";
  }
  return ours;
}

std::optional<std::string> CodeCache::Find(const std::string& key) const {
  if (!enabled()) return std::nullopt;
  const File directory(open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.ok() || !IsOurs(directory.get())) return std::nullopt;
  const std::string name = absl::StrCat(key, absl::string_view(kSuffix.data(), kSuffix.size()));
  const File file(openat(directory.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file.ok()) return std::nullopt;
  std::optional<std::string> text = ReadAll(file.get());
  if (!text || text->size() < kHeaderBytes || !text->starts_with(kMagic) ||
      std::string_view(*text).substr(kMagic.size(), kDigestBytes) !=
          Digest(std::string_view(*text).substr(kHeaderBytes))) {
    LOG(WARNING) << directory_ << "/" << name << " is damaged and not used";
    return std::nullopt;
  }
  // Young again. A file that cannot be is merely removed sooner.
  (void)futimens(file.get(), nullptr);
  return text->substr(kHeaderBytes);
}

void CodeCache::Put(const std::string& key, std::string_view data) const {
  if (!enabled() || data.size() + kHeaderBytes > bytes_max_) return;
  std::error_code error;
  if (!std::filesystem::exists(directory_, error)) {
    const std::filesystem::path path(directory_);
    std::filesystem::create_directories(path.parent_path(), error);
    if (mkdir(directory_.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
      LOG_FIRST_N(WARNING, 1) << "no cache for code in " << directory_ << ": "
                              << std::strerror(errno);
      return;
    }
  }
  const File directory(open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.ok() || !IsOurs(directory.get())) return;
  uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) return;
  const std::string temporary =
      absl::StrCat(absl::string_view(kTemporary.data(), kTemporary.size()), number);
  const File file(openat(directory.get(), temporary.c_str(),
                         O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  const std::string name = absl::StrCat(key, absl::string_view(kSuffix.data(), kSuffix.size()));
  if (!file.ok() || !WriteAll(file.get(), kMagic) || !WriteAll(file.get(), Digest(data)) ||
      !WriteAll(file.get(), data) ||
      renameat(directory.get(), temporary.c_str(), directory.get(), name.c_str()) != 0) {
    LOG_FIRST_N(WARNING, 1) << "cannot cache code in " << directory_ << ": "
                            << std::strerror(errno);
    unlinkat(directory.get(), temporary.c_str(), 0);
    return;
  }
  Trim();
}

// Removes the oldest entries if there are too many, a quarter more than needed, so that it is not
// done for each one put.
void CodeCache::Trim() const {
  struct Entry {
    std::string path;
    timespec used = {};
    uint64_t bytes = 0;
  };
  std::vector<Entry> entries;
  uint64_t total = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory_, error), end; !error && at != end;
       at.increment(error)) {
    struct stat info;
    const std::string name = at->path().filename().string();
    if (lstat(at->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (name.starts_with(kTemporary) && info.st_mtime + kTemporarySecondsMax < time(nullptr)) {
      unlink(at->path().c_str());
    }
    if (!name.ends_with(kSuffix)) continue;
    entries.push_back({at->path().string(), info.st_mtim, static_cast<uint64_t>(info.st_size)});
    total += entries.back().bytes;
  }
  if (total <= bytes_max_) return;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  for (const Entry& entry : entries) {
    if (total <= bytes_max_ / 4 * 3) return;
    if (unlink(entry.path.c_str()) == 0) total -= entry.bytes;
  }
}

}  // namespace consort::cpu
