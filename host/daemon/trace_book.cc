// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/trace_book.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/limits.h"
#include "host/memory/size_text.h"

namespace consort::host {
namespace {

using OrderedJson = nlohmann::ordered_json;

}  // namespace

absl::Status TraceBook::Begin(const std::string& folder, Bytes bytes_max, const std::string& who,
                              uint64_t unix_seconds) {
  if (now_.on) {
    return absl::FailedPreconditionError(absl::StrCat("traces are being recorded, since ", now_.by,
                                                      " began; consortctl trace stop"));
  }
  if (!complete()) {
    return absl::FailedPreconditionError("files of the last recording are still being written");
  }
  if (folder.empty()) {
    return absl::FailedPreconditionError("consortd was started without --trace-folder");
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("no traces: ", folder, ": ", error.message(), "; see --trace-folder"));
  }
  now_.on = true;
  now_.folder = folder;
  now_.bytes_max = bytes_max;
  now_.by = who;
  now_.since = unix_seconds;
  now_.files.clear();
  return absl::OkStatus();
}

absl::Status TraceBook::End() {
  if (!now_.on) return absl::FailedPreconditionError("no traces are being recorded");
  now_.on = false;
  return absl::OkStatus();
}

bool TraceBook::complete() const {
  return !now_.on && std::none_of(now_.files.begin(), now_.files.end(),
                                  [](const TraceFile& file) { return file.ended.empty(); });
}

absl::StatusOr<std::string> TraceBook::NextFile(uint32_t device, int64_t worker) {
  if (now_.files.size() >= kTraceFilesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a recording has at most ", kTraceFilesMax, " files; stop it and begin anew"));
  }
  std::string path;
  std::error_code error;
  for (uint64_t number = 0; path.empty() || std::filesystem::exists(path, error); ++number) {
    path = absl::StrCat(now_.folder, "/device-", device, "-", number, ".trace");
  }
  now_.files.push_back({device, worker, path, ""});
  return path;
}

void TraceBook::Ended(const std::string& path, const std::string& why) {
  for (TraceFile& file : now_.files) {
    if (file.path == path && file.ended.empty()) file.ended = why.empty() ? "stopped" : why;
  }
}

void TraceBook::WorkerGone(int64_t worker) {
  for (TraceFile& file : now_.files) {
    if (file.worker == worker && file.ended.empty()) file.ended = "its worker is gone";
  }
}

std::string TraceBook::Json() const {
  OrderedJson out;
  out["recording"] = now_.on;
  if (!now_.folder.empty()) {
    out["folder"] = now_.folder;
    out["by"] = now_.by;
    out["since"] = now_.since;
    if (now_.bytes_max != 0) out["bytes_max"] = now_.bytes_max;
  }
  out["files"] = OrderedJson::array();
  for (const TraceFile& file : now_.files) {
    OrderedJson& entry = out["files"].emplace_back();
    entry["device"] = file.device;
    entry["worker"] = file.worker;
    entry["path"] = file.path;
    std::error_code error;
    const auto bytes = std::filesystem::file_size(file.path, error);
    entry["bytes"] = error ? 0 : bytes;
    if (!file.ended.empty()) entry["ended"] = file.ended;
  }
  return out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

absl::StatusOr<TraceRequest> ParseTraceRequest(std::string_view text) {
  const absl::Status bad = absl::InvalidArgumentError(
      R"(wanted is JSON such as {"record": true, "bytes_max": "64MiB"})");
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("record") || !json["record"].is_boolean()) return bad;
  TraceRequest request;
  request.record = json["record"].get<bool>();
  if (!request.record) return json.size() == 1 ? absl::StatusOr<TraceRequest>(request) : bad;
  const auto size = json.find("bytes_max");
  if (size == json.end() || json.size() != 2) return bad;
  if (size->is_number_unsigned()) {
    request.bytes_max = size->get<uint64_t>();
  } else if (size->is_string()) {
    request.bytes_max = ParseSize(size->get<std::string>()).value_or(0);
  }
  if (request.bytes_max < kTraceFileLeast || request.bytes_max > kTraceFileMost) {
    return absl::InvalidArgumentError(absl::StrCat("a trace's file has a bound from ",
                                                   kTraceFileLeast / kKiB, "KiB to ",
                                                   kTraceFileMost / kGiB, "GiB"));
  }
  return request;
}

}  // namespace consort::host
