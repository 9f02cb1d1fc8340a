// SPDX-License-Identifier: Apache-2.0
// host/session/peer_reach.h: device memory of a session of another device, as a session here
// reaches it; see peer_link.h.
//
// A thread of its own takes what the other worker tells: the session that lends waits for it, and
// must not wait for this session, which may be waiting for that one. The thread ends with the link
// or with this object. Memory stays mapped as long as this object; the device must be done with it
// then. Calls of any thread; made and destroyed by the session's.
#ifndef CONSORT_HOST_SESSION_PEER_REACH_H_
#define CONSORT_HOST_SESSION_PEER_REACH_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "host/control/control_socket.h"
#include "host/session/peer_addresses.h"
#include "host/session/peer_link.h"
#include "host/session/peer_memory.h"
#include "host/session/worker_device.h"

namespace consort::host {

struct PeerReachOptions {
  // Of the peer, where its memory then is here too; null: it is somewhere.
  std::shared_ptr<const PeerAddresses> addresses;
  std::string name;  // of the two sessions, for the log
};

class PeerReach {
 public:
  // `device` is borrowed for this object's life.
  PeerReach(const WorkerDevice& device, const PeerReachOptions& options, UniqueFd link);
  ~PeerReach();
  PeerReach(const PeerReach&) = delete;
  PeerReach& operator=(const PeerReach&) = delete;

  // kMaps until all that there was in the beginning is mapped.
  enum class State { kMaps, kReaches, kFailed };
  State state() const { return state_.load(std::memory_order_acquire); }
  // Where these bytes of the peer's are here; nothing: they are not.
  std::optional<uint64_t> Find(uint64_t address, Bytes bytes) const;

 private:
  void Run();
  absl::Status Take(ControlPacket* packet);

  const WorkerDevice& device_;
  const PeerReachOptions options_;
  ControlSocket link_;
  PeerMemory memory_;  // the thread's
  // Written with release after what is mapped was entered, read with acquire.
  std::atomic<State> state_{State::kMaps};
  mutable absl::Mutex mutex_;
  PeerMemory::Mappings mappings_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_PEER_REACH_H_
