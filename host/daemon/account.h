// SPDX-License-Identifier: Apache-2.0
// host/daemon/account.h: what sessions used, in lines of JSON, for whoever bills or plots.
//
//   {"tenant":"research","vm":"web-1","channel":"vhost-user","application":"python3","pid":812,
//    "device":"NVIDIA H200","device_index":0,"started":"2026-03-01T12:00:00Z","seconds":12.5,
//    "calls":4100,"round_trips":12,"bytes_to_device":1048576,"bytes_to_host":4096,
//    "kernel_launches":3900,"kernel_seconds":9.25,"weight":1,"device_seconds":8.5,
//    "queued_seconds":1.25,"memory_peak_bytes":2097152,"memory_byte_seconds":23068672,
//    "end":"closed"}
// host/control/messages.h says what the numbers count.
//
// A session has a line when it ends. One that is open for long has more, whose "end" is "open":
// each says what was used since the one before, and the last one the rest. So sums of lines are
// what was used, and a host that loses its power loses minutes. Each line is one write of an
// O_APPEND file: several daemons may share one. Owned by consortd's loop.
#ifndef CONSORT_HOST_DAEMON_ACCOUNT_H_
#define CONSORT_HOST_DAEMON_ACCOUNT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "host/control/messages.h"

namespace consort::host {

// What a session was, beside what it used.
struct SessionIdentity {
  std::string tenant;
  std::string vm;  // the machine's name; the tenant's where no machine is known
  std::string front_door;
  std::string application;  // the guest's word
  uint32_t pid = 0;         // likewise
  std::string device;
  uint32_t device_index = 0;
};

// The line, newline included. Text is escaped; bytes that are no ASCII become '?', since a guest
// chose them and they need not be UTF-8.
std::string AccountLine(const SessionIdentity& identity, const SessionEnded& ended);

// `total` of a session, less what its lines have `told` already: what its next line says. The peak
// of memory stays, as it is no sum.
SessionEnded AccountSince(const SessionEnded& total, const SessionEnded& told);

class AccountFile {
 public:
  // Opens `path` for appending, making it if needed.
  static absl::StatusOr<AccountFile> Open(const std::string& path);

  // All or, as far as the file's owner can see to it, nothing: what a full disk has cut off is
  // ended before the next line.
  absl::Status Append(std::string_view line);

 private:
  AccountFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
  bool torn_ = false;  // the last line is not whole
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_ACCOUNT_H_
