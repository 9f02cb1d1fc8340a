// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/code_cache.h: compiled kernels on disk, so that the second start of a program
// compiles nothing.
//
// One file an entry, named by its key, which says all that the code depends on. An entry:
//
//   offset  bytes  what
//        0      8  "CONSORTC"
//        8     32  SHA-256 of what follows
//       40      n  the data
//
// Files hold code that this process runs, so the directory must belong to this user and be writable
// by nobody else; otherwise the cache is off. Writers make a file of their own and rename it, so a
// reader sees whole entries, whoever else writes. An entry that is damaged is as good as none.
// Reading an entry makes it young; the oldest go when the files together exceed the bound.
//
// Thread safe, and safe against other processes. Errors are never fatal: without a cache, code is
// compiled.
#ifndef CONSORT_DEVICE_CPU_CODEGEN_CODE_CACHE_H_
#define CONSORT_DEVICE_CPU_CODEGEN_CODE_CACHE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace consort::cpu {

class CodeCache {
 public:
  // `directory` is made, with its parents, when something is put there; empty: the cache is off.
  // Entries are removed when they exceed `bytes_max` together.
  CodeCache(std::string directory, uint64_t bytes_max);

  bool enabled() const { return !directory_.empty(); }

  // A key for `parts`, each of which counts with its length.
  static std::string Key(std::initializer_list<std::string_view> parts);

  std::optional<std::string> Find(const std::string& key) const;
  void Put(const std::string& key, std::string_view data) const;

 private:
  bool IsOurs(int directory) const;
  void Trim() const;

  const std::string directory_;
  const uint64_t bytes_max_;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_CODEGEN_CODE_CACHE_H_
