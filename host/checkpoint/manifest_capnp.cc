// SPDX-License-Identifier: Apache-2.0
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/array.h>
#include <kj/exception.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gen/host/checkpoint/checkpoint.capnp.h"
#include "host/checkpoint/manifest.h"
#include "host/limits.h"
#include "memmgr/packed_frame.h"

namespace consort::host {
namespace {

constexpr char kMagic[8] = {'C', 'O', 'N', 'S', 'C', 'K', 'P', 'T'};

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
};
static_assert(sizeof(Header) == 16);

// Whole, whatever bytes it has.
capnp::Text::Reader AsText(const std::string& text) { return {text.c_str(), text.size()}; }

void Write(const CheckpointManifest& from, capnp_checkpoint::Manifest::Builder to) {
  to.setId(kj::arrayPtr(from.id.data(), from.id.size()));
  to.setCreatedUnixSeconds(from.created_unix_seconds);
  to.setWho(AsText(from.who));
  to.setVersion(AsText(from.version));
  to.setDescription(from.description);
  to.setStateVersion(from.state_version);
  to.setTenant(AsText(from.tenant));
  to.setVm(AsText(from.vm));
  to.setApplication(AsText(from.application));
  to.setPid(from.pid);
  to.setDevice(from.device);
  to.setDeviceModel(AsText(from.device_model));
  to.setWindowBase(from.window_base);
  to.setWindowBytes(from.window_bytes);
  to.setStreams(from.streams);
  to.setEvents(from.events);
  to.setLibraries(from.libraries);
  to.setKernels(from.kernels);
  to.setAllocations(from.allocations);
  to.setPinnedBytes(from.pinned_bytes);
  const wire::ResumeToken& token = from.resume_token;
  if (!token.empty()) to.setResumeToken(kj::arrayPtr(token.bytes, sizeof(token.bytes)));
  to.setVgpu(from.vgpu);
  auto chunks = to.initChunks(static_cast<unsigned>(from.chunks.size()));
  for (unsigned i = 0; i < chunks.size(); ++i) {
    chunks[i].setKind(static_cast<uint8_t>(from.chunks[i].kind));
    chunks[i].setAt(from.chunks[i].at);
    chunks[i].setBytes(from.chunks[i].bytes);
    chunks[i].setPackedBytes(from.chunks[i].packed_bytes);
    chunks[i].setChecksum(from.chunks[i].checksum);
  }
}

std::string Text(capnp::Text::Reader text) { return std::string(text.begin(), text.size()); }

bool Read(capnp_checkpoint::Manifest::Reader from, CheckpointManifest* to) {
  const auto id = from.getId();
  if (id.size() != to->id.size()) return false;
  std::copy(id.begin(), id.end(), to->id.begin());
  to->created_unix_seconds = from.getCreatedUnixSeconds();
  to->who = Text(from.getWho());
  to->version = Text(from.getVersion());
  to->description = from.getDescription();
  to->state_version = from.getStateVersion();
  to->tenant = Text(from.getTenant());
  to->vm = Text(from.getVm());
  to->application = Text(from.getApplication());
  to->pid = from.getPid();
  to->device = from.getDevice();
  to->device_model = Text(from.getDeviceModel());
  to->window_base = from.getWindowBase();
  to->window_bytes = from.getWindowBytes();
  to->streams = from.getStreams();
  to->events = from.getEvents();
  to->libraries = from.getLibraries();
  to->kernels = from.getKernels();
  to->allocations = from.getAllocations();
  to->pinned_bytes = from.getPinnedBytes();
  const auto token = from.getResumeToken();
  if (token.size() != 0 && token.size() != sizeof(to->resume_token.bytes)) return false;
  std::copy(token.begin(), token.end(), to->resume_token.bytes);
  to->vgpu = from.getVgpu();
  for (const auto chunk : from.getChunks()) {
    CheckpointChunk& out = to->chunks.emplace_back();
    if (chunk.getKind() > static_cast<uint8_t>(CheckpointChunk::Kind::kContents) ||
        chunk.getBytes() == 0 || chunk.getBytes() > kCheckpointChunkBytesMax ||
        chunk.getPackedBytes() == 0 || chunk.getPackedBytes() > 2 * kCheckpointChunkBytesMax) {
      return false;
    }
    out.kind = static_cast<CheckpointChunk::Kind>(chunk.getKind());
    out.at = chunk.getAt();
    out.bytes = chunk.getBytes();
    out.packed_bytes = chunk.getPackedBytes();
    out.checksum = chunk.getChecksum();
  }
  return true;
}

absl::Status Damaged(std::string_view how) {
  return absl::DataLossError(
      absl::StrCat("it is damaged: ", absl::string_view(how.data(), how.size())));
}

}  // namespace

absl::StatusOr<std::vector<std::byte>> EncodeManifest(const CheckpointManifest& manifest) {
  capnp::MallocMessageBuilder message;
  Write(manifest, message.initRoot<capnp_checkpoint::Manifest>());
  const auto words = capnp::messageToFlatArray(message);
  const auto plain = words.asBytes();
  if (plain.size() > kCheckpointManifestBytesMax) {
    return absl::ResourceExhaustedError("its chunks are too many");
  }
  ASSIGN_OR_RETURN(const std::vector<std::byte> packed,
                   memmgr::PackFrame(std::as_bytes(std::span(plain.begin(), plain.size()))));
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kManifestVersion;
  std::vector<std::byte> bytes(sizeof(header) + packed.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::copy(packed.begin(), packed.end(), bytes.begin() + sizeof(header));
  return bytes;
}

absl::StatusOr<CheckpointManifest> DecodeManifest(std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() < sizeof(kMagic) || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return absl::InvalidArgumentError("it is no manifest of a checkpoint");
  }
  if (bytes.size() < sizeof(header)) return Damaged("it was cut off");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.version != kManifestVersion) {
    return absl::InvalidArgumentError(absl::StrCat("its format is version ", header.version,
                                                   "; this build reads ", kManifestVersion));
  }
  if (header.reserved != 0) return Damaged("its header has what no header has");
  const auto frame = bytes.subspan(sizeof(header));
  const auto unpacked = memmgr::UnpackedBytes(frame);
  if (!unpacked.has_value() || *unpacked > kCheckpointManifestBytesMax ||
      *unpacked % sizeof(capnp::word) != 0) {
    return Damaged("its size cannot be");
  }
  auto words = kj::heapArray<capnp::word>(*unpacked / sizeof(capnp::word));
  const absl::Status whole = memmgr::UnpackFrame(
      frame, std::as_writable_bytes(std::span(words.asBytes().begin(), words.asBytes().size())));
  if (!whole.ok()) return Damaged(std::string_view(whole.message().data(), whole.message().size()));
  try {
    // Each field is read once.
    capnp::ReaderOptions options;
    options.traversalLimitInWords = 2 * words.size() + 64;
    capnp::FlatArrayMessageReader message(words, options);
    CheckpointManifest manifest;
    if (!Read(message.getRoot<capnp_checkpoint::Manifest>(), &manifest)) {
      return Damaged("it says what cannot be");
    }
    return manifest;
  } catch (const kj::Exception& exception) {
    return Damaged(exception.getDescription().cStr());
  }
}

}  // namespace consort::host
