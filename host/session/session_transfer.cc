// SPDX-License-Identifier: Apache-2.0
#include "host/session/session_transfer.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/file_io.h"
#include "base/status_macros.h"
#include "host/limits.h"
#include "host/session/image_store.h"

namespace consort::host {
namespace {

// A file with these bytes.
absl::StatusOr<UniqueFd> FileOf(std::span<const std::byte> bytes) {
  UniqueFd file(memfd_create("consort-state", MFD_CLOEXEC));
  if (!file.valid() || !WriteAt(file.get(), bytes, 0)) {
    return absl::ResourceExhaustedError(absl::StrCat("writing its state: ", strerror(errno)));
  }
  return file;
}

// Nothing: the file has not these bytes.
std::optional<std::vector<std::byte>> ReadFile(const UniqueFd& file, Bytes bytes) {
  return bytes <= kMoveStateBytesMax ? ReadKeptImage(file.get(), {0, bytes}) : std::nullopt;
}

}  // namespace

absl::Status SendPreparation(MoveLink* link, std::span<const std::byte> state) {
  ASSIGN_OR_RETURN(const UniqueFd file, FileOf(state));
  MovePrepare message;
  message.bytes = state.size();
  return link->Send(message, file.get());
}

absl::Status ReceivePreparation(MoveLink* link, SessionState* state) {
  MovePrepare message;
  UniqueFd file;
  RETURN_IF_ERROR(link->Expect(&message, &file));
  const auto bytes = ReadFile(file, message.bytes);
  auto decoded = bytes.has_value() ? DecodeSessionState(*bytes) : std::nullopt;
  if (!decoded.has_value()) return absl::InternalError("what is to be prepared cannot be read");
  *state = *std::move(decoded);
  return absl::OkStatus();
}

absl::Status SendSession(MoveLink* link, std::span<const std::byte> state,
                         const BorrowedDescriptors& descriptors) {
  if (state.size() > kMoveStateBytesMax) {
    return absl::FailedPreconditionError("its objects are too many");
  }
  ASSIGN_OR_RETURN(const UniqueFd file, FileOf(state));
  MoveState message;
  message.bytes = state.size();
  message.descriptors = descriptors.size();
  RETURN_IF_ERROR(link->Send(message, file.get()));
  for (const auto& [role, descriptor] : descriptors) {
    MoveDescriptor passed;
    passed.role = role;
    RETURN_IF_ERROR(link->Send(passed, descriptor));
  }
  return absl::OkStatus();
}

absl::Status ReceiveSession(MoveLink* link, std::vector<std::byte>* encoded, SessionState* state,
                            SessionDescriptors* descriptors) {
  MoveState message;
  UniqueFd file;
  RETURN_IF_ERROR(link->Expect(&message, &file));
  for (uint64_t i = 0; i < message.descriptors; ++i) {
    MoveDescriptor passed;
    UniqueFd descriptor;
    RETURN_IF_ERROR(link->Expect(&passed, &descriptor));
    switch (passed.role) {
      case MoveDescriptor::kSocket:
        descriptors->socket = std::move(descriptor);
        break;
      case MoveDescriptor::kRings:
        descriptors->rings = std::move(descriptor);
        break;
      case MoveDescriptor::kImages:
        descriptors->images = std::move(descriptor);
        break;
      case MoveDescriptor::kRedo:
        descriptors->redo = std::move(descriptor);
        break;
      case MoveDescriptor::kSharedHost:
        descriptors->shared_host.push_back(std::move(descriptor));
        break;
    }
  }
  auto bytes = ReadFile(file, message.bytes);
  std::optional<SessionState> decoded;
  if (bytes.has_value()) decoded = DecodeSessionState(*bytes);
  if (!decoded.has_value() || !descriptors->socket.valid() ||
      decoded->rings != descriptors->rings.valid() ||
      decoded->shared_host.size() != descriptors->shared_host.size()) {
    return absl::InternalError("the other worker's state cannot be read");
  }
  *encoded = *std::move(bytes);
  *state = *std::move(decoded);
  return absl::OkStatus();
}

}  // namespace consort::host
