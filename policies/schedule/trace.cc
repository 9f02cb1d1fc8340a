// SPDX-License-Identifier: Apache-2.0
#include "policies/schedule/trace.h"

#include <inttypes.h>

#include <cstdio>
#include <map>
#include <sstream>
#include <utility>

namespace consort::schedule {
namespace {

class Recorder final : public Policy {
 public:
  Recorder(std::unique_ptr<Policy> policy, TraceLog* log) : policy_(std::move(policy)), log_(log) {}

  void Join(const Application& application, Nanos now) override {
    Write("join %" PRId64 " %" PRIu32 " %" PRIu32 " %" PRIu32, now, application.id,
          application.tenant, application.weight);
    policy_->Join(application, now);
  }
  void Leave(ApplicationId id, Nanos now) override {
    Write("leave %" PRId64 " %" PRIu32, now, id);
    policy_->Leave(id, now);
  }
  void SetWeight(TenantId tenant, uint32_t weight, Nanos now) override {
    Write("weight %" PRId64 " %" PRIu32 " %" PRIu32, now, tenant, weight);
    policy_->SetWeight(tenant, weight, now);
  }
  void Wait(ApplicationId id, const Batch& batch, Nanos now) override {
    Write("wait %" PRId64 " %" PRIu32 " %d %" PRId64 " %" PRId64, now, id,
          static_cast<int>(batch.phase), batch.estimate, batch.alone);
    policy_->Wait(id, batch, now);
  }
  void Withdraw(ApplicationId id, Nanos now) override {
    Write("withdraw %" PRId64 " %" PRIu32, now, id);
    policy_->Withdraw(id, now);
  }
  void Start(ApplicationId id, Nanos now) override {
    Write("start %" PRId64 " %" PRIu32, now, id);
    policy_->Start(id, now);
  }
  void Finish(ApplicationId id, Nanos now) override {
    Write("finish %" PRId64 " %" PRIu32, now, id);
    policy_->Finish(id, now);
  }
  void Charge(ApplicationId id, const Service& service, Nanos now) override {
    Write("charge %" PRId64 " %" PRIu32 " %" PRId64 " %" PRId64, now, id, service.device_time,
          service.alone_time);
    policy_->Charge(id, service, now);
  }
  void Expect(ApplicationId id, Nanos expected, Nanos now) override {
    Write("expect %" PRId64 " %" PRIu32 " %" PRId64, now, id, expected);
    policy_->Expect(id, expected, now);
  }
  std::optional<ApplicationId> Choose(Nanos now, bool stalled) override {
    const std::optional<ApplicationId> chosen = policy_->Choose(now, stalled);
    if (chosen.has_value()) {
      Write("choose %" PRId64 " %d %" PRIu32, now, stalled ? 1 : 0, *chosen);
    } else {
      Write("choose %" PRId64 " %d -", now, stalled ? 1 : 0);
    }
    return chosen;
  }
  bool tells_phases_apart() const override { return policy_->tells_phases_apart(); }
  bool holds_back() const override { return policy_->holds_back(); }

 private:
  template <class... Values>
  void Write(const char* format, Values... values) {
    char line[96];  // five numbers of at most 20 digits do not come together
    const int bytes = snprintf(line, sizeof(line), format, values...);
    log_->Append({line, static_cast<size_t>(bytes)});
  }

  const std::unique_ptr<Policy> policy_;
  TraceLog* const log_;
};

// One line after the other, brought to a policy.
class Player {
 public:
  Player(const std::optional<std::string>& name, const Options& options)
      : name_(name), options_(options) {}

  // False: no such line.
  bool Play(const std::string& line, uint64_t number) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "policy") return Begin(&words) && AtEnd(&words);
    Nanos now = 0;
    if (policy_ == nullptr || !(words >> now)) return false;
    if (what == "choose") return Compare(&words, now, number) && AtEnd(&words);
    uint32_t id = 0;
    if (!(words >> id)) return false;
    if (what == "join") {
      Application application;
      application.id = id;
      if (!(words >> application.tenant >> application.weight) || application.weight == 0 ||
          id > kIdMax || joined_.contains(id)) {
        return false;
      }
      policy_->Join(application, now);
      joined_[id] = {application.tenant, false, 0};
      return AtEnd(&words);
    }
    if (what == "weight") {
      uint32_t weight = 0;
      if (!(words >> weight) || weight == 0) return false;
      policy_->SetWeight(id, weight, now);
      return AtEnd(&words);
    }
    const auto it = joined_.find(id);
    return it != joined_.end() && PlayOf(&it->second, what, id, now, &words) && AtEnd(&words);
  }

  Replay* result() { return &result_; }

 private:
  // Policies keep applications in tables by their numbers.
  static constexpr uint32_t kIdMax = 1 << 20;
  struct Known {
    TenantId tenant;
    bool waits;
    uint32_t in_flight;
  };

  static bool AtEnd(std::istringstream* words) {
    std::string more;
    return !(*words >> more);
  }

  bool Begin(std::istringstream* words) {
    std::string name;
    if (!(*words >> name)) return false;
    policy_ = MakePolicy(name_.value_or(name), options_);
    joined_.clear();
    return policy_ != nullptr;
  }

  bool Compare(std::istringstream* words, Nanos now, uint64_t number) {
    bool stalled = false;
    std::string chosen;
    if (!(*words >> stalled >> chosen)) return false;
    const std::optional<ApplicationId> again = policy_->Choose(now, stalled);
    ++result_.decisions;
    if (chosen == (again.has_value() ? std::to_string(*again) : "-")) return true;
    if (result_.different++ == 0) result_.first_different = number;
    return true;
  }

  bool PlayOf(Known* known, const std::string& what, ApplicationId id, Nanos now,
              std::istringstream* words) {
    if (what == "leave") {
      policy_->Leave(id, now);
      joined_.erase(id);
      return true;
    }
    if (what == "wait") {
      int phase = 0;
      Batch batch;
      if (!(*words >> phase >> batch.estimate >> batch.alone) || phase < 0 || phase >= kPhases ||
          known->waits) {
        return false;
      }
      batch.phase = static_cast<Phase>(phase);
      policy_->Wait(id, batch, now);
      known->waits = true;
      return true;
    }
    if (what == "withdraw") {
      policy_->Withdraw(id, now);
      known->waits = false;
      return true;
    }
    if (what == "start") {
      policy_->Start(id, now);
      known->waits = false;
      ++known->in_flight;
      return true;
    }
    if (what == "finish") {
      if (known->in_flight == 0) return false;
      policy_->Finish(id, now);
      --known->in_flight;
      return true;
    }
    if (what == "expect") {
      Nanos expected = 0;
      if (!(*words >> expected)) return false;
      policy_->Expect(id, expected, now);
      return true;
    }
    Service service;
    if (what != "charge" || !(*words >> service.device_time >> service.alone_time)) return false;
    policy_->Charge(id, service, now);
    return true;
  }

  const std::optional<std::string>& name_;
  const Options options_;
  std::unique_ptr<Policy> policy_;
  std::map<ApplicationId, Known> joined_;
  Replay result_;
};

}  // namespace

void TraceLog::Append(std::string_view line) {
  if (full_) return;
  if (text_.size() + line.size() + 1 > bytes_max_) {
    full_ = true;
    return;
  }
  text_.append(line);
  text_.push_back('\n');
}

std::string TraceLog::Take() { return std::exchange(text_, {}); }

std::unique_ptr<Policy> Record(std::string_view name, std::unique_ptr<Policy> policy,
                               TraceLog* log) {
  log->Append("policy " + std::string(name));
  return std::make_unique<Recorder>(std::move(policy), log);
}

Replay ReplayTrace(std::string_view text, const std::optional<std::string>& name,
                   const Options& options) {
  Player player(name, options);
  Replay* const result = player.result();
  for (uint64_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string line(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!player.Play(line, number)) {
      result->error = "line " + std::to_string(number) + " is none of a trace: " + line;
      break;
    }
    ++result->events;
  }
  return *result;
}

}  // namespace consort::schedule
