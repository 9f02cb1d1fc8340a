// SPDX-License-Identifier: Apache-2.0
// Memory of a program's session on another device: this session's device memory lent to that one,
// and that one's reached from here (see peer_link.h); or only its addresses, at which the program
// maps memory itself (virtual_memory.h); or its host memory, of which the program names each piece.
//
//   PeerOffer, to the session that lends     a token; it expects a link for kPeerOfferMax
//   PeerOpen, to the one that reaches        PeerWanted ─▶ consortd ─▶ PeerLink to both
//   PeerClose, likewise                      unmaps; PeerGone ─▶ consortd
//   HostShow, to the one; HostReach, to the other: a piece of host memory, by its descriptor
#include <fcntl.h>
#include <sys/random.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "host/control/control_socket.h"
#include "host/limits.h"
#include "host/session/session.h"
#include "vmsock/deadline.h"

namespace consort::host {

void Session::TakePeerLink(const PeerLink& link, UniqueFd socket) {
  absl::MutexLock lock(&channel_mutex_);
  peer_news_.push_back({link, std::move(socket), /*refusal=*/""});
  any_peer_news_.store(true, std::memory_order_relaxed);
}

void Session::TakePeerRefusal(const PeerRefused& refused) {
  absl::MutexLock lock(&channel_mutex_);
  PeerNews news;
  news.link.wanted.session = refused.session;
  news.link.wanted.peer = refused.peer;
  news.link.wanted.use = refused.use;
  news.refusal = GetText(refused.text);
  peer_news_.push_back(std::move(news));
  any_peer_news_.store(true, std::memory_order_relaxed);
}

CUresult Session::PeerOffer(const wire::FrameHeader&, const wire::PeerOfferRequest&,
                            wire::PeerOfferReply* reply) {
  if (peers_by_ == nullptr) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  if (!peer_token_.has_value()) {
    ExportToken token;
    // Up to 256 bytes come whole or not at all. Source: getrandom(2).
    CHECK(getrandom(&token, sizeof(token), 0) == sizeof(token));
    peer_token_ = token;
  }
  if (MonotonicNow() > peer_offered_until_) peer_offers_ = 0;
  ++peer_offers_;
  peer_offered_until_ = MonotonicNow() + kPeerOfferMax;
  reply->session = open_.session;
  reply->token_high = peer_token_->high;
  reply->token_low = peer_token_->low;
  return CUDA_SUCCESS;
}

void Session::PeerOpen(const wire::FrameHeader& header, const wire::PeerOpenRequest& request) {
  const PeerKey key = {request.session, static_cast<PeerUse>(request.use)};
  if (request.use > static_cast<uint32_t>(PeerUse::kHost)) {
    return ReplyNow(header, CUDA_ERROR_INVALID_VALUE);
  }
  if (peers_by_ == nullptr || (residency_->swaps() && key.use != PeerUse::kHost)) {
    return ReplyNow(header, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  }
  if (reaches_.contains(key) || peer_waits_.contains(key)) {
    return ReplyNow(header, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  }
  if (reaches_.size() + peer_waits_.size() >= kPeersPerSession) {
    return ReplyNow(header, CUDA_ERROR_TOO_MANY_PEERS);
  }
  PeerWanted wanted;
  wanted.session = open_.session;
  wanted.peer = key.session;
  wanted.token_high = request.token_high;
  wanted.token_low = request.token_low;
  wanted.use = key.use;
  if (const absl::Status sent = peers_by_->Send(wanted); !sent.ok()) {
    LOG(ERROR) << PeerName(key.session) << ": telling consortd: " << sent;
    return ReplyNow(header, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  }
  peer_waits_.emplace(key, PeerWait{header, MonotonicNow() + kPeerOpenMax});
}

void Session::PeerClose(const wire::FrameHeader& header, const wire::PeerCloseRequest& request) {
  const PeerKey key = {request.session, static_cast<PeerUse>(request.use)};
  if (!reaches_.contains(key)) return ReplyNow(header, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  EndAfterAllWork(header, PendingItem::Kind::kPeerClose, key.session,
                  static_cast<uint64_t>(key.use));
}

void Session::EndAfterAllWork(const wire::FrameHeader& header, PendingItem::Kind kind,
                              uint64_t peer, uint64_t what) {
  PendingItem item;
  item.kind = kind;
  item.request = header;
  item.value = peer;
  item.offset = what;
  const CUresult fenced = streams_.FenceAll(&item.fence);
  if (fenced != CUDA_SUCCESS) return ReplyNow(header, fenced);
  pending_.Add(std::move(item));
}

void Session::EndReach(const PeerKey& key) {
  const auto it = reaches_.find(key);
  if (it == reaches_.end()) return;
  if (key.use == PeerUse::kAddresses) virtual_memory_->Leave(*it->second.addresses);
  reaches_.erase(it);
  TellPeerGone(key);
}

void Session::TellPeerGone(const PeerKey& key) {
  PeerGone gone;
  gone.session = open_.session;
  gone.peer = key.session;
  gone.use = key.use;
  const absl::Status sent = peers_by_->Send(gone);
  LOG_IF(ERROR, !sent.ok()) << PeerName(key.session) << ": telling consortd: " << sent;
}

void Session::EndPeerWait(std::map<PeerKey, PeerWait>::iterator wait, CUresult result) {
  const wire::FrameHeader header = wait->second.header;
  const PeerKey key = wait->first;
  peer_waits_.erase(wait);
  if (result != CUDA_SUCCESS) EndReach(key);
  ReplyNow(header, result);
}

std::string Session::PeerName(uint64_t peer) const {
  return absl::StrCat("memory of session ", peer, " in session ", open_.session);
}

bool Session::TurnPeers() {
  bool progress = false;
  std::vector<FetchedMemory> fetched;
  if (any_peer_news_.load(std::memory_order_relaxed)) {
    std::vector<PeerNews> news;
    {
      absl::MutexLock lock(&channel_mutex_);
      news.swap(peer_news_);
      fetched.swap(fetched_);
      any_peer_news_.store(false, std::memory_order_relaxed);
    }
    progress = true;
    for (PeerNews& one : news) {
      if (one.link.wanted.session == open_.session) {
        BeginReach(std::move(one));
      } else {
        Lend(std::move(one));
      }
    }
  }
  if (!fetches_.empty()) progress |= TurnFetches(std::move(fetched));
  for (auto it = peer_waits_.begin(); it != peer_waits_.end();) {
    const auto wait = it++;
    const auto reach = reaches_.find(wait->first);
    PeerReach::State state = PeerReach::State::kMaps;
    if (reach != reaches_.end()) {
      const PeerReach* const memory = reach->second.memory.get();
      state = memory != nullptr ? memory->state() : PeerReach::State::kReaches;
    }
    if (state == PeerReach::State::kReaches) {
      EndPeerWait(wait, CUDA_SUCCESS);
    } else if (state == PeerReach::State::kFailed || device_result() != CUDA_SUCCESS ||
               MonotonicNow() > wait->second.deadline) {
      EndPeerWait(wait, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    } else {
      continue;
    }
    progress = true;
  }
  return progress;
}

void Session::BeginReach(PeerNews news) {
  const PeerKey key = {news.link.wanted.peer, news.link.wanted.use};
  const auto wait = peer_waits_.find(key);
  if (!news.refusal.empty()) {
    LOG(WARNING) << PeerName(key.session) << " is not to be had: " << news.refusal;
    if (wait != peer_waits_.end()) EndPeerWait(wait, CUDA_ERROR_TOO_MANY_PEERS);
    return;
  }
  const PeerLink& link = news.link;
  Reach reach;
  absl::Status begun = absl::OkStatus();
  if (key.use == PeerUse::kHost) {
    auto host =
        SharedHost::Create(device_, link.window_base + link.window_bytes, link.shared_host_bytes);
    begun = host.status();
    if (begun.ok()) reach.host = *std::move(host);
  } else if (key.use != PeerUse::kCopies) {
    auto addresses = AddressesOf(link);
    begun = addresses.status();
    if (begun.ok()) reach.addresses = *std::move(addresses);
  }
  if (begun.ok() && key.use == PeerUse::kAddresses) virtual_memory_->Join(reach.addresses);
  if (begun.ok() && (key.use == PeerUse::kCopies || key.use == PeerUse::kKernels)) {
    PeerReachOptions options;
    options.addresses = reach.addresses;
    options.name = PeerName(key.session);
    reach.memory = std::make_unique<PeerReach>(device_, options, std::move(news.socket));
  }
  if (!begun.ok()) {
    LOG(ERROR) << PeerName(key.session) << ": " << begun.message();
    TellPeerGone(key);
    if (wait != peer_waits_.end()) EndPeerWait(wait, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    return;
  }
  reaches_.emplace(key, std::move(reach));
  // It took longer than its request was to wait.
  if (wait == peer_waits_.end()) EndReach(key);
}

absl::StatusOr<std::shared_ptr<const PeerAddresses>> Session::AddressesOf(
    const PeerLink& link) const {
  for (const auto& [key, reach] : reaches_) {
    if (key.session == link.wanted.peer && reach.addresses != nullptr) return reach.addresses;
  }
  return PeerAddresses::Keep(driver_, link.window_base, link.window_bytes);
}

void Session::Lend(PeerNews news) {
  const PeerWanted& wanted = news.link.wanted;
  const ExportToken token = {wanted.token_high, wanted.token_low};
  if (!news.refusal.empty() || peer_token_ != token || MonotonicNow() > peer_offered_until_) {
    LOG(WARNING) << "session " << wanted.session << " wants memory of session " << open_.session
                 << ", which offers none";
    return;
  }
  if (--peer_offers_ == 0) peer_offered_until_ = 0;
  if (wanted.use != PeerUse::kCopies && wanted.use != PeerUse::kKernels) return;
  // What is swapped would have to be here whenever the other device runs.
  if (residency_->swaps()) {
    LOG(WARNING) << "session " << wanted.session << " wants memory of session " << open_.session
                 << ", which is swapped";
    return;
  }
  // From here on it cannot go on elsewhere.
  if (record_ != nullptr) record_->BeginWork();
  rest_hopeless_ = false;
  auto lender = std::make_unique<PeerLender>(
      driver_, window_.get(),
      absl::StrCat("memory of session ", open_.session, " in session ", wanted.session),
      std::move(news.socket));
  std::erase_if(lenders_, [](const auto& one) { return !one->Lends(); });
  if (lender->Begin()) lenders_.push_back(std::move(lender));
}

bool Session::AwaitsPeers() const {
  return !peer_waits_.empty() || !fetches_.empty() || MonotonicNow() < peer_offered_until_;
}

bool Session::HasPeers() {
  std::erase_if(lenders_, [](const auto& one) { return !one->Lends(); });
  return !lenders_.empty() || !reaches_.empty() || shows_host_ || AwaitsPeers();
}

bool Session::FindPeerRows(uint64_t pitch, uint64_t width, uint64_t rows, uint64_t* address) const {
  const Bytes bytes = RowBytes(pitch, width, rows);
  if (bytes == 0 || (rows != 1 && pitch < width)) return false;
  for (const auto& [key, reach] : reaches_) {
    if (reach.memory == nullptr) continue;
    const std::optional<uint64_t> here = reach.memory->Find(*address, bytes);
    if (!here.has_value()) continue;
    *address = *here;
    return true;
  }
  return false;
}

bool Session::ReachesPeer(uint64_t address, Bytes bytes) const {
  for (const auto& [key, reach] : reaches_) {
    if (key.use == PeerUse::kKernels && reach.memory->Find(address, bytes).has_value()) return true;
  }
  return false;
}

CUresult Session::HostShow(const wire::FrameHeader&, const wire::HostShowRequest& request,
                           wire::HostShowReply* reply) {
  if (shared_host_ == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const std::optional<SharedHost::Share> share = shared_host_->FindAround(request.address);
  if (!share.has_value()) return CUDA_ERROR_INVALID_VALUE;
  if (!ShowShare(*share, &reply->offset)) return CUDA_ERROR_OUT_OF_MEMORY;
  reply->address = share->address;
  reply->bytes = share->bytes;
  shows_host_ = true;
  return CUDA_SUCCESS;
}

CUresult Session::HostReach(const wire::FrameHeader&, const wire::HostReachRequest& request) {
  // It was sent before the request: there now, or never.
  UniqueFd file(channel_->ReceiveDescriptor(0));
  SharedHost* const host = HostOf(request.session);
  if (host == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SharedHost::Share share;
  share.address = request.address;
  share.offset = request.offset;
  share.bytes = request.bytes;
  share.lent = !file.valid();
  if (share.lent) file = UniqueFd(fcntl(vm_lender_.file(), F_DUPFD_CLOEXEC, 0));
  return host->TakeUp(share, std::move(file));
}

void Session::HostLeave(const wire::FrameHeader& header, const wire::HostLeaveRequest& request) {
  if (HostOf(request.session) == nullptr) return ReplyNow(header, CUDA_ERROR_INVALID_VALUE);
  EndAfterAllWork(header, PendingItem::Kind::kHostLeave, request.session, request.address);
}

CUresult Session::LeaveHost(uint64_t peer, uint64_t address) {
  SharedHost* const host = HostOf(peer);
  return host != nullptr ? host->Free(address) : CUDA_ERROR_INVALID_VALUE;
}

SharedHost* Session::HostOf(uint64_t peer) const {
  const auto it = reaches_.find({peer, PeerUse::kHost});
  return it != reaches_.end() ? it->second.host.get() : nullptr;
}

bool Session::InSharedHost(uint64_t address, Bytes bytes) const {
  if (shared_host_ != nullptr && shared_host_->Contains(address, bytes)) return true;
  for (const auto& [key, reach] : reaches_) {
    if (reach.host != nullptr && reach.host->Covers(address, bytes)) return true;
  }
  return false;
}

}  // namespace consort::host
