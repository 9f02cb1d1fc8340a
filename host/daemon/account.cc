// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/account.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/control/control_socket.h"

namespace consort::host {
namespace {

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", byte);
    } else {
      out += byte < 0x7f ? c : '?';
    }
  }
  return out + '"';
}

std::string UtcTime(uint64_t unix_seconds) {
  const time_t seconds = static_cast<time_t>(unix_seconds);
  tm parts = {};
  gmtime_r(&seconds, &parts);
  char text[32];
  strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string Seconds(uint64_t nanos) { return absl::StrFormat("%.6f", nanos / 1e9); }

}  // namespace

std::string AccountLine(const SessionIdentity& identity, const SessionEnded& ended) {
  const std::string channel = GetText(ended.channel);
  return absl::StrCat(
      "{\"tenant\":", Quoted(identity.tenant), ",\"vm\":", Quoted(identity.vm),
      ",\"channel\":", Quoted(channel.empty() ? identity.front_door : channel),
      ",\"application\":", Quoted(identity.application), ",\"pid\":", identity.pid,
      ",\"device\":", Quoted(identity.device), ",\"device_index\":", identity.device_index,
      ",\"started\":", Quoted(UtcTime(ended.started_unix_seconds)),
      ",\"seconds\":", Seconds(ended.lasted_nanos), ",\"calls\":", ended.calls,
      ",\"round_trips\":", ended.round_trips, ",\"bytes_to_device\":", ended.bytes_to_device,
      ",\"bytes_to_host\":", ended.bytes_to_host, ",\"kernel_launches\":", ended.kernel_launches,
      ",\"kernel_seconds\":", Seconds(ended.kernel_nanos), ",\"weight\":", ended.weight,
      ",\"device_seconds\":", Seconds(ended.device_nanos),
      ",\"queued_seconds\":", Seconds(ended.queued_nanos),
      ",\"memory_peak_bytes\":", ended.memory_peak_bytes,
      ",\"memory_byte_seconds\":", ended.memory_byte_seconds,
      ",\"end\":", Quoted(GetText(ended.reason)), "}\n");
}

SessionEnded AccountSince(const SessionEnded& total, const SessionEnded& told) {
  SessionEnded rest = total;
  for (uint64_t SessionEnded::*const number :
       {&SessionEnded::lasted_nanos, &SessionEnded::calls, &SessionEnded::round_trips,
        &SessionEnded::bytes_to_device, &SessionEnded::bytes_to_host,
        &SessionEnded::kernel_launches, &SessionEnded::kernel_nanos, &SessionEnded::device_nanos,
        &SessionEnded::queued_nanos, &SessionEnded::memory_byte_seconds}) {
    rest.*number -= std::min(total.*number, told.*number);
  }
  rest.started_unix_seconds += told.lasted_nanos / kSecond;
  return rest;
}

absl::StatusOr<AccountFile> AccountFile::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
  if (!fd.valid()) {
    return absl::UnavailableError(
        absl::StrCat("account file ", path, ": ", strerror(errno),
                     "; its folder must be there, and this user's to write"));
  }
  return AccountFile(std::move(fd), path);
}

absl::Status AccountFile::Append(std::string_view line) {
  const std::string text =
      absl::StrCat(torn_ ? "\n" : "", absl::string_view(line.data(), line.size()));
  ssize_t written;
  do {
    written = write(fd_.get(), text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(text.size())) {
    torn_ = false;
    return absl::OkStatus();
  }
  const int error = written < 0 ? errno : ENOSPC;
  if (written > 0) torn_ = true;
  return absl::UnavailableError(
      absl::StrCat("account file ", path_, ": ", strerror(error),
                   error == ENOSPC || error == EDQUOT || error == EFBIG
                       ? ": make room there; sessions that end meanwhile are in the log only"
                       : ""));
}

}  // namespace consort::host
