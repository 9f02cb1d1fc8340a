// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/greeter.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "host/control/control_socket.h"
#include "host/limits.h"

namespace consort::host {

std::string RefusalBytes(uint32_t status, const std::string& text) {
  wire::Welcome welcome;
  welcome.status = status;
  SetText(welcome.text, text);
  return std::string(reinterpret_cast<const char*>(&welcome), sizeof(welcome));
}

Greeter::Greeter(EventLoop* loop, std::function<void(Connection, const wire::Hello&)> on_hello,
                 std::function<void()> on_change)
    : loop_(loop), on_hello_(std::move(on_hello)), on_change_(std::move(on_change)) {}

Greeter::~Greeter() { Clear(); }

void Greeter::Clear() {
  while (!entries_.empty()) Remove(entries_.begin()->first);
}

bool Greeter::full() const { return entries_.size() >= kGreetingsMax; }

void Greeter::Add(Connection connection) {
  auto entry = std::make_unique<Entry>();
  entry->connection = std::move(connection);
  Start(std::move(entry), EPOLLIN);
}

void Greeter::Answer(Connection connection, std::string bytes) {
  auto entry = std::make_unique<Entry>();
  entry->connection = std::move(connection);
  entry->output = std::move(bytes);
  Start(std::move(entry), EPOLLOUT);
}

std::vector<DaemonState::Greeting> Greeter::Save() const {
  std::vector<DaemonState::Greeting> greetings;
  for (const auto& [entry, owned] : entries_) {
    const Connection& connection = entry->connection;
    greetings.push_back({connection.fd.get(), connection.tenant, connection.vm,
                         connection.devices_max, connection.front_door, connection.peer,
                         connection.shares_memory, entry->input,
                         entry->output.substr(entry->written)});
  }
  return greetings;
}

void Greeter::Restore(const DaemonState::Greeting& greeting, UniqueFd socket) {
  auto entry = std::make_unique<Entry>();
  entry->connection.fd = std::move(socket);
  entry->connection.tenant = greeting.tenant;
  entry->connection.vm = greeting.vm;
  entry->connection.devices_max = greeting.devices_max;
  entry->connection.front_door = greeting.front_door;
  entry->connection.peer = greeting.peer;
  entry->connection.shares_memory = greeting.shares_memory;
  entry->input = greeting.input;
  entry->output = greeting.output;
  const uint32_t events = entry->output.empty() ? EPOLLIN : EPOLLOUT;
  Start(std::move(entry), events);
}

void Greeter::Start(std::unique_ptr<Entry> owned, uint32_t events) {
  Entry* entry = owned.get();
  const absl::Status watched =
      loop_->Watch(entry->connection.fd.get(), events, [this, entry](uint32_t) {
        if (entry->output.empty()) {
          OnReadable(entry);
        } else {
          OnWritable(entry);
        }
      });
  if (!watched.ok()) {
    LOG(WARNING) << "connection from " << entry->connection.tenant << " dropped: " << watched;
    return;
  }
  entry->timer = loop_->After(kGreetingTimeout, [this, entry] {
    entry->timer = 0;
    Drop(entry,
         entry->output.empty() ? "said no Hello in time" : "did not take its answer in time");
  });
  entries_.emplace(entry, std::move(owned));
  on_change_();
}

std::unique_ptr<Greeter::Entry> Greeter::Remove(Entry* entry) {
  const auto it = entries_.find(entry);
  CHECK(it != entries_.end());
  std::unique_ptr<Entry> owned = std::move(it->second);
  entries_.erase(it);
  loop_->Unwatch(owned->connection.fd.get());
  if (owned->timer != 0) loop_->Cancel(owned->timer);
  return owned;
}

void Greeter::Drop(Entry* entry, const char* why) {
  LOG(WARNING) << entry->connection.tenant << " (" << entry->connection.front_door << ", "
               << entry->connection.peer << ") " << why;
  Remove(entry);
  on_change_();
}

void Greeter::OnReadable(Entry* entry) {
  char bytes[sizeof(wire::Hello)];
  // Never more than the Hello: what follows belongs to the channel.
  const size_t wanted = sizeof(wire::Hello) - entry->input.size();
  const ssize_t got = recv(entry->connection.fd.get(), bytes, wanted, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    // A connection that says nothing at all is how others look whether somebody listens.
    if (entry->input.empty()) {
      Remove(entry);
      on_change_();
    } else {
      Drop(entry, "left in the middle of its Hello");
    }
    return;
  }
  entry->input.append(bytes, static_cast<size_t>(got));
  uint32_t magic = 0;
  if (entry->input.size() >= sizeof(magic)) memcpy(&magic, entry->input.data(), sizeof(magic));
  if (entry->input.size() >= sizeof(magic) && magic != wire::kHelloMagic) {
    Drop(entry, "does not speak Consort's protocol");
    return;
  }
  if (entry->input.size() < sizeof(wire::Hello)) return;
  wire::Hello hello;
  memcpy(&hello, entry->input.data(), sizeof(hello));
  const std::unique_ptr<Entry> owned = Remove(entry);
  on_hello_(std::move(owned->connection), hello);
  on_change_();
}

void Greeter::OnWritable(Entry* entry) {
  const ssize_t sent = send(entry->connection.fd.get(), entry->output.data() + entry->written,
                            entry->output.size() - entry->written, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EINTR) return;
    Drop(entry, "left before its answer");
    return;
  }
  entry->written += static_cast<size_t>(sent);
  if (entry->written == entry->output.size()) {
    Remove(entry);
    on_change_();
  }
}

}  // namespace consort::host
