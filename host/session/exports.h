// SPDX-License-Identifier: Apache-2.0
// host/session/exports.h: what sessions of one worker let other sessions of their tenant use.
//
//   session A ── Add ──▶ token ── the programs pass it on ──▶ session B ── Find ──▶ memory, event
//
// A token is 128 random bits, and good for sessions of the tenant whose session made it. What is
// exported is shared: it lives until its last user lets go of it. Thread safe; a member of the
// worker's device, one for all its sessions.
#ifndef CONSORT_HOST_SESSION_EXPORTS_H_
#define CONSORT_HOST_SESSION_EXPORTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/units.h"
#include "gen/device/driver_table.h"
#include "host/session/pending.h"

namespace consort::host {

// Physical memory of the driver, released with the last who holds it; mappings hold it too.
struct PhysicalMemory {
  PhysicalMemory(const device::DriverTable& table, CUmemGenericAllocationHandle memory, Bytes size)
      : driver(table), handle(memory), bytes(size) {}
  ~PhysicalMemory() { driver.cuMemRelease(handle); }
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  const device::DriverTable& driver;
  const CUmemGenericAllocationHandle handle;
  const Bytes bytes;
};

struct ExportToken {
  uint64_t high = 0;
  uint64_t low = 0;

  friend auto operator<=>(const ExportToken&, const ExportToken&) = default;
};

struct Export {
  std::string tenant;
  uint64_t session = 0;
  // One of these.
  std::shared_ptr<PhysicalMemory> memory;
  std::shared_ptr<UserEvent> event;
  // Of an allocation: where it lies in `memory`. An allocation of 0 bytes: all of it was exported,
  // as memory without an address.
  Bytes offset = 0;
  Bytes allocation_bytes = 0;
};

class Exports {
 public:
  // The token of what is now exported. The caller bounds their number.
  ExportToken Add(Export what);
  void Remove(const ExportToken& token);
  // Nothing if there is no such token, or another tenant's.
  std::optional<Export> Find(const ExportToken& token, const std::string& tenant) const;

 private:
  mutable absl::Mutex mutex_;
  std::map<ExportToken, Export> exports_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_EXPORTS_H_
