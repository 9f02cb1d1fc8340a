// SPDX-License-Identifier: Apache-2.0
#include "gpool/member.h"

#include <sys/random.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gpool/limits.h"
#include "gpool/tls.h"

namespace consort::gpool {
namespace {

using Json = nlohmann::ordered_json;

std::string NewBoot() {
  char bytes[16];
  PCHECK(getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes));
  return absl::BytesToHexString(std::string(bytes, sizeof(bytes)));
}

std::optional<MapperRecord> ParseMapper(const KeyValue& entry) {
  const Json object = Json::parse(entry.value, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  for (const char* key : {"node", "address", "boot"}) {
    if (!object.contains(key) || !object[key].is_string()) return std::nullopt;
  }
  return MapperRecord{object["node"].get<std::string>(), object["address"].get<std::string>(),
                      object["boot"].get<std::string>(), entry.created};
}

}  // namespace

Member::Member(Store* store, const MemberOptions& options, std::function<void()> on_change,
               std::function<void(const TenantValues&)> on_tenants)
    : store_(store),
      options_(options),
      on_change_(std::move(on_change)),
      on_tenants_(std::move(on_tenants)),
      prefix_(absl::StrCat("consort/", options.pool, "/")),
      boot_(NewBoot()) {
  nodes_watch_ = store_->Observe(Key("nodes/"), [this](const Entries& entries) {
    auto map = std::make_shared<const Gmap>(MakeGmap(entries));
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& [name, node] : map_->nodes) {
        LOG_IF(WARNING, !map->nodes.contains(name)) << "node " << name << " has left the pool";
      }
      for (const auto& [name, node] : map->nodes) {
        LOG_IF(INFO, !map_->nodes.contains(name))
            << "node " << name << " at " << node.address << " is in the pool, with "
            << node.gpus.size() << " GPUs";
      }
      map_ = std::move(map);
    }
    on_change_();
  });
  mapper_watch_ = store_->Observe(Key("mapper"), [this](const Entries& entries) {
    {
      absl::MutexLock lock(&mutex_);
      const auto it = entries.find(Key("mapper"));
      const auto mapper = it != entries.end() ? ParseMapper(it->second) : std::nullopt;
      LOG_IF(INFO, mapper.has_value() && mapper != mapper_)
          << "the pool's mapper is node " << mapper->node;
      mapper_ = mapper;
      mapper_known_ = true;
    }
    wake_.Signal();
    on_change_();
  });
  tenants_watch_ = store_->Observe(Key("tenants/"), [this](const Entries& entries) {
    TenantValues values;
    for (const auto& [key, entry] : entries) {
      values[key.substr(Key("tenants/").size())] = entry.value;
    }
    on_tenants_(values);
  });
  thread_ = std::thread([this] { Run(); });
}

Member::~Member() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  wake_.Signal();
  thread_.join();
  tenants_watch_.reset();
  mapper_watch_.reset();
  nodes_watch_.reset();
  LeaseId lease;
  {
    absl::MutexLock lock(&mutex_);
    lease = lease_;
  }
  if (lease != 0) {
    const absl::Status revoked = store_->Revoke(lease);
    LOG_IF(WARNING, !revoked.ok())
        << "the pool forgets this node when its lease lapses: " << revoked.message();
  }
}

bool Member::JoinedLocked() const { return lease_ != 0 && MonotonicNow() < lease_ends_; }

bool Member::joined() const {
  absl::MutexLock lock(&mutex_);
  return JoinedLocked();
}

std::string Member::problem() const {
  absl::MutexLock lock(&mutex_);
  return problem_;
}

std::shared_ptr<const Gmap> Member::map() const {
  absl::MutexLock lock(&mutex_);
  return map_;
}

std::optional<MapperRecord> Member::mapper() const {
  absl::MutexLock lock(&mutex_);
  return mapper_;
}

bool Member::is_mapper() const {
  absl::MutexLock lock(&mutex_);
  return JoinedLocked() && mapper_.has_value() && mapper_->boot == boot_;
}

absl::Status Member::ChangeTenant(const std::string& tenant, const TenantEdit& edit) {
  const std::string key = Key(absl::StrCat("tenants/", tenant));
  for (int i = 0; i < kTenantChangeTries; ++i) {
    ASSIGN_OR_RETURN(const Entries entries, store_->List(key));
    const auto it = entries.find(key);
    const KeyValue now = it == entries.end() ? KeyValue() : it->second;
    ASSIGN_OR_RETURN(std::string next, edit(now.value));
    if (next == now.value) return absl::OkStatus();
    std::optional<std::string> value;
    if (!next.empty()) value = std::move(next);
    ASSIGN_OR_RETURN(const auto revision,
                     store_->Commit({{key, now.created, now.modified}}, {{key, value, 0}}));
    if (revision.has_value()) return absl::OkStatus();
  }
  return absl::AbortedError(
      absl::StrCat("others change the pool's tenant ", tenant, " all the time; try again"));
}

absl::StatusOr<std::string> Member::ReadFeedback() {
  ASSIGN_OR_RETURN(const Entries entries, store_->List(Key("feedback")));
  const auto it = entries.find(Key("feedback"));
  return it != entries.end() ? it->second.value : "";
}

absl::Status Member::WriteFeedback(const std::string& value) {
  const std::optional<MapperRecord> mapper = this->mapper();
  const absl::Status no_longer =
      absl::FailedPreconditionError("this node is not the pool's mapper any more");
  if (!is_mapper() || !mapper.has_value()) return no_longer;
  ASSIGN_OR_RETURN(const auto revision, store_->Commit({{Key("mapper"), mapper->created}},
                                                       {{Key("feedback"), value, 0}}));
  return revision.has_value() ? absl::OkStatus() : no_longer;
}

void Member::Left(const std::string& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (problem_ == why) return;
    problem_ = why;
  }
  LOG(WARNING) << "not in the pool: " << why;
  on_change_();
}

void Member::Run() {
  while (true) {
    LeaseId lease;
    bool mapper_missing;
    {
      absl::MutexLock lock(&mutex_);
      if (stop_) return;
      lease = lease_;
      mapper_missing = mapper_known_ && !mapper_.has_value();
    }
    Nanos wait = kNodeLeaseSeconds * kSecond / 5;
    if (lease == 0) {
      const absl::Status joined = Join();
      if (!joined.ok()) {
        Left(std::string(joined.message()));
        wait = kStoreRetry;
      } else {
        on_change_();
        wait = 0;
      }
    } else {
      KeepAlive(lease);
      if (mapper_missing) TryToMap(lease);
    }
    absl::MutexLock lock(&mutex_);
    if (!stop_ && wait > 0) wake_.WaitWithTimeout(&mutex_, absl::Nanoseconds(wait));
  }
}

void Member::KeepAlive(LeaseId lease) {
  const Nanos asked = MonotonicNow();
  const absl::Status kept = store_->KeepAlive(lease);
  if (kept.ok()) {
    bool back;
    {
      absl::MutexLock lock(&mutex_);
      back = !problem_.empty();
      lease_ends_ = asked + kNodeLeaseSeconds * kSecond;
      problem_.clear();
    }
    LOG_IF(INFO, back) << "in the pool again, with the lease of before";
    if (back) on_change_();
    return;
  }
  bool lapsed;
  {
    absl::MutexLock lock(&mutex_);
    if (absl::IsNotFound(kept)) lease_ = 0;
    lapsed = !JoinedLocked();
  }
  if (lapsed) Left(std::string(kept.message()));
}

absl::StatusOr<std::vector<GpuRecord>> Member::TakeGids() {
  std::vector<GpuRecord> gpus = options_.gpus;
  const std::string folder = Key("gids/");
  ASSIGN_OR_RETURN(Entries taken, store_->List(folder));
  for (GpuRecord& gpu : gpus) {
    const std::string whose = absl::StrCat(options_.node, "/", gpu.device, "/", gpu.uuid);
    while (gpu.gid == 0) {
      Gid last = 0;
      for (const auto& [key, entry] : taken) {
        Gid gid = 0;
        if (!absl::SimpleAtoi(key.substr(folder.size()), &gid)) continue;
        last = std::max(last, gid);
        if (entry.value == whose) gpu.gid = gid;
      }
      if (gpu.gid != 0) break;
      const std::string key = absl::StrCat(folder, last + 1);
      ASSIGN_OR_RETURN(const auto made, store_->Commit({{key, 0}}, {{key, whose, 0}}));
      if (made.has_value()) gpu.gid = last + 1;
      // Another node may have taken that number, and many more.
      ASSIGN_OR_RETURN(taken, store_->List(folder));
    }
  }
  return gpus;
}

absl::Status Member::Join() {
  ASSIGN_OR_RETURN(std::vector<GpuRecord> gpus, TakeGids());
  const Nanos asked = MonotonicNow();
  ASSIGN_OR_RETURN(const LeaseId lease, store_->Grant(kNodeLeaseSeconds));
  const std::string key = Key("nodes/" + options_.node);
  const NodeRecord record = {options_.node, options_.address, boot_, std::move(gpus)};
  const auto made = store_->Commit({{key, 0}}, {{key, NodeJson(record), lease}});
  if (!made.ok() || !made->has_value()) {
    // If it did happen after all, the key goes with this lease, and is made again.
    const absl::Status revoked = store_->Revoke(lease);
    if (!made.ok()) return made.status();
    if (!revoked.ok()) return revoked;
    return absl::AlreadyExistsError(
        absl::StrCat("a node ", options_.node,
                     " is in the pool; if that is this daemon's predecessor, it "
                     "leaves within ",
                     kNodeLeaseSeconds, " s"));
  }
  absl::MutexLock lock(&mutex_);
  lease_ = lease;
  lease_ends_ = asked + kNodeLeaseSeconds * kSecond;
  problem_.clear();
  LOG(INFO) << "in the pool " << options_.pool << " as node " << options_.node;
  return absl::OkStatus();
}

void Member::TryToMap(LeaseId lease) {
  const Json value = {{"node", options_.node}, {"address", options_.address}, {"boot", boot_}};
  // Whoever makes the key is the mapper; the watch tells everybody, us included. An answer that is
  // lost costs a round.
  const auto made = store_->Commit({{Key("mapper"), 0}}, {{Key("mapper"), value.dump(), lease}});
  LOG_IF(WARNING, !made.ok()) << "becoming the pool's mapper: " << made.status().message();
}

}  // namespace consort::gpool
