// SPDX-License-Identifier: Apache-2.0
#include "gpool/local_store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "gpool/clock.h"

namespace consort::gpool {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;

absl::Status FileError(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": ", strerror(errno)));
}

}  // namespace

class LocalStore::LocalWatch final : public Watch {
 public:
  LocalWatch(LocalStore* store, uint64_t id) : store_(store), id_(id) {}
  ~LocalWatch() override {
    absl::MutexLock lock(&store_->mutex_);
    store_->watchers_.erase(id_);
    while (store_->called_ == id_) store_->changed_.Wait(&store_->mutex_);
  }

 private:
  LocalStore* const store_;
  const uint64_t id_;
};

LocalStore::LocalStore(const std::string& path) : path_(path) {}

absl::StatusOr<std::unique_ptr<LocalStore>> LocalStore::Open(const std::string& path) {
  std::unique_ptr<LocalStore> store(new LocalStore(path));
  RETURN_IF_ERROR(store->Load());
  store->thread_ = std::thread([borrowed = store.get()] { borrowed->RunWatchers(); });
  return store;
}

LocalStore::~LocalStore() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  changed_.SignalAll();
  if (thread_.joinable()) thread_.join();
}

absl::Status LocalStore::Load() {
  if (path_.empty()) return absl::OkStatus();
  std::error_code error;
  const bool there = std::filesystem::exists(path_, error);
  if (error) return absl::UnavailableError(absl::StrCat(path_, ": ", error.message()));
  if (!there) return absl::OkStatus();
  std::ifstream in(path_);
  if (!in) return FileError(path_);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const Json file = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const absl::Status wrong = absl::FailedPreconditionError(
      absl::StrCat(path_, " is not a store's file of this version; move it away to start anew"));
  if (!file.is_object() || !file.contains("schema") || file["schema"] != kSchema ||
      !file.contains("revision") || !file["revision"].is_number_integer() ||
      !file.contains("keys") || !file["keys"].is_object()) {
    return wrong;
  }
  absl::MutexLock lock(&mutex_);
  revision_ = file["revision"].get<Revision>();
  for (const auto& [key, entry] : file["keys"].items()) {
    if (!entry.is_object() || !entry.contains("value") || !entry["value"].is_string()) return wrong;
    for (const char* number : {"created", "modified"}) {
      if (!entry.contains(number) || !entry[number].is_number_integer()) return wrong;
    }
    entries_[key] = {entry["value"].get<std::string>(), entry["created"].get<Revision>(),
                     entry["modified"].get<Revision>(), 0};
  }
  return absl::OkStatus();
}

absl::Status LocalStore::Save() {
  if (path_.empty()) return absl::OkStatus();
  Json keys = Json::object();
  for (const auto& [key, entry] : entries_) {
    if (entry.lease != 0) continue;
    keys[key] = {{"value", entry.value}, {"created", entry.created}, {"modified", entry.modified}};
  }
  const Json file = {{"schema", kSchema}, {"revision", revision_}, {"keys", std::move(keys)}};
  // Values that are no UTF-8 come back with the bytes replaced; ours are JSON.
  const std::string text = file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  const std::string fresh = path_ + ".new";
  UniqueFd fd(open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return FileError(fresh);
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(fd.get(), text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError(fresh);
    written += static_cast<size_t>(count);
  }
  if (fsync(fd.get()) != 0 || rename(fresh.c_str(), path_.c_str()) != 0) return FileError(fresh);
  return absl::OkStatus();
}

Entries LocalStore::Under(const std::string& prefix) const {
  Entries found;
  for (auto it = entries_.lower_bound(prefix);
       it != entries_.end() && absl::StartsWith(it->first, prefix); ++it) {
    found.insert(*it);
  }
  return found;
}

void LocalStore::Tell(const std::string& key) {
  for (auto& [id, watcher] : watchers_) {
    if (absl::StartsWith(key, watcher.prefix)) watcher.changed = true;
  }
  changed_.SignalAll();
}

void LocalStore::EndLease(LeaseId lease) {
  if (leases_.erase(lease) == 0) return;
  ++revision_;
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->second.lease == lease) {
      Tell(it->first);
      it = entries_.erase(it);
    } else {
      ++it;
    }
  }
}

absl::StatusOr<Entries> LocalStore::List(const std::string& prefix) {
  absl::MutexLock lock(&mutex_);
  return Under(prefix);
}

absl::StatusOr<std::optional<Revision>> LocalStore::Commit(const std::vector<Condition>& conditions,
                                                           const std::vector<Change>& changes) {
  absl::MutexLock lock(&mutex_);
  for (const Condition& condition : conditions) {
    const auto it = entries_.find(condition.key);
    const KeyValue now = it == entries_.end() ? KeyValue() : it->second;
    if (now.created != condition.created ||
        now.modified != condition.modified.value_or(now.modified)) {
      return std::optional<Revision>();
    }
  }
  for (const Change& change : changes) {
    if (change.lease != 0 && !leases_.contains(change.lease)) {
      return absl::NotFoundError("the lease has lapsed");
    }
  }
  const Entries before = entries_;
  bool keep = false;  // something that the file has
  ++revision_;
  for (const Change& change : changes) {
    const auto it = entries_.find(change.key);
    keep = keep || change.lease == 0 || (it != entries_.end() && it->second.lease == 0);
    if (!change.value.has_value()) {
      if (it != entries_.end()) entries_.erase(it);
    } else if (it == entries_.end()) {
      entries_[change.key] = {*change.value, revision_, revision_, change.lease};
    } else {
      it->second.value = *change.value;
      it->second.modified = revision_;
      it->second.lease = change.lease;
    }
  }
  if (keep) {
    const absl::Status saved = Save();
    if (!saved.ok()) {
      entries_ = before;
      return saved;
    }
  }
  for (const Change& change : changes) Tell(change.key);
  return std::optional<Revision>(revision_);
}

absl::StatusOr<LeaseId> LocalStore::Grant(int seconds) {
  absl::MutexLock lock(&mutex_);
  const LeaseId id = next_lease_++;
  const Nanos duration = seconds * kSecond;
  leases_[id] = {duration, Clock::System()->Monotonic() + duration};
  changed_.SignalAll();
  return id;
}

absl::Status LocalStore::KeepAlive(LeaseId lease) {
  absl::MutexLock lock(&mutex_);
  const auto it = leases_.find(lease);
  if (it == leases_.end() || it->second.ends <= Clock::System()->Monotonic()) {
    return absl::NotFoundError("the lease has lapsed");
  }
  it->second.ends = Clock::System()->Monotonic() + it->second.duration;
  return absl::OkStatus();
}

absl::Status LocalStore::Revoke(LeaseId lease) {
  absl::MutexLock lock(&mutex_);
  EndLease(lease);
  return absl::OkStatus();
}

std::unique_ptr<Watch> LocalStore::Observe(const std::string& prefix,
                                           std::function<void(const Entries&)> on_entries) {
  absl::MutexLock lock(&mutex_);
  const uint64_t id = next_watcher_++;
  watchers_[id] = {prefix, std::move(on_entries)};
  changed_.SignalAll();
  return std::make_unique<LocalWatch>(this, id);
}

void LocalStore::RunWatchers() {
  absl::MutexLock lock(&mutex_);
  while (!stop_) {
    const Nanos now = Clock::System()->Monotonic();
    Nanos next = now + kSecond;
    std::vector<LeaseId> lapsed;
    for (const auto& [id, lease] : leases_) {
      if (lease.ends <= now) {
        lapsed.push_back(id);
      } else {
        next = std::min(next, lease.ends);
      }
    }
    for (const LeaseId id : lapsed) EndLease(id);
    const auto it = std::find_if(watchers_.begin(), watchers_.end(),
                                 [](const auto& entry) { return entry.second.changed; });
    if (it == watchers_.end()) {
      changed_.WaitWithTimeout(&mutex_, absl::Nanoseconds(next - now));
      continue;
    }
    it->second.changed = false;
    called_ = it->first;
    const Entries entries = Under(it->second.prefix);
    const std::function<void(const Entries&)> on_entries = it->second.on_entries;
    mutex_.Unlock();
    on_entries(entries);
    mutex_.Lock();
    called_ = 0;
    changed_.SignalAll();  // a Watch may wait for the end of this call
  }
}

}  // namespace consort::gpool
