// SPDX-License-Identifier: Apache-2.0
// host/session/jit_options.h: a compiler's or linker's options as a guest sends them, in the form
// that a driver takes, with logs of our own in place of the program's.
//
// A driver may keep the pointers that it is given for as long as what it makes with them, and so
// must its caller keep this. Thread compatible. Source: CUDA driver API, CUjit_option.
#ifndef CONSORT_HOST_SESSION_JIT_OPTIONS_H_
#define CONSORT_HOST_SESSION_JIT_OPTIONS_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace consort::host {

class JitOptions {
 public:
  // `packed`: pairs of u32 number and u64 value. What is no plain number is left out: the guest's
  // pointers mean nothing here.
  explicit JitOptions(std::span<const std::byte> packed);
  JitOptions(const JitOptions&) = delete;
  JitOptions& operator=(const JitOptions&) = delete;

  // Asks for logs of at most so many bytes, 0 for none; bounded by kJitLogBytesMax.
  void AddLogs(uint32_t info_bytes, uint32_t error_bytes);
  void AddWallTime();

  unsigned int count() const { return static_cast<unsigned int>(options_.size()); }
  CUjit_option* options() { return options_.data(); }
  void** values() { return values_.data(); }

  bool has_logs() const { return !info_log_.empty() || !error_log_.empty(); }
  // What the driver has written so far; valid while this is.
  std::span<const std::byte> info_log() const { return TextOf(info_log_); }
  std::span<const std::byte> error_log() const { return TextOf(error_log_); }
  // In milliseconds; 0 unless it was asked for.
  float wall_time() const;

 private:
  static std::span<const std::byte> TextOf(const std::string& log);
  void Add(CUjit_option option, void* value);
  void AddLog(std::string& log, uint32_t bytes, CUjit_option buffer, CUjit_option size);

  std::vector<CUjit_option> options_;
  std::vector<void*> values_;
  std::string info_log_;
  std::string error_log_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_JIT_OPTIONS_H_
