// SPDX-License-Identifier: Apache-2.0
#include "host/memory/memory_broker.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "device/driver/driver_loader.h"
#include "policies/admission/victims.h"
#include "vmsock/deadline.h"

namespace consort::host {

// --- Clients

MemoryClient::~MemoryClient() {
  Retire();
  absl::MutexLock lock(&broker_->mutex_);
  broker_->device_used_ -= device_;
  broker_->device_granted_ -= device_granted_;
  MemoryBroker::TenantUse& tenant = broker_->tenants_[terms_.tenant];
  tenant.allotted -= allotted_;
  if (--tenant.clients == 0) broker_->tenants_.erase(terms_.tenant);
  broker_->clients_.remove(this);
  broker_->GrantRoom();
  broker_->changed_.SignalAll();
}

void MemoryClient::set_window(memmgr::AddressWindow* window) {
  absl::MutexLock lock(&broker_->mutex_);
  window_ = window;
}

bool MemoryClient::Allot(Bytes bytes) {
  MemoryBroker& broker = *broker_;
  absl::MutexLock lock(&broker.mutex_);
  Bytes& of_tenant = broker.tenants_[terms_.tenant].allotted;
  if (bytes > broker.QuotaLeft(*this)) {
    refusal_ = Refusal::kQuota;
    return false;
  }
  if (broker.store_ != nullptr) {
    if (!broker.RoomFor(*this, bytes)) {
      refusal_ = Refusal::kShort;
      return false;
    }
    granted_ -= std::min(granted_, bytes);
  }
  refusal_ = Refusal::kNone;
  allotted_ += bytes;
  of_tenant += bytes;
  return true;
}

void MemoryClient::Unallot(Bytes bytes) {
  absl::MutexLock lock(&broker_->mutex_);
  allotted_ -= bytes;
  broker_->tenants_[terms_.tenant].allotted -= bytes;
  if (broker_->store_ != nullptr) broker_->GrantRoom();
}

bool MemoryClient::TakeDevice(Bytes bytes) {
  MemoryBroker& broker = *broker_;
  absl::MutexLock lock(&broker.mutex_);
  if (broker.store_ == nullptr) {
    if (!broker.RoomFor(*this, bytes)) {
      refusal_ = Refusal::kShort;
      return false;
    }
    granted_ -= std::min(granted_, bytes);
  } else if (state_ == State::kMoving) {
    // The broker's own thread, which has planned for it.
    if (bytes > broker.planned_) return false;
    broker.planned_ -= bytes;
  } else {
    const Bytes kept = std::min(device_granted_, bytes);
    if (bytes > kept && (broker.DeviceWanted() || bytes - kept > broker.DeviceFree())) {
      refusal_ = Refusal::kDevice;
      return false;
    }
    device_granted_ -= kept;
    broker.device_granted_ -= kept;
  }
  if (device_ == 0) here_since_ = MonotonicNow();
  device_ += bytes;
  broker.device_used_ += bytes;
  return true;
}

void MemoryClient::ReturnDevice(Bytes bytes) {
  absl::MutexLock lock(&broker_->mutex_);
  device_ -= bytes;
  broker_->device_used_ -= bytes;
  if (broker_->store_ == nullptr) {
    broker_->GrantRoom();
  } else if (state_ != State::kMoving) {
    broker_->changed_.SignalAll();
  }
}

MemoryClient::Refusal MemoryClient::refusal() const {
  absl::MutexLock lock(&broker_->mutex_);
  return refusal_;
}

bool MemoryClient::rationed() const {
  absl::MutexLock lock(&broker_->mutex_);
  return broker_->store_ != nullptr || broker_->rules_.limited || terms_.hard != 0 ||
         terms_.soft != 0 || terms_.wait != 0;
}

bool MemoryClient::CouldHave(Bytes bytes) const {
  absl::MutexLock lock(&broker_->mutex_);
  return bytes <= broker_->RoomLimit() && bytes <= broker_->QuotaLeft(*this);
}

uint64_t MemoryClient::Queue(Bytes bytes, Refusal lack, Nanos now, Nanos wait) {
  absl::MutexLock lock(&broker_->mutex_);
  MemoryBroker::Waiter waiter;
  waiter.number = broker_->next_number_++;
  waiter.client = this;
  waiter.bytes = bytes;
  waiter.device = lack == Refusal::kDevice;
  waiter.since = now;
  waiter.deadline = now + wait;
  broker_->waiters_.push_back(waiter);
  if (broker_->store_ == nullptr) {
    for (MemoryClient* client : broker_->clients_) {
      client->leave_asked_.store(true, std::memory_order_relaxed);
    }
  }
  broker_->GrantRoom();
  broker_->changed_.SignalAll();
  return waiter.number;
}

MemoryClient::Answer MemoryClient::Ask(uint64_t number, Nanos now) {
  absl::MutexLock lock(&broker_->mutex_);
  broker_->Expire(now);
  const auto it = answers_.find(number);
  if (it == answers_.end()) return Answer::kWaiting;
  const Answer answer = it->second;
  answers_.erase(it);
  return answer;
}

void MemoryClient::Redeemed() {
  absl::MutexLock lock(&broker_->mutex_);
  granted_ = 0;
  broker_->device_granted_ -= std::exchange(device_granted_, 0);
  broker_->GrantRoom();
  broker_->changed_.SignalAll();
}

Bytes MemoryClient::reserved() const {
  absl::MutexLock lock(&broker_->mutex_);
  return reserved_;
}

Bytes MemoryClient::ReserveNeeds(Bytes bytes) const {
  absl::MutexLock lock(&broker_->mutex_);
  const Bytes base = broker_->store_ != nullptr ? allotted_ : device_;
  return std::max(base, bytes) - std::min(std::max(base, bytes), std::max(base, reserved_));
}

MemoryClient::Answer MemoryClient::Reserve(Bytes bytes) {
  const Bytes more = ReserveNeeds(bytes);
  absl::MutexLock lock(&broker_->mutex_);
  refusal_ = Refusal::kNone;
  if (terms_.hard != 0 && bytes > terms_.hard) refusal_ = Refusal::kQuota;
  if (more > granted_ && refusal_ == Refusal::kNone) {
    const Bytes base = broker_->store_ != nullptr ? allotted_ : device_;
    // What RoomFor would count as covered by the old reservation is in `more` no longer.
    if (!broker_->RoomFor(*this, std::max(base, reserved_) - base + more)) {
      refusal_ = Refusal::kShort;
    }
  }
  if (refusal_ != Refusal::kNone) return Answer::kNo;
  granted_ -= std::min(granted_, more);
  reserved_ = bytes;
  broker_->GrantRoom();
  return Answer::kYes;
}

bool MemoryClient::swaps() const { return broker_->store_ != nullptr; }

memmgr::SwapStore* MemoryClient::store() const { return broker_->store_; }

uint64_t MemoryClient::chunk_granules() const {
  return swaps() ? broker_->rules_.chunk_granules : 0;
}

bool MemoryClient::BeginUse() {
  absl::MutexLock lock(&broker_->mutex_);
  if (state_ == State::kMoving || yielded_ || bring_) return false;
  state_ = State::kInUse;
  return true;
}

void MemoryClient::EndUse(Nanos now) {
  absl::MutexLock lock(&broker_->mutex_);
  state_ = State::kIdle;
  idle_since_ = now;
  if (leave_asked_.exchange(false, std::memory_order_relaxed)) yielded_ = true;
  broker_->changed_.SignalAll();
}

std::vector<uint64_t> MemoryClient::ResolveWithin(const MemoryNeed& need, Bytes capacity) const {
  std::vector<uint64_t> extents = window_->AllExtents();
  if (need.everything || window_->BytesOf(extents) <= capacity) return extents;
  extents.clear();
  for (const auto& range : need.ranges) window_->FindExtents(range, &extents);
  for (const uint64_t pointer : need.pointers) window_->FindAround(pointer, &extents);
  return extents;
}

std::vector<uint64_t> MemoryClient::Resolve(const MemoryNeed& need) const {
  return ResolveWithin(need, device_bytes_max());
}

void MemoryClient::RequestBring(MemoryNeed need, Nanos now) {
  absl::MutexLock lock(&broker_->mutex_);
  need_ = std::move(need);
  bring_ = true;
  brought_ = Answer::kWaiting;
  bring_since_ = now;
  broker_->changed_.SignalAll();
}

MemoryClient::Answer MemoryClient::Brought(Nanos now) {
  absl::MutexLock lock(&broker_->mutex_);
  if (bring_ && state_ != State::kMoving &&
      now - bring_since_ > std::max(terms_.wait, broker_->rules_.bring_wait_least)) {
    bring_ = yielded_ = false;
    state_ = State::kInUse;
    brought_ = Answer::kNo;
    ++broker_->totals_.refused;
  }
  if (brought_ != Answer::kWaiting) {
    usage_.waited_nanos += static_cast<uint64_t>(std::max<Nanos>(now - bring_since_, 0));
  }
  return brought_;
}

CUresult MemoryClient::failure() const {
  absl::MutexLock lock(&broker_->mutex_);
  return failure_;
}

Bytes MemoryClient::device_bytes_max() const {
  absl::MutexLock lock(&broker_->mutex_);
  return broker_->capacity_;
}

MemoryClient::Info MemoryClient::Tell(Bytes device_free, Bytes device_total, Bytes cached) const {
  absl::MutexLock lock(&broker_->mutex_);
  Info info;
  info.total = terms_.hard != 0          ? terms_.hard
               : broker_->rules_.limited ? broker_->rules_.capacity
                                         : device_total;
  const Bytes claims = broker_->Claims();
  const Bytes base = broker_->store_ != nullptr ? allotted_ : device_;
  Bytes room = broker_->RoomLimit() - std::min(broker_->RoomLimit(), claims);
  // Its own to use.
  room += std::max(base, reserved_) - base;
  if (broker_->store_ == nullptr) {
    if (!broker_->rules_.limited) room = std::max(room, device_free);
    room = std::min(room, device_free) + cached;
  }
  info.free = std::min({room, info.total, broker_->QuotaLeft(*this)});
  return info;
}

void MemoryClient::Retire() {
  absl::MutexLock lock(&broker_->mutex_);
  broker_->waiters_.remove_if(
      [this](const MemoryBroker::Waiter& waiter) { return waiter.client == this; });
  bring_ = false;
  while (state_ == State::kMoving) broker_->changed_.Wait(&broker_->mutex_);
  state_ = State::kInUse;
  retired_ = true;
  yielded_ = false;
  reserved_ = 0;
  granted_ = 0;
  broker_->GrantRoom();
  broker_->changed_.SignalAll();
}

MemoryClient::Usage MemoryClient::usage() const {
  absl::MutexLock lock(&broker_->mutex_);
  Usage usage = usage_;
  usage.promised = allotted_;
  usage.on_device = device_;
  return usage;
}

// --- Room

MemoryBroker::MemoryBroker(const device::DriverTable& driver, const MemoryRules& rules,
                           memmgr::SwapStore* store, std::function<CUresult()> make_current)
    : driver_(driver),
      store_(store),
      make_current_(std::move(make_current)),
      rules_(rules),
      capacity_(rules.capacity / memmgr::kGranuleBytes * memmgr::kGranuleBytes) {
  if (store_ != nullptr) thread_ = std::thread([this] { Run(); });
}

MemoryBroker::~MemoryBroker() {
  {
    absl::MutexLock lock(&mutex_);
    CHECK(clients_.empty());
    stop_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::unique_ptr<MemoryClient> MemoryBroker::Join(const MemoryTerms& terms) {
  std::unique_ptr<MemoryClient> client(new MemoryClient(this, terms));
  absl::MutexLock lock(&mutex_);
  clients_.push_back(client.get());
  ++tenants_[terms.tenant].clients;
  return client;
}

MemoryTotals MemoryBroker::Totals() const {
  absl::MutexLock lock(&mutex_);
  MemoryTotals totals = totals_;
  totals.capacity = capacity_;
  totals.promised = Claims();
  totals.on_device = device_used_;
  totals.waiting = static_cast<uint32_t>(waiters_.size());
  for (const MemoryClient* client : clients_) totals.waiting += client->bring_ ? 1 : 0;
  if (store_ == nullptr) return totals;
  totals.swap_capacity = store_->capacity();
  for (size_t i = 0; i < memmgr::kSwapTiers; ++i) {
    totals.swapped[i] = store_->used(static_cast<memmgr::SwapTier>(i));
  }
  return totals;
}

Bytes MemoryBroker::RoomLimit() const {
  if (store_ == nullptr) return capacity_;
  // Where everything is full, contents change places chunk by chunk: there is always room for that.
  const Bytes all = capacity_ + store_->capacity();
  return all - std::min(all, 2 * rules_.chunk_granules * memmgr::kGranuleBytes);
}

Bytes MemoryBroker::ClaimOf(const MemoryClient& client) const {
  const Bytes base = store_ != nullptr ? client.allotted_ : client.device_;
  return std::max(base, client.reserved_) + client.granted_;
}

Bytes MemoryBroker::Claims() const {
  Bytes claims = 0;
  for (const MemoryClient* client : clients_) claims += ClaimOf(*client);
  return claims;
}

Bytes MemoryBroker::QuotaLeft(const MemoryClient& client) const {
  Bytes quota = client.terms_.hard;
  Bytes used = client.allotted_;
  if (quota != 0) {
    const auto tenant = tenants_.find(client.terms_.tenant);
    if (tenant != tenants_.end()) used = tenant->second.allotted;
  } else if (store_ != nullptr) {
    // A program must not take everybody's room by trying how much there is.
    quota = rules_.capacity;
  } else {
    return UINT64_MAX;
  }
  return quota - std::min(quota, used);
}

bool MemoryBroker::OverSoft(const MemoryClient& client, Bytes more) const {
  if (client.terms_.soft == 0) return false;
  const auto tenant = tenants_.find(client.terms_.tenant);
  return tenant != tenants_.end() && tenant->second.allotted + more > client.terms_.soft;
}

bool MemoryBroker::RoomFor(const MemoryClient& client, Bytes more) const {
  const Bytes base = store_ != nullptr ? client.allotted_ : client.device_;
  const Bytes covered = std::max(base, client.reserved_) - base + client.granted_;
  if (more <= covered) return true;
  const Bytes claims = Claims();
  const Bytes limit = RoomLimit();
  const Bytes free = limit - std::min(limit, claims);
  std::vector<admission::Waiter> queue;
  for (const Waiter& waiter : waiters_) {
    if (waiter.device) continue;
    queue.push_back(
        {waiter.bytes, waiter.client->terms_.priority, OverSoft(*waiter.client, waiter.bytes)});
  }
  queue.push_back({more - covered, client.terms_.priority, OverSoft(client, more)});
  return admission::NextAdmitted(rules_.order, queue, free) == queue.size() - 1;
}

void MemoryBroker::GrantRoom() {
  while (true) {
    std::vector<admission::Waiter> queue;
    std::vector<std::list<Waiter>::iterator> places;
    for (auto it = waiters_.begin(); it != waiters_.end(); ++it) {
      if (it->device) continue;
      queue.push_back({it->bytes, it->client->terms_.priority, OverSoft(*it->client, it->bytes)});
      places.push_back(it);
    }
    if (queue.empty()) {
      if (store_ == nullptr) StopAsking();
      return;
    }
    const Bytes claims = Claims();
    const Bytes limit = RoomLimit();
    const auto next = admission::NextAdmitted(rules_.order, queue, limit - std::min(limit, claims));
    if (!next.has_value()) return;
    const auto waiter = places[*next];
    waiter->client->granted_ += waiter->bytes;
    waiter->client->answers_[waiter->number] = MemoryClient::Answer::kYes;
    waiter->client->usage_.waited_nanos +=
        static_cast<uint64_t>(std::max<Nanos>(MonotonicNow() - waiter->since, 0));
    waiters_.erase(waiter);
  }
}

std::list<MemoryBroker::Waiter>::iterator MemoryBroker::RefuseWaiter(
    std::list<Waiter>::iterator waiter, Nanos now) {
  waiter->client->answers_[waiter->number] = MemoryClient::Answer::kNo;
  waiter->client->usage_.waited_nanos +=
      static_cast<uint64_t>(std::max<Nanos>(now - waiter->since, 0));
  ++totals_.refused;
  return waiters_.erase(waiter);
}

std::list<MemoryBroker::Waiter>::iterator MemoryBroker::FindStuck(Nanos now) {
  // The youngest request of each client, the latest first.
  std::vector<std::list<Waiter>::iterator> latest;
  absl::flat_hash_set<const MemoryClient*> seen;
  for (auto it = waiters_.end(); it != waiters_.begin();) {
    --it;
    if (it->device || ClaimOf(*it->client) == 0) continue;
    if (now - it->since < kAllWaitLeast) return waiters_.end();
    if (seen.insert(it->client).second) latest.push_back(it);
  }
  size_t holders = 0;
  for (const MemoryClient* client : clients_) holders += ClaimOf(*client) != 0 ? 1 : 0;
  if (latest.empty() || holders > latest.size()) return waiters_.end();
  return *std::min_element(latest.begin(), latest.end(), [](const auto& a, const auto& b) {
    return a->client->terms_.priority < b->client->terms_.priority;
  });
}

bool MemoryBroker::RefuseStuck(Nanos now) {
  const auto stuck = FindStuck(now);
  if (stuck == waiters_.end()) return false;
  LOG(WARNING) << "an application of " << stuck->client->terms_.tenant << " is refused "
               << stuck->bytes / kMiB
               << " MiB: all that have memory wait for more, and none would ever get it. Programs "
                  "that allocate piece by piece can reserve the whole first (consort.h)";
  RefuseWaiter(stuck, now);
  return true;
}

void MemoryBroker::Expire(Nanos now) {
  bool any = false;
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (it->deadline > now) {
      ++it;
      continue;
    }
    it = RefuseWaiter(it, now);
    any = true;
  }
  if (now >= look_for_stuck_) {
    look_for_stuck_ = now + kStuckInterval;
    any |= RefuseStuck(now);
  }
  // Who waited behind it may fit.
  if (any) GrantRoom();
}

void MemoryBroker::StopAsking() {
  for (MemoryClient* client : clients_) {
    client->leave_asked_.store(false, std::memory_order_relaxed);
  }
}

// --- The device

Bytes MemoryBroker::DeviceFree() const {
  const Bytes taken = device_used_ + device_granted_ + planned_;
  return capacity_ - std::min(capacity_, taken);
}

bool MemoryBroker::DeviceWanted() const {
  for (const MemoryClient* client : clients_) {
    if (client->bring_) return true;
  }
  for (const Waiter& waiter : waiters_) {
    if (waiter.device) return true;
  }
  return false;
}

void MemoryBroker::Run() {
  CUresult result = make_current_();
  std::unique_ptr<memmgr::Mover> mover;
  if (result == CUDA_SUCCESS) result = memmgr::Mover::Create(driver_, &mover);
  if (result != CUDA_SUCCESS) {
    LOG(ERROR) << "no swapping: " << device::ResultName(driver_, result);
    return;
  }
  bool preparing = true;
  absl::MutexLock lock(&mutex_);
  while (!stop_) {
    if (Step(mover.get(), MonotonicNow())) continue;
    if (DeviceWanted()) {
      changed_.WaitWithTimeout(&mutex_, absl::Nanoseconds(kSwapLook));
    } else if (preparing) {
      // Pinned memory takes longer to make than to fill.
      mutex_.Unlock();
      preparing = store_->Prepare();
      LOG_IF(INFO, !preparing) << "swapping: pinned memory is ready";
      mutex_.Lock();
    } else {
      changed_.Wait(&mutex_);
    }
  }
}

std::vector<MemoryBroker::Wish> MemoryBroker::Wishes() {
  std::vector<Wish> wishes;
  for (auto it = waiters_.begin(); it != waiters_.end(); ++it) {
    if (!it->device) continue;
    wishes.push_back({it->client, it, false, it->bytes, it->since});
  }
  for (MemoryClient* client : clients_) {
    if (!client->bring_ || client->state_ != MemoryClient::State::kIdle) continue;
    client->wanted_ = client->ResolveWithin(client->need_, capacity_);
    wishes.push_back(
        {client, {}, true, client->window_->AwayBytesOf(client->wanted_), client->bring_since_});
  }
  std::stable_sort(wishes.begin(), wishes.end(),
                   [](const Wish& a, const Wish& b) { return a.since < b.since; });
  // One that has just made way does not come back before those that it made way for.
  for (Wish& wish : wishes) {
    if (!wish.bring || !wish.client->yielded_) continue;
    if (wishes.size() == 1) {
      wish.client->yielded_ = false;
    } else {
      wish.bytes = wish.client->window_->BytesOf(wish.client->wanted_);
    }
  }
  return wishes;
}

bool MemoryBroker::Step(memmgr::Mover* mover, Nanos now) {
  const std::vector<Wish> wishes = Wishes();
  if (wishes.empty()) {
    StopAsking();
    for (MemoryClient* client : clients_) client->yielded_ = false;
    return false;
  }
  for (MemoryClient* client : clients_) {
    // What it has in flight may wait for work that comes after it.
    if (client->leave_asked() && now - client->asked_at_ > kLeaveTimeout) {
      client->leave_asked_.store(false, std::memory_order_relaxed);
      client->here_since_ = now;
    }
  }
  std::vector<admission::Waiter> queue;
  for (const Wish& wish : wishes) {
    queue.push_back({wish.bytes, wish.client->terms_.priority, OverSoft(*wish.client, 0)});
  }
  if (const auto next = admission::NextAdmitted(rules_.order, queue, DeviceFree())) {
    const Wish& wish = wishes[*next];
    if (wish.bring) {
      BringIn(mover, wish.client, wish.bytes);
    } else {
      wish.client->device_granted_ += wish.bytes;
      device_granted_ += wish.bytes;
      wish.client->answers_[wish.waiter->number] = MemoryClient::Answer::kYes;
      wish.client->usage_.waited_nanos += static_cast<uint64_t>(now - wish.since);
      waiters_.erase(wish.waiter);
    }
    return true;
  }
  const auto first = admission::NextAdmitted(rules_.order, queue, UINT64_MAX);
  const Wish& wish = wishes[*first];
  // A part of it makes room in the store for what must leave the device; rather that than slower
  // tiers.
  store_full_ = false;
  if (store_->has_pinned()) {
    if (MakeRoom(mover, wish, Within::kPinned, now)) return true;
    if (!store_full_) return false;
    if (BringPart(mover, wish)) return true;
    store_full_ = false;
  }
  return MakeRoom(mover, wish, Within::kAllTiers, now) || (store_full_ && BringPart(mover, wish));
}

bool MemoryBroker::BringPart(memmgr::Mover* mover, const Wish& wish) {
  // It may have gone while another was moved.
  return wish.bring && std::find(clients_.begin(), clients_.end(), wish.client) != clients_.end() &&
         BringIn(mover, wish.client, DeviceFree()) != 0;
}

bool MemoryBroker::MakeRoom(memmgr::Mover* mover, const Wish& wish, Within within, Nanos now) {
  const Bytes shortage = wish.bytes - std::min(wish.bytes, DeviceFree());
  std::vector<MemoryClient*> clients;
  std::vector<admission::Candidate> candidates;
  for (MemoryClient* client : clients_) {
    if (client->retired_ || client->window_ == nullptr) continue;
    admission::Candidate candidate;
    candidate.idle = client->state_ == MemoryClient::State::kIdle;
    candidate.on_device_for = now - client->here_since_;
    candidate.over_soft = OverSoft(*client, 0);
    if (client == wish.client) {
      if (!wish.bring) continue;
      // What it has and does not need now, after what others do not use.
      candidate.bytes = client->window_->here_bytes() +
                        client->window_->AwayBytesOf(client->wanted_) -
                        client->window_->BytesOf(client->wanted_);
      candidate.idle_for = rules_.idle_least;
      candidate.over_soft = false;
    } else if (candidate.idle) {
      candidate.bytes = client->window_->here_bytes();
      // One that has made way was at work until now.
      candidate.idle_for = client->yielded_ ? std::max(now - client->idle_since_, rules_.idle_least)
                                            : now - client->idle_since_;
    } else {
      candidate.bytes = client->device_;
    }
    clients.push_back(client);
    candidates.push_back(candidate);
  }
  admission::Shortage needs;
  needs.bytes = shortage;
  needs.waited = now - wish.since;
  needs.idle_least = rules_.idle_least;
  // As long as moving both sets takes some times over.
  needs.patience =
      rules_.patience_least + static_cast<Nanos>(wish.bytes / kSwapPatienceBytesPerNano);
  const admission::Victims victims = admission::ChooseVictims(candidates, needs);
  for (const size_t i : victims.ask) {
    if (clients[i]->leave_asked()) continue;
    clients[i]->asked_at_ = now;
    clients[i]->leave_asked_.store(true, std::memory_order_relaxed);
  }
  // The lock is let go of while one moves; the others may have changed then.
  if (victims.leave.empty()) return false;
  const size_t i = victims.leave.front();
  const std::vector<uint64_t> keep =
      clients[i] == wish.client ? wish.client->wanted_ : std::vector<uint64_t>();
  return SendOut(mover, clients[i], std::min(shortage, candidates[i].bytes), keep, within) != 0;
}

Bytes MemoryBroker::SendOut(memmgr::Mover* mover, MemoryClient* client, Bytes bytes,
                            const std::vector<uint64_t>& keep, Within within) {
  client->state_ = MemoryClient::State::kMoving;
  const Bytes before = client->device_;
  mutex_.Unlock();
  const Nanos begin = MonotonicNow();
  memmgr::AddressWindow::Moved moved;
  const CUresult result = client->window_->SendOut(bytes, keep, store_, within, mover, &moved);
  const Nanos took = MonotonicNow() - begin;
  mutex_.Lock();
  client->state_ = MemoryClient::State::kIdle;
  client->yielded_ = false;
  totals_.swapped_out_bytes += moved.copied;
  totals_.clean_bytes += moved.moved - std::min(moved.moved, moved.copied);
  totals_.swap_out_nanos += static_cast<uint64_t>(took);
  client->usage_.swapped_out_bytes += moved.copied;
  VLOG(1) << "swapped out " << moved.moved / kMiB << " MiB of " << client->terms_.tenant << " ("
          << moved.copied / kMiB << " copied) in " << took / kMicrosecond << " us";
  if (result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_OPERATING_SYSTEM) {
    // The store has no room, or its disk; what did not go is still where it was.
    store_full_ = true;
    if (within == Within::kAllTiers) DropSpareSlots();
  } else if (result != CUDA_SUCCESS) {
    client->failure_ = result;
    LOG(ERROR) << "swapping out: " << device::ResultName(driver_, result);
  }
  changed_.SignalAll();
  return before - client->device_;
}

memmgr::AddressWindow::KeepSlots MemoryBroker::Keepable() const {
  const Bytes claims = Claims();
  if (store_->pinned_capacity() >= claims) return KeepSlots::kAll;
  // Pinned memory that another's contents need would cost more than the copy that it saves: they
  // would go to slower slots.
  return store_->capacity() >= claims ? KeepSlots::kNotPinned : KeepSlots::kNone;
}

Bytes MemoryBroker::BringIn(memmgr::Mover* mover, MemoryClient* client, Bytes room) {
  // It may have begun to use its window while another was moved.
  if (!client->bring_ || client->state_ != MemoryClient::State::kIdle) return 0;
  client->state_ = MemoryClient::State::kMoving;
  const Bytes away = client->window_->AwayBytesOf(client->wanted_);
  const bool part = room < away;
  planned_ = std::min(room, away);
  const Bytes before = client->device_;
  const KeepSlots keep = part ? KeepSlots::kNone : Keepable();
  mutex_.Unlock();
  const Nanos begin = MonotonicNow();
  memmgr::AddressWindow::Moved moved;
  const CUresult result = client->window_->BringIn(client->wanted_, keep, mover, &moved);
  const Nanos now = MonotonicNow();
  mutex_.Lock();
  const Bytes missing = std::exchange(planned_, 0);
  totals_.swapped_in_bytes += moved.copied;
  totals_.swap_in_nanos += static_cast<uint64_t>(now - begin);
  client->usage_.swapped_in_bytes += moved.copied;
  VLOG(1) << "swapped in " << moved.moved / kMiB << " MiB of " << client->terms_.tenant << " ("
          << moved.copied / kMiB << " copied) in " << (now - begin) / kMicrosecond << " us";
  if (result == CUDA_ERROR_OUT_OF_MEMORY && part) {
    client->state_ = MemoryClient::State::kIdle;
  } else if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    // The driver has less than was thought: modules and stacks take device memory too.
    capacity_ = std::min(capacity_, device_used_ + device_granted_);
    LOG(WARNING) << "the device has " << missing / kMiB
                 << " MiB less than its limit; going on with " << capacity_ / kMiB << " MiB";
    client->state_ = MemoryClient::State::kIdle;
  } else {
    client->state_ = MemoryClient::State::kInUse;
    client->bring_ = client->yielded_ = false;
    client->leave_asked_.store(false, std::memory_order_relaxed);
    client->here_since_ = now;
    client->brought_ =
        result == CUDA_SUCCESS ? MemoryClient::Answer::kYes : MemoryClient::Answer::kNo;
    if (result != CUDA_SUCCESS) {
      client->failure_ = result;
      LOG(ERROR) << "swapping in: " << device::ResultName(driver_, result);
    }
  }
  changed_.SignalAll();
  return client->device_ - before;
}

void MemoryBroker::DropSpareSlots() {
  for (MemoryClient* client : clients_) {
    if (client->state_ == MemoryClient::State::kIdle && client->window_ != nullptr) {
      client->window_->DropSpareSlots();
    }
  }
}

}  // namespace consort::host
