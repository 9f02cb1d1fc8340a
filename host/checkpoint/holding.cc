// SPDX-License-Identifier: Apache-2.0
#include "host/checkpoint/holding.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_io.h"
#include "base/status_macros.h"
#include "gen/wire/opcodes.h"
#include "host/checkpoint/folder.h"
#include "host/limits.h"
#include "host/session/image_store.h"
#include "host/session/redo_log.h"
#include "host/session/session_state.h"
#include "host/session/slot_memory.h"
#include "memmgr/packed_frame.h"

namespace consort::host {
namespace {

using Kind = CheckpointChunk::Kind;

// The other end hears why; if it does not, it sees the link's end.
void TellFailure(MoveLink* link, const absl::Status& status) {
  MoveFailed failed;
  SetText(failed.text, std::string(status.message()));
  (void)link->Send(failed);
}

void Count(const SessionState& state, CheckpointManifest* about) {
  for (const JournalEntry& entry : state.journal) {
    if (entry.opcode == static_cast<uint16_t>(wire::Opcode::kStreamCreate)) ++about->streams;
    if (entry.opcode == static_cast<uint16_t>(wire::Opcode::kEventCreate)) ++about->events;
    if (entry.opcode == static_cast<uint16_t>(wire::Opcode::kLibraryLoad)) ++about->libraries;
    if (entry.opcode == static_cast<uint16_t>(wire::Opcode::kKernelGet)) ++about->kernels;
  }
  about->allocations = state.window.allocations.size();
  for (const auto& memory : state.shared_host) about->pinned_bytes += memory.bytes;
}

// A piece of the contents, from its slot. Threads pack as many at once as there are slots; what
// waits for one ends with it.
struct Packing {
  MovePiece piece;
  std::future<absl::StatusOr<std::vector<std::byte>>> packed;
};

// Waits for the first, writes it and gives its slot back.
absl::Status WriteFirst(MoveLink* link, std::deque<Packing>* packing, CheckpointWriter* writer) {
  Packing first = std::move(packing->front());
  packing->pop_front();
  ASSIGN_OR_RETURN(const std::vector<std::byte> packed, first.packed.get());
  RETURN_IF_ERROR(
      writer->AddPacked(Kind::kContents, first.piece.address, first.piece.bytes, packed));
  MovePieceTaken taken;
  taken.slot = first.piece.slot;
  return link->Send(taken);
}

absl::Status WriteContents(MoveLink* link, const SlotMemory& slots, CheckpointWriter* writer) {
  std::deque<Packing> packing;  // as they came
  MoveContentsEnd end;
  while (true) {
    ControlPacket packet;
    const absl::Status received =
        packing.empty() ? link->Receive(&packet) : link->TryReceive(&packet);
    if (absl::IsDeadlineExceeded(received) && !packing.empty()) {
      RETURN_IF_ERROR(WriteFirst(link, &packing, writer));
      continue;
    }
    RETURN_IF_ERROR(received);
    if (packet.As(&end)) break;
    MovePiece piece;
    if (!packet.As(&piece) || piece.slot >= kMoveSlots || piece.bytes > kMoveSlotBytes ||
        packing.size() == kMoveSlots) {
      return absl::InternalError("the worker sends what belongs nowhere");
    }
    packing.push_back(
        {piece, std::async(std::launch::async, memmgr::PackFrame,
                           std::span<const std::byte>(slots.At(piece.slot), piece.bytes))});
  }
  while (!packing.empty()) RETURN_IF_ERROR(WriteFirst(link, &packing, writer));
  return absl::OkStatus();
}

// Takes all of a session. End: what its worker is to say in the end. `quiet_at`: when nothing of it
// went on any more.
template <class End>
absl::StatusOr<HeldSession> Take(MoveLink* link, const std::string& folder,
                                 CheckpointManifest* about, Nanos* quiet_at) {
  // Before the session stops: a folder that is of no use costs it nothing.
  ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointWriter> writer, CheckpointWriter::Begin(folder));
  ASSIGN_OR_RETURN(const std::unique_ptr<SlotMemory> slots, SlotMemory::Create());
  MoveReady ready;
  std::copy(writer->id().begin(), writer->id().end(), ready.id);
  RETURN_IF_ERROR(link->Send(ready, slots->fd()));
  HeldSession held;
  SessionState state;
  RETURN_IF_ERROR(ReceivePreparation(link, &state));
  MoveMemoryEnd end;
  RETURN_IF_ERROR(link->Expect(&end));
  RETURN_IF_ERROR(link->Send(MovePrepared()));
  std::vector<std::byte> encoded;
  RETURN_IF_ERROR(ReceiveSession(link, &encoded, &state, &held.descriptors));
  *quiet_at = MonotonicNow();
  Count(state, about);
  RETURN_IF_ERROR(writer->Add(Kind::kState, 0, encoded));
  for (const SessionState::Image& image : state.images) {
    const auto bytes = ReadKeptImage(held.descriptors.images.get(), image.kept);
    if (!bytes.has_value()) return absl::InternalError("a module's image is lost");
    RETURN_IF_ERROR(writer->Add(Kind::kImage, image.kept.offset, *bytes));
  }
  held.descriptors.images.Reset();  // the folder has them
  RETURN_IF_ERROR(WriteContents(link, *slots, writer.get()));
  ASSIGN_OR_RETURN(*about, writer->Finish(std::move(*about)));
  MoveRestored restored;
  restored.held = 1;
  RETURN_IF_ERROR(link->Send(restored));
  End said;
  RETURN_IF_ERROR(link->Expect(&said));
  held.id = about->id;
  held.folder = folder;
  held.lock = writer->TakeLock();
  return held;
}

// All that is left of a session of this build, but for contents.
struct Saved {
  std::vector<std::byte> state;
  UniqueFd images;  // a file as ImageStore has it; empty: there are none
};

absl::StatusOr<Saved> ReadSaved(CheckpointReader* reader) {
  Saved saved;
  const std::vector<CheckpointChunk>& chunks = reader->manifest().chunks;
  const Bytes state_bytes = reader->manifest().BytesOf(Kind::kState);
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].kind == Kind::kContents) continue;
    std::vector<std::byte> data(chunks[i].bytes);
    RETURN_IF_ERROR(reader->Read(i, data));
    if (chunks[i].kind == Kind::kState) {
      if (chunks[i].at != saved.state.size() || state_bytes > kMoveStateBytesMax) {
        return absl::DataLossError("the checkpoint's state is not whole");
      }
      saved.state.insert(saved.state.end(), data.begin(), data.end());
      continue;
    }
    if (!saved.images.valid()) saved.images.Reset(memfd_create("consort-images", MFD_CLOEXEC));
    if (!saved.images.valid() || !WriteAt(saved.images.get(), data, chunks[i].at)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("memory for the images of its modules: ", strerror(errno)));
    }
  }
  return saved;
}

// Waits until one of the slots is not busy.
absl::Status AwaitSlot(MoveLink* link, std::vector<bool>* busy, uint64_t* slot) {
  while (true) {
    for (*slot = 0; *slot < kMoveSlots; ++*slot) {
      if (!(*busy)[*slot]) return absl::OkStatus();
    }
    MovePieceTaken taken;
    RETURN_IF_ERROR(link->Expect(&taken));
    if (taken.slot >= kMoveSlots || !(*busy)[taken.slot]) {
      return absl::InternalError("the worker gives back what it has not got");
    }
    (*busy)[taken.slot] = false;
  }
}

absl::Status SendContents(MoveLink* link, const SlotMemory& slots, CheckpointReader* reader) {
  std::vector<bool> busy(kMoveSlots);
  const std::vector<CheckpointChunk>& chunks = reader->manifest().chunks;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].kind != Kind::kContents) continue;
    MovePiece piece;
    RETURN_IF_ERROR(AwaitSlot(link, &busy, &piece.slot));
    piece.address = chunks[i].at;
    piece.bytes = chunks[i].bytes;
    RETURN_IF_ERROR(reader->Read(i, std::span(slots.At(piece.slot), piece.bytes)));
    busy[piece.slot] = true;
    RETURN_IF_ERROR(link->Send(piece));
  }
  return link->Send(MoveContentsEnd());
}

absl::Status OfThisBuild(const CheckpointManifest& manifest, const std::string& folder) {
  const absl::Status build = CheckBuild(manifest);
  if (build.ok()) return build;
  return absl::FailedPreconditionError(absl::StrCat(folder, ": ", build.message()));
}

// `describe` says what goes beside the images, and may refuse.
absl::StatusOr<Bytes> Restore(MoveLink* link, const std::string& folder,
                              const std::function<absl::StatusOr<BorrowedDescriptors>(
                                  const CheckpointManifest&, const Saved&)>& describe) {
  ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader, CheckpointReader::Open(folder));
  const CheckpointManifest& manifest = reader->manifest();
  RETURN_IF_ERROR(OfThisBuild(manifest, folder));
  ASSIGN_OR_RETURN(const Saved saved, ReadSaved(reader.get()));
  ASSIGN_OR_RETURN(BorrowedDescriptors descriptors, describe(manifest, saved));
  if (saved.images.valid()) {
    descriptors.emplace_back(MoveDescriptor::kImages, saved.images.get());
  }
  MoveReady ready;
  UniqueFd memory;
  RETURN_IF_ERROR(link->Expect(&ready, &memory));
  if (!memory.valid()) return absl::InternalError("the worker says something else");
  ASSIGN_OR_RETURN(const std::unique_ptr<SlotMemory> slots, SlotMemory::Create(std::move(memory)));
  RETURN_IF_ERROR(SendPreparation(link, saved.state));
  RETURN_IF_ERROR(link->Send(MoveMemoryEnd()));
  MovePrepared prepared;
  RETURN_IF_ERROR(link->Expect(&prepared));
  RETURN_IF_ERROR(SendSession(link, saved.state, descriptors));
  RETURN_IF_ERROR(SendContents(link, *slots, reader.get()));
  while (true) {
    ControlPacket packet;
    RETURN_IF_ERROR(link->Receive(&packet));
    MoveRestored restored;
    MovePieceTaken taken;
    if (packet.As(&restored)) break;
    if (!packet.As(&taken)) return absl::InternalError("the worker says something else");
  }
  RETURN_IF_ERROR(link->Send(MoveCommit()));
  return manifest.BytesOf(Kind::kContents);
}

absl::StatusOr<BorrowedDescriptors> DescribeHeld(const HeldSession& held, const std::string& folder,
                                                 const CheckpointManifest& manifest) {
  if (manifest.id != held.id) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder,
                     ": it is another checkpoint than that with which the application was "
                     "held, which is ",
                     IdText(held.id)));
  }
  BorrowedDescriptors descriptors = {{MoveDescriptor::kSocket, held.descriptors.socket.get()}};
  if (held.descriptors.rings.valid()) {
    descriptors.emplace_back(MoveDescriptor::kRings, held.descriptors.rings.get());
  }
  for (const UniqueFd& shared : held.descriptors.shared_host) {
    descriptors.emplace_back(MoveDescriptor::kSharedHost, shared.get());
  }
  return descriptors;
}

absl::StatusOr<BorrowedDescriptors> DescribeLost(const LostSession& lost,
                                                 const CheckpointManifest& manifest,
                                                 const Saved& saved) {
  RETURN_IF_ERROR(SettleRedo(lost.redo.get(), manifest.id));
  const auto state = DecodeSessionState(saved.state);
  if (!state.has_value()) return absl::DataLossError("the checkpoint's state is not whole");
  BorrowedDescriptors descriptors = {{MoveDescriptor::kSocket, lost.socket.get()},
                                     {MoveDescriptor::kRings, lost.rings.get()},
                                     {MoveDescriptor::kRedo, lost.redo.get()}};
  for (const SessionState::SharedHostMemory& memory : state->shared_host) {
    const auto found = lost.shared_host.find(memory.number);
    if (found == lost.shared_host.end())
      return absl::DataLossError("its pinned memory is not kept");
    descriptors.emplace_back(MoveDescriptor::kSharedHost, found->second.get());
  }
  return descriptors;
}

}  // namespace

absl::StatusOr<HeldSession> HoldSession(MoveLink* link, const std::string& folder,
                                        CheckpointManifest about) {
  Nanos quiet_at = 0;
  absl::StatusOr<HeldSession> held = Take<MoveCommit>(link, folder, &about, &quiet_at);
  if (!held.ok()) TellFailure(link, held.status());
  return held;
}

absl::StatusOr<SavedSession> SaveSession(MoveLink* link, const std::string& folder,
                                         CheckpointManifest about) {
  Nanos quiet_at = 0;
  const absl::Status saved = Take<MoveStays>(link, folder, &about, &quiet_at).status();
  if (saved.ok()) return SavedSession{std::move(about), MonotonicNow() - quiet_at};
  TellFailure(link, saved);
  return saved;
}

absl::StatusOr<AwaitedSession> AwaitSession(const std::string& folder) {
  AwaitedSession awaited;
  ASSIGN_OR_RETURN(awaited.held.lock, LockFolder(folder));
  ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader, CheckpointReader::Open(folder));
  awaited.manifest = reader->manifest();
  RETURN_IF_ERROR(OfThisBuild(awaited.manifest, folder));
  if (awaited.manifest.resume_token.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, ": its program waits where it was taken (consortctl restore)"));
  }
  awaited.held.id = awaited.manifest.id;
  awaited.held.folder = folder;
  return awaited;
}

absl::StatusOr<Bytes> RestoreSession(MoveLink* link, const HeldSession& held,
                                     const std::string& folder) {
  absl::StatusOr<Bytes> restored =
      Restore(link, folder, [&](const CheckpointManifest& manifest, const Saved&) {
        return DescribeHeld(held, folder, manifest);
      });
  if (!restored.ok()) TellFailure(link, restored.status());
  return restored;
}

absl::StatusOr<Bytes> RedoSession(MoveLink* link, const LostSession& lost,
                                  const std::string& folder) {
  absl::StatusOr<Bytes> redone =
      Restore(link, folder, [&](const CheckpointManifest& manifest, const Saved& saved) {
        return DescribeLost(lost, manifest, saved);
      });
  if (!redone.ok()) TellFailure(link, redone.status());
  return redone;
}

}  // namespace consort::host
