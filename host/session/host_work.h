// SPDX-License-Identifier: Apache-2.0
// host/session/host_work.h: a copy or fill of a request that the processor does in place of the
// device, since its memory is on none (binding.cc). Plain values.
//
// A request is read once and judged and carried out by what was read then: its frame lies in memory
// that the guest may change meanwhile.
#ifndef CONSORT_HOST_SESSION_HOST_WORK_H_
#define CONSORT_HOST_SESSION_HOST_WORK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace consort::host {

struct HostWork {
  // Of a side of a copy, or of what is filled: the first row, and from one to the next.
  struct Rows {
    uint64_t address = 0;
    uint64_t pitch = 0;
  };

  uint64_t stream = 0;
  uint64_t width = 0;  // bytes of a row
  uint64_t rows = 0;
  Rows to;
  std::optional<Rows> from;         // of a copy between two addresses
  std::span<const std::byte> data;  // of a copy from the guest: in its frame
  std::optional<uint32_t> value;    // of a fill, `element` bytes of it
  uint32_t element = 1;
  bool to_guest = false;  // `from`, to no address here
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_HOST_WORK_H_
