// SPDX-License-Identifier: Apache-2.0
// device/driver/driver_loader.h: finds a driver library and fills the table of its functions.
//
// The only file that opens a driver library: NVIDIA's libcuda.so.1, or libconsort-cpu.so, which has
// the same interface and runs on the CPU. (board_links.cc opens the library that manages the
// first.) A loaded driver is never unloaded: it has threads of its own.
#ifndef CONSORT_DEVICE_DRIVER_DRIVER_LOADER_H_
#define CONSORT_DEVICE_DRIVER_DRIVER_LOADER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gen/device/driver_table.h"

namespace consort::device {

// Which driver to use. kAuto: NVIDIA's where it is installed and has a device, else the CPU's.
enum class DriverKind : uint8_t { kAuto, kCpu, kNvidia };

// "auto", "cpu" or "nvidia".
absl::StatusOr<DriverKind> ParseDriverKind(std::string_view text);

// How a driver is told of memory that is given out in parts of what it has mapped; both null but
// for the CPU driver when it checks what kernels touch (CONSORT_CPU_SANITIZE). Any thread.
struct AllocationNotes {
  void (*placed)(uint64_t address, uint64_t bytes) = nullptr;
  void (*gone)(uint64_t address) = nullptr;

  bool wanted() const { return placed != nullptr; }
  void Placed(uint64_t address, uint64_t bytes) const {
    if (placed != nullptr) placed(address, bytes);
  }
  void Gone(uint64_t address) const {
    if (gone != nullptr) gone(address);
  }
};

// Whether the CPU driver, once it is initialised, checks what kernels touch.
using ChecksMemory = uint32_t();

// Has `write(owner, ...)` called with what kernels print that are launched into the stream from now
// on, on any thread, until the last of them has ended; text for stdout has descriptor 1, for stderr
// 2.
using SetStreamOutput = void(CUstream stream,
                             void (*write)(void* owner, int descriptor, const char* text,
                                           size_t bytes),
                             void* owner);

// Has the managed variables of what this thread loads from now on lie in memory of `take`, which
// gives so many bytes at a multiple of a page, to stay until the library is unloaded, or null, when
// they are like other variables; `*fresh` 0: the bytes there already are their values. `take` null:
// of no memory.
using SetManagedMemory = void(void* (*take)(void* owner, uint64_t bytes, int* fresh), void* owner);

// How many links to a switch the CPU driver's device has.
using CountLinks = uint32_t(int index);

struct LoadedDriver {
  DriverTable table;
  ChecksMemory* checks_memory = nullptr;  // null: not the CPU driver's
  AllocationNotes notes;
  SetStreamOutput* set_stream_output = nullptr;  // null: the driver prints to this process's output
  SetManagedMemory* set_managed_memory = nullptr;  // null: the driver has its own
  CountLinks* links = nullptr;                     // null: not the CPU driver's
  bool cpu = false;                                // it is the CPU driver
  std::string library;                             // as it was opened, for people
  // "580.159.04": what the file of NVIDIA's library is named after. Empty: it is not named so.
  std::string release;
  uint32_t version = 0;  // as cuDriverGetVersion reports it
  uint32_t device_count = 0;
};

// Opens the driver and initialises it (cuInit). The CPU driver is looked for in `cpu_folder` and
// then by the dynamic linker. Not thread safe; call once a process. kNotFound: no such library.
// kFailedPrecondition: it lacks a function that the table requires, or it has no device; the text
// names what is wrong and what to do.
absl::StatusOr<LoadedDriver> LoadDriver(DriverKind kind, const std::string& cpu_folder);

// The name of a driver result ("CUDA_ERROR_OUT_OF_MEMORY"), or its number if the driver has none.
std::string ResultName(const DriverTable& driver, CUresult result);

}  // namespace consort::device

#endif  // CONSORT_DEVICE_DRIVER_DRIVER_LOADER_H_
