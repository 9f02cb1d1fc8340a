// SPDX-License-Identifier: Apache-2.0
#include "host/checkpoint/manifest.h"

#include <time.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gen/wire/opcodes.h"
#include "host/session/session_state.h"

namespace consort::host {
namespace {

std::string UtcText(uint64_t unix_seconds) {
  const auto at = static_cast<time_t>(unix_seconds);
  tm parts = {};
  char text[32] = "-";
  if (gmtime_r(&at, &parts) != nullptr) {
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  }
  return text;
}

}  // namespace

Bytes CheckpointManifest::BytesOf(CheckpointChunk::Kind kind) const {
  Bytes bytes = 0;
  for (const CheckpointChunk& chunk : chunks) bytes += chunk.kind == kind ? chunk.bytes : 0;
  return bytes;
}

Bytes CheckpointManifest::packed_bytes() const {
  Bytes bytes = 0;
  for (const CheckpointChunk& chunk : chunks) bytes += chunk.packed_bytes;
  return bytes;
}

std::string IdText(const CheckpointId& id) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(id.data()), id.size()));
}

absl::Status CheckBuild(const CheckpointManifest& manifest) {
  if (manifest.description == wire::kDescriptionHash &&
      manifest.state_version == kSessionStateVersion) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("it was written by another build of Consort (",
                                                    absl::CHexEscape(manifest.version), ")"));
}

std::string ManifestText(const CheckpointManifest& manifest) {
  std::string text;
  const auto line = [&](const char* what, const std::string& value) {
    // Names are a program's words.
    absl::StrAppendFormat(&text, "%-14s%s\n", what, absl::CHexEscape(value));
  };
  const auto bytes = [&](Bytes value) { return absl::StrCat(value, " bytes"); };
  line("application", manifest.application);
  line("tenant", manifest.tenant);
  line("vm", manifest.vm);
  line("pid", absl::StrCat(manifest.pid));
  line("device", absl::StrCat(manifest.device, ", ", manifest.device_model));
  line("addresses", absl::StrFormat("%#x, %u bytes", manifest.window_base, manifest.window_bytes));
  line("written", absl::StrCat(UtcText(manifest.created_unix_seconds), " for ", manifest.who));
  line("by", absl::StrCat("Consort ", manifest.version,
                          CheckBuild(manifest).ok() ? "" : ", another build than this one"));
  line("id", IdText(manifest.id));
  line("memory", bytes(manifest.BytesOf(CheckpointChunk::Kind::kContents)));
  line("allocations", absl::StrCat(manifest.allocations));
  line("modules", absl::StrCat(manifest.libraries, " with ", manifest.kernels, " kernels, ",
                               bytes(manifest.BytesOf(CheckpointChunk::Kind::kImage))));
  line("streams", absl::StrCat(manifest.streams, ", events ", manifest.events));
  if (!manifest.resume_token.empty()) line("left", "its program goes on where it is awaited");
  line("pinned", absl::StrCat(bytes(manifest.pinned_bytes), ", which stay with the program"));
  line("on disk",
       absl::StrCat(bytes(manifest.packed_bytes()), " in ", manifest.chunks.size(), " chunks"));
  return text;
}

}  // namespace consort::host
