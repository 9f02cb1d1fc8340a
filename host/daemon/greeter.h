// SPDX-License-Identifier: Apache-2.0
// host/daemon/greeter.h: the first words on every connection, many at a time, none waited for.
//
//   reading Hello ──whole──▶ decided by OnHello ──┬─▶ taken over (the worker answers)
//        │                                        └─▶ writing the answer ─▶ closed
//        └──garbage, end of stream, or no progress within kGreetingTimeout──▶ closed
//
// A client that is silent or slow costs one entry here and nobody else anything. Owned by
// consortd's loop. At most kGreetingsMax at a time: full() tells when to stop accepting.
#ifndef CONSORT_HOST_DAEMON_GREETER_H_
#define CONSORT_HOST_DAEMON_GREETER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/daemon/connection.h"
#include "host/daemon/daemon_state.h"
#include "host/daemon/event_loop.h"
#include "vmsock/wire/handshake.h"

namespace consort::host {

class Greeter {
 public:
  // `on_hello` gets each connection with its Hello, magic and nothing else checked. `on_change` is
  // called when full() may have changed.
  Greeter(EventLoop* loop, std::function<void(Connection, const wire::Hello&)> on_hello,
          std::function<void()> on_change);
  ~Greeter();

  // Reads the connection's Hello.
  void Add(Connection connection);

  // Writes `bytes` to the connection and closes it.
  void Answer(Connection connection, std::string bytes);

  bool full() const;
  // For the next binary, which goes on with each: what was said, and what is still to be said.
  std::vector<DaemonState::Greeting> Save() const;
  void Restore(const DaemonState::Greeting& greeting, UniqueFd socket);
  // Closes all.
  void Clear();

 private:
  struct Entry {
    Connection connection;
    EventLoop::TimerId timer = 0;
    std::string input;
    std::string output;
    size_t written = 0;
  };

  void Start(std::unique_ptr<Entry> entry, uint32_t events);
  void OnReadable(Entry* entry);
  void OnWritable(Entry* entry);
  // Takes the entry off the loop.
  std::unique_ptr<Entry> Remove(Entry* entry);
  void Drop(Entry* entry, const char* why);

  EventLoop* const loop_;
  const std::function<void(Connection, const wire::Hello&)> on_hello_;
  const std::function<void()> on_change_;
  std::map<Entry*, std::unique_ptr<Entry>> entries_;
};

// The bytes of a Welcome that refuses with `status`, one of wire::kWelcome..., and a text for a
// person.
std::string RefusalBytes(uint32_t status, const std::string& text);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_GREETER_H_
