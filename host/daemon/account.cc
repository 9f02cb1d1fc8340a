// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/account.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

absl::StatusOr<AccountFile> AccountFile::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
  if (!fd.valid()) {
    return absl::UnavailableError(absl::StrCat("account file ", path, ": ", strerror(errno)));
  }
  return AccountFile(std::move(fd));
}

absl::Status AccountFile::Append(std::string_view line) {
  ssize_t written;
  do {
    written = write(fd_.get(), line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written != static_cast<ssize_t>(line.size())) {
    return absl::UnavailableError(
        absl::StrCat("account file: ", written < 0 ? strerror(errno) : "short write"));
  }
  return absl::OkStatus();
}

}  // namespace consort::host
