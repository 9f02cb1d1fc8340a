// SPDX-License-Identifier: Apache-2.0
// host/session/stream_order.h: who waits for whom between an application's default stream and its
// other streams. Pure logic, one object a context; thread compatible.
//
// Every stream of an application is a stream of its own in the driver and ordered with no other,
// since tenants share the driver's context and its real default stream would tie them together.
// What CUDA promises of the legacy default stream is put back here, within one context of one
// application:
//   work on the default stream begins after all earlier work of the context's blocking streams, and
//   work on a blocking stream begins after all earlier work on the default stream.
// Streams made with CU_STREAM_NON_BLOCKING take no part.
// Source: CUDA C++ Programming Guide, "Default Stream" and "Implicit Synchronization"; CUDA driver
// API, "Stream synchronization behavior".
#ifndef CONSORT_HOST_SESSION_STREAM_ORDER_H_
#define CONSORT_HOST_SESSION_STREAM_ORDER_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace consort::host {

class StreamOrder {
 public:
  using Key = uint64_t;  // the caller's name for a stream
  static constexpr Key kDefaultStream = 0;

  // A blocking stream has been made; `stream` is not kDefaultStream. Non-blocking ones stay
  // unknown.
  void Add(Key stream);

  // A blocking stream goes. True: the default stream has not yet waited for its last work and must
  // do so before its next own.
  bool Remove(Key stream);

  // Work is about to be put on `stream`: appends the streams whose present end it must wait for,
  // each once.
  void BeforeWork(Key stream, std::vector<Key>* wait_for);

 private:
  struct Blocking {
    bool has_new_work = false;  // since the default stream last waited for it
    uint64_t default_work_waited_for = 0;
  };
  uint64_t default_work_ = 0;  // how often work was put on the default stream
  absl::flat_hash_map<Key, Blocking> blocking_;
  std::vector<Key> with_new_work_;  // those of blocking_ that have some
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_STREAM_ORDER_H_
