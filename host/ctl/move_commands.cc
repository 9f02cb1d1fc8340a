// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/move_commands.h"

#include <time.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "host/checkpoint/folder.h"
#include "host/ctl/admin_client.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

// Between two questions how a move goes.
constexpr timespec kAskEvery = {0, 20'000'000};

absl::StatusOr<Json> Moves(const std::string& admin_socket) {
  ASSIGN_OR_RETURN(const Json answer, AdminGetJson(admin_socket, "/api/v1/moves"));
  return answer.value("moves", Json::array());
}

std::string Place(const Json& move, const char* end) {
  return move.contains(end) ? absl::StrCat("device ", move.value(end, 0))
                            : absl::StrCat("checkpoint ", move.value("folder", ""));
}

std::string HowItWent(const Json& move) {
  return absl::StrFormat("%s: %s to %s, stopped for %.1f ms, %.3f GiB",
                         move.value("application", ""), Place(move, "from"), Place(move, "to"),
                         move.value("stopped_seconds", 0.0) * 1e3,
                         static_cast<double>(move.value("bytes", uint64_t{0})) / kGiB);
}

// The session's latest move once it is over.
absl::StatusOr<Json> AwaitMove(const std::string& admin_socket, uint64_t session) {
  while (true) {
    ASSIGN_OR_RETURN(const Json moves, Moves(admin_socket));
    Json found;
    for (const Json& move : moves) {
      if (move.value("session", uint64_t{0}) == session) found = move;
    }
    if (!found.is_object()) return absl::InternalError("consortd has forgotten the move");
    if (found.value("state", "") != "moving") return found;
    nanosleep(&kAskEvery, nullptr);
  }
}

// Sends consortd the `order` to move a session, and tells `out` how it went.
absl::Status Move(const std::string& admin_socket, const char* path, const Json& order,
                  std::ostream& out) {
  RETURN_IF_ERROR(AdminPut(admin_socket, path, order));
  ASSIGN_OR_RETURN(const Json move, AwaitMove(admin_socket, order.at("session").get<uint64_t>()));
  if (move.value("state", "") != "moved") {
    return absl::FailedPreconditionError(
        absl::StrCat("it stays on ", Place(move, "from"), ": ", move.value("text", "")));
  }
  out << HowItWent(move) << "\n";
  return absl::OkStatus();
}

absl::Status PutDrained(const std::string& admin_socket, uint32_t device, bool drained) {
  return AdminPut(admin_socket, "/api/v1/devices", {{"device", device}, {"drained", drained}});
}

std::vector<uint64_t> SessionsOn(const Json& status, uint32_t device) {
  std::vector<uint64_t> sessions;
  for (const Json& session : status.value("sessions", Json::array())) {
    if (session.value("device", uint32_t{0}) == device) {
      sessions.push_back(session.value("id", uint64_t{0}));
    }
  }
  return sessions;
}

}  // namespace

absl::StatusOr<uint64_t> FindApplication(const Json& status, const std::string& application,
                                         const std::string& state) {
  uint64_t number = 0;
  absl::string_view pid = application;
  const bool by_pid = absl::ConsumePrefix(&pid, "pid:");
  const bool numeric = absl::SimpleAtoi(by_pid ? pid : absl::string_view(application), &number);
  if (by_pid && !numeric) {
    return absl::InvalidArgumentError(absl::StrCat(application, " names no process"));
  }
  std::vector<uint64_t> found;
  for (const Json& session : status.value("sessions", Json::array())) {
    if (session.value("state", "") != state) continue;
    const bool is_it = by_pid    ? session.value("pid", uint64_t{0}) == number
                       : numeric ? session.value("id", uint64_t{0}) == number
                                 : session.value("application", "") == application;
    if (is_it) found.push_back(session.value("id", uint64_t{0}));
  }
  if (found.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no application ", application, " is ", state));
  }
  if (found.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("several sessions are ", application, ": ",
                                                   absl::StrJoin(found, ", "),
                                                   "; name one by its number"));
  }
  return found[0];
}

absl::Status Migrate(const std::string& admin_socket, const std::string& application,
                     uint32_t device, std::ostream& out) {
  ASSIGN_OR_RETURN(const Json status, AdminStatus(admin_socket));
  ASSIGN_OR_RETURN(const uint64_t session, FindApplication(status, application));
  return Move(admin_socket, "/api/v1/moves", {{"session", session}, {"device", device}}, out);
}

absl::Status Checkpoint(const std::string& admin_socket, const std::string& application,
                        const std::string& folder, bool leaves, std::ostream& out) {
  ASSIGN_OR_RETURN(const Json status, AdminStatus(admin_socket));
  ASSIGN_OR_RETURN(const uint64_t session, FindApplication(status, application));
  return Move(admin_socket, "/api/v1/checkpoints",
              {{"session", session}, {"folder", folder}, {"leaves", leaves}}, out);
}

absl::Status Await(const std::string& admin_socket, const AwaitTarget& target) {
  Json order = {{"folder", target.folder}};
  if (target.device.has_value()) order["device"] = *target.device;
  return AdminPut(admin_socket, "/api/v1/awaited", order);
}

absl::Status Restore(const std::string& admin_socket, const RestoreTarget& target,
                     std::ostream& out) {
  ASSIGN_OR_RETURN(const Json status, AdminStatus(admin_socket));
  ASSIGN_OR_RETURN(const uint64_t session, FindApplication(status, target.application, "held"));
  Json order = {{"session", session}};
  if (!target.folder.empty()) order["folder"] = target.folder;
  if (target.device.has_value()) order["device"] = *target.device;
  return Move(admin_socket, "/api/v1/restores", order, out);
}

absl::Status ShowCheckpoint(const std::string& folder, std::ostream& out) {
  ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader, CheckpointReader::Open(folder));
  out << ManifestText(reader->manifest()) << std::flush;
  std::vector<std::byte> data;
  for (size_t i = 0; i < reader->manifest().chunks.size(); ++i) {
    data.resize(reader->manifest().chunks[i].bytes);
    RETURN_IF_ERROR(reader->Read(i, data));
  }
  return absl::OkStatus();
}

absl::Status DrainDevice(const std::string& admin_socket, uint32_t device, std::ostream& out) {
  RETURN_IF_ERROR(PutDrained(admin_socket, device, true));
  // Applications move one after the other; each has one move that is told, or has ended.
  ASSIGN_OR_RETURN(const Json before, AdminStatus(admin_socket));
  const std::vector<uint64_t> first = SessionsOn(before, device);
  std::set<uint64_t> left(first.begin(), first.end());
  size_t stay = 0;
  while (!left.empty()) {
    // Before the moves: what is gone by now has been moved, and is told, or has ended.
    ASSIGN_OR_RETURN(const Json now, AdminStatus(admin_socket));
    ASSIGN_OR_RETURN(const Json moves, Moves(admin_socket));
    for (const Json& move : moves) {
      const uint64_t session = move.value("session", uint64_t{0});
      if (move.value("state", "") == "moving" || left.erase(session) == 0) continue;
      if (move.value("state", "") == "moved") {
        out << HowItWent(move) << "\n";
      } else {
        ++stay;
        out << move.value("application", "") << " stays: " << move.value("text", "") << "\n";
      }
    }
    const std::vector<uint64_t> there = SessionsOn(now, device);
    const std::set<uint64_t> open(there.begin(), there.end());
    std::erase_if(left, [&](uint64_t session) { return !open.contains(session); });
    nanosleep(&kAskEvery, nullptr);
  }
  if (stay == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(stay, stay == 1 ? " application stays" : " applications stay", " on device ",
                   device, "; it takes no new ones"));
}

absl::Status UndrainDevice(const std::string& admin_socket, uint32_t device) {
  return PutDrained(admin_socket, device, false);
}

}  // namespace consort::host
