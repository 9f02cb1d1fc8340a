// SPDX-License-Identifier: Apache-2.0
#include "policies/placement/trace.h"

#include <charconv>
#include <concepts>
#include <limits>
#include <string>
#include <system_error>

namespace consort::placement {
namespace {

constexpr std::string_view kOutcomes[] = {"placed", "no-gpu", "no-memory"};
constexpr std::string_view kNone = "-";
constexpr std::string_view kOnly = "only=";
constexpr std::string_view kPolicy = "policy=";

// Words onto a line.
class Words {
 public:
  explicit Words(std::string_view kind) : text_(kind) {}
  Words& operator<<(std::string_view word) {
    text_ += ' ';
    text_ += word;
    return *this;
  }
  template <std::integral T>
  Words& operator<<(T value) {
    return *this << std::string_view(std::to_string(value));
  }
  Words& operator<<(double value) {
    char text[32];
    const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
    return *this << std::string_view(text, static_cast<size_t>(end - text));
  }
  Words& operator<<(const Application& application) {
    return *this << application.id << application.program << application.tenant << application.node
                 << application.memory << application.device << application.sensitivity;
  }
  operator std::string_view() const { return text_; }  // NOLINT: that is what it is for

 private:
  std::string text_;
};

struct Instant {
  Nanos* nanos;
};

// Words from a line. After one that is missing or wrong all others fail as well.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  std::string_view Word() {
    const size_t end = text_.find(' ');
    const std::string_view word = text_.substr(0, end);
    text_ = end == std::string_view::npos ? std::string_view() : text_.substr(end + 1);
    good_ = good_ && !word.empty();
    return word;
  }
  template <class T>
  Reader& operator>>(T& value) {
    const std::string_view word = Word();
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    good_ = good_ && error == std::errc() && end == word.data() + word.size();
    return *this;
  }
  Reader& operator>>(Application& application) {
    return *this >> application.id >> application.program >> application.tenant >>
           application.node >> application.memory >> application.device >> application.sensitivity;
  }
  // A time of a mapper's clock.
  Reader& operator>>(Instant instant) {
    *this >> *instant.nanos;
    good_ = good_ && *instant.nanos >= 0 && *instant.nanos <= std::numeric_limits<Nanos>::max() / 2;
    return *this;
  }
  // The GPUs that an application may use, where the line has them: ascending.
  Reader& ReadOnly(std::vector<Gid>* only) {
    if (!text_.starts_with(kOnly)) return *this;
    std::string_view list = Word().substr(kOnly.size());
    do {
      const size_t comma = list.find(',');
      Reader number(list.substr(0, comma));
      Gid gid = 0;
      number >> gid;
      good_ = good_ && number.Over() && (only->empty() || only->back() < gid);
      only->push_back(gid);
      list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    } while (good_ && !list.empty());
    return *this;
  }
  // The policy that the application's tenant is placed by, where the line has one.
  std::string_view ReadPolicy() {
    return text_.starts_with(kPolicy) ? Word().substr(kPolicy.size()) : std::string_view();
  }
  // Everything was read, and there is no more.
  bool Over() const { return good_ && text_.empty(); }

 private:
  std::string_view text_;
  bool good_ = true;
};

}  // namespace

void TraceWriter::Begin(const MapperOptions& options) {
  line_(kTraceHead);
  const std::string_view feedback_policy =
      options.feedback_policy.empty() ? kNone : std::string_view(options.feedback_policy);
  line_(Words("options") << std::string_view(options.policy) << feedback_policy << options.enter
                         << options.leave << options.sensitivity_max << options.offload_threshold
                         << options.feedback.half_life << options.feedback.enough
                         << options.feedback.weight_max);
}

void TraceWriter::GpuAdded(const Gpu& gpu) {
  line_(Words("gpu") << gpu.gid << gpu.node << gpu.local_device << gpu.model << gpu.weight
                     << gpu.memory_total << gpu.memory_bandwidth);
}

void TraceWriter::GpuGone(Gid gid) { line_(Words("gone") << gid); }

void TraceWriter::LoadSet(Gid gid, const Load& load) {
  line_(Words("load") << gid << load.memory_used << load.utilisation);
}

void TraceWriter::WeightSet(Gid gid, double weight) { line_(Words("weight") << gid << weight); }

void TraceWriter::Recorded(const Feedback& feedback, Nanos now) {
  line_(Words("feedback") << now << feedback.program << feedback.model << feedback.runtime
                          << feedback.gpu_time << feedback.transfer_time << feedback.transferred
                          << feedback.bandwidth << feedback.sensitivity);
}

void TraceWriter::Placed(const Application& application, Nanos now, const Decision& decision) {
  Words words("place");
  words << now << application << kOutcomes[static_cast<int>(decision.outcome)] << decision.gid
        << decision.policy;
  if (!application.only.empty()) {
    std::string only(kOnly);
    for (const Gid gid : application.only) only += std::to_string(gid) + ",";
    only.pop_back();
    words << std::string_view(only);
  }
  if (!application.policy.empty()) {
    words << std::string_view(std::string(kPolicy).append(application.policy));
  }
  line_(words);
}

void TraceWriter::Bound(const Application& application, Gid gid, Nanos now) {
  line_(Words("bind") << now << application << gid);
}

void TraceWriter::Unbound(ApplicationId id) { line_(Words("unbind") << id); }

Replay::Result Replay::Line(std::string_view line) {
  if (line.empty() || line.front() == '#') return Result::kDone;
  if (!head_) {
    head_ = line == kTraceHead;
    return head_ ? Result::kDone : Result::kBadLine;
  }
  Reader words(line);
  const std::string_view kind = words.Word();
  const auto done = [](bool done) { return done ? Result::kDone : Result::kRefused; };
  if (kind == "options") {
    MapperOptions options;
    options.policy = words.Word();
    options.feedback_policy = words.Word();
    if (options.feedback_policy == kNone) options.feedback_policy.clear();
    words >> options.enter >> options.leave >> options.sensitivity_max >>
        options.offload_threshold >> options.feedback.half_life >> options.feedback.enough >>
        options.feedback.weight_max;
    if (!words.Over() || mapper_ != nullptr) return Result::kBadLine;
    mapper_ = Mapper::Make(options);
    if (mapper_ == nullptr) return Result::kBadLine;
    mapper_->RecordTo(follower_);
    return Result::kDone;
  }
  if (mapper_ == nullptr) return Result::kBadLine;
  if (kind == "gpu") {
    Gpu gpu;
    words >> gpu.gid >> gpu.node >> gpu.local_device >> gpu.model >> gpu.weight >>
        gpu.memory_total >> gpu.memory_bandwidth;
    return words.Over() ? done(mapper_->AddGpu(gpu)) : Result::kBadLine;
  }
  if (kind == "gone") {
    Gid gid = kNoGid;
    words >> gid;
    if (!words.Over()) return Result::kBadLine;
    const bool there = mapper_->pool().Find(gid) != nullptr;
    mapper_->RemoveGpu(gid);
    return done(there);
  }
  if (kind == "load") {
    Gid gid = kNoGid;
    Load load;
    words >> gid >> load.memory_used >> load.utilisation;
    return words.Over() ? done(mapper_->SetLoad(gid, load)) : Result::kBadLine;
  }
  if (kind == "weight") {
    Gid gid = kNoGid;
    double weight = 0;
    words >> gid >> weight;
    return words.Over() ? done(mapper_->SetWeight(gid, weight)) : Result::kBadLine;
  }
  Nanos now = 0;
  if (kind == "feedback") {
    Feedback feedback;
    words >> Instant{&now} >> feedback.program >> feedback.model >> feedback.runtime >>
        feedback.gpu_time >> feedback.transfer_time >> feedback.transferred >> feedback.bandwidth >>
        feedback.sensitivity;
    return words.Over() ? done(mapper_->Record(feedback, now)) : Result::kBadLine;
  }
  Application application;
  Gid gid = kNoGid;
  if (kind == "place") {
    words >> Instant{&now} >> application;
    const std::string_view outcome = words.Word();
    words >> gid;
    const std::string_view policy = words.Word();
    const std::string_view own = words.ReadOnly(&application.only).ReadPolicy();
    application.policy = mapper_->Know(own);
    if (!words.Over() || application.policy != own) return Result::kBadLine;
    decision_ = mapper_->Place(application, now);
    ++decisions_;
    const bool same = kOutcomes[static_cast<int>(decision_.outcome)] == outcome &&
                      decision_.gid == gid && decision_.policy == policy;
    return same ? Result::kDone : Result::kDiffers;
  }
  if (kind == "bind") {
    words >> Instant{&now} >> application >> gid;
    return words.Over() ? done(mapper_->Bind(application, gid, now)) : Result::kBadLine;
  }
  if (kind == "unbind") {
    ApplicationId id = 0;
    words >> id;
    return words.Over() ? done(mapper_->Unbind(id)) : Result::kBadLine;
  }
  return Result::kBadLine;
}

}  // namespace consort::placement
