// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/link.h: one run of the just-in-time linker (CUlinkState).
//
//   Add... ─▶ PTX texts ─Complete─▶ one PTX text, which is this device's "cubin"
//
// Used by one thread at a time, as CUDA asks of its callers. Keeps the caller's option values, into
// which logs and times go until the end. Source: CUDA driver API, cuLinkCreate, CUjit_option.
#ifndef CONSORT_DEVICE_CPU_DRIVER_LINK_H_
#define CONSORT_DEVICE_CPU_DRIVER_LINK_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/driver/load.h"
#include "device/cpu/ptx/linker.h"

namespace consort::cpu {

class Link {
 public:
  // `values` is the caller's and outlives this object; the options are copied.
  Link(std::span<const CUjit_option> options, void** values);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Takes an input of type CU_JIT_INPUT_PTX, _CUBIN or _FATBINARY. CUDA_ERROR_INVALID_VALUE: no
  // type, or the link is complete. CUDA_ERROR_NOT_SUPPORTED: another type. Else as LoadProgram.
  CUresult Add(CUjitInputType type, std::span<const std::byte> data, const char* name);
  // Links what was added, the first time. The result ends with a NUL and lives as long as this.
  CUresult Complete(std::span<char>* linked);

 private:
  // Adds `message` to the error log.
  CUresult Fail(CUresult result, std::string_view message);
  void WriteOptions();

  std::vector<CUjit_option> options_;
  void** const values_;
  const std::vector<void*> values_at_first_;  // sizes of buffers, which the logs' take the place of
  std::string errors_;
  float wall_milliseconds_ = 0;
  std::vector<ptx::LinkInput> inputs_;
  std::string linked_;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_LINK_H_
