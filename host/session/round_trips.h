// SPDX-License-Identifier: Apache-2.0
// host/session/round_trips.h: for which calls a program waited for an answer, and how often.
#ifndef CONSORT_HOST_SESSION_ROUND_TRIPS_H_
#define CONSORT_HOST_SESSION_ROUND_TRIPS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace consort::host {

class RoundTrips {
 public:
  // `opcode`: any; those that are none count together.
  void Count(uint16_t opcode);
  uint64_t count() const { return count_; }
  // The most frequent calls, most first: "EventQuery 120, Allocate 3 and 2 others".
  std::string Text() const;

 private:
  static constexpr size_t kNamed = 12;

  uint64_t count_ = 0;
  std::vector<uint64_t> by_opcode_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_ROUND_TRIPS_H_
