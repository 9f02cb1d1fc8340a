// SPDX-License-Identifier: Apache-2.0
// host/session/launch_test_support.h: launches of a session over a CPU driver whose calls are
// counted and can be made to fail, and what they must have computed.
#ifndef CONSORT_HOST_SESSION_LAUNCH_TEST_SUPPORT_H_
#define CONSORT_HOST_SESSION_LAUNCH_TEST_SUPPORT_H_

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>

#include "host/session/session_test_support.h"

namespace consort::host {

// What the driver counts and is told. Tests run one after the other.
struct DriverCalls {
  std::atomic<bool> held{false};      // launches without a graph wait while it is set
  std::atomic<uint32_t> launches{0};  // without a graph
  std::atomic<uint32_t> graph_launches{0};
  std::atomic<uint32_t> changed_nodes{0};
  std::atomic<uint32_t> graphs{0};  // made
  std::atomic<uint32_t> graphs_gone{0};
  std::atomic<bool> refuse_nodes{false};    // changes of them
  std::atomic<bool> refuse_graphs{false};   // their launches
  std::atomic<bool> busy{false};            // no event has been reached
  std::set<CUgraphExec> running;            // launched while busy; the session's thread only
  std::atomic<uint32_t> relaunched{0};      // of them
  std::map<CUgraphExec, CUstream> streams;  // where each was first launched; likewise
  std::atomic<uint32_t> elsewhere{0};       // launches in another stream than that
};
extern DriverCalls calls;

class LaunchTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kWords = 256;
  static constexpr uint32_t kThreads = 128;

  // What its launches go as: PeerOptions.
  LaunchTest(bool chains, bool repeats);
  ~LaunchTest() override { calls.held = false; }

  // Two kernels, which compute with all words. More threads than kThreads make the same.
  void Add(uint32_t value, uint64_t stream = kLegacy, uint32_t threads = kThreads);
  void Scale(uint32_t factor, uint32_t term, uint64_t stream = kLegacy);
  // A launch that no device takes.
  void PostImpossible();
  // So many launches of both kernels, each with its own arguments, which lie in the ring before the
  // first is let go.
  void PostMany(uint32_t count, uint64_t stream = kLegacy);
  void CreateStream(uint64_t stream);
  // The most dynamic shared memory of Add's kernel.
  void SetSharedBytesOfAdd(int bytes);
  // Unloads the kernels, and loads them anew.
  void LoadAnew();
  // As the launches so far must have left them.
  void ExpectWords();

  std::unique_ptr<SessionPeer> peer_;

 private:
  void LaunchFirst();
  void Post(uint32_t kernel, std::span<const std::byte> arguments, uint64_t stream,
            uint32_t threads);

  uint64_t words_ = 0;
  uint32_t expected_ = 0;
  uint64_t transfer_ = 0;
  std::mt19937_64 random_{1};
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_LAUNCH_TEST_SUPPORT_H_
