// SPDX-License-Identifier: Apache-2.0
#include "gpool/mapper_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/fnv.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gpool/limits.h"
#include "gpool/policy_loader.h"

namespace consort::gpool {
namespace {

using Json = nlohmann::ordered_json;

// In the place of a loaded policy, until it is there.
constexpr char kStandIn[] = "gmin";

Json ToJson(const FeedbackRecord& record) {
  return {{"id", record.id},
          {"application", record.application},
          {"model", record.model},
          {"ended", record.ended_unix},
          {"runtime", record.runtime},
          {"gpu_time", record.gpu_time},
          {"transfer_time", record.transfer_time},
          {"bytes", record.bytes},
          {"sensitivity", record.sensitivity},
          {"bandwidth", record.bandwidth}};
}

std::optional<FeedbackRecord> FromJson(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  for (const char* key : {"id", "application", "model"}) {
    if (!json.contains(key) || !json[key].is_string()) return std::nullopt;
  }
  for (const char* key : {"ended", "runtime", "gpu_time", "transfer_time", "bytes"}) {
    if (!json.contains(key) || !json[key].is_number_integer()) return std::nullopt;
  }
  if (!json.contains("sensitivity") || !json["sensitivity"].is_number()) return std::nullopt;
  const auto bandwidth = json.find("bandwidth");  // not there: not measured
  if (bandwidth != json.end() && !bandwidth->is_number()) return std::nullopt;
  return FeedbackRecord{json["id"],
                        json["application"],
                        json["model"],
                        json["ended"],
                        json["runtime"],
                        json["gpu_time"],
                        json["transfer_time"],
                        json["bytes"],
                        json["sensitivity"],
                        bandwidth != json.end() ? bandwidth->get<double>() : 0};
}

}  // namespace

placement::ProgramId ProgramOf(const std::string& application) {
  uint64_t hash = kFnvBasis;
  for (const unsigned char c : application) hash = FnvStep(hash, c);
  return hash;
}

std::map<Gid, double> Weights(const Gmap& map) {
  std::vector<std::pair<double, Gid>> measured;
  std::map<Gid, double> weights;
  for (const auto& [name, node] : map.nodes) {
    for (const GpuRecord& gpu : node.gpus) {
      weights[gpu.gid] = 1;
      if (gpu.weight() > 0) measured.emplace_back(gpu.weight(), gpu.gid);
    }
  }
  std::sort(measured.begin(), measured.end());
  double least = 0;
  for (const auto& [weight, gid] : measured) {
    if (weight > least * kEqualWeights) least = weight;
    weights[gid] = std::clamp(least, 1 / placement::kWeightMax, placement::kWeightMax);
  }
  return weights;
}

std::string ModelKey(const std::string& model, uint64_t memory_bytes) {
  return absl::StrCat(model, "/", memory_bytes);
}

absl::StatusOr<std::unique_ptr<placement::Mapper>> MakeMapper(MapperOptions* options) {
  placement::MapperOptions with;
  const bool own = IsOwnPolicy(options->policy);
  with.policy = own ? kStandIn : options->policy;
  with.feedback_policy = options->feedback_policy;
  std::unique_ptr<placement::Mapper> mapper = placement::Mapper::Make(with);
  if (mapper == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("no placement policy ", options->policy,
                                                   options->feedback_policy.empty() ? "" : " or ",
                                                   options->feedback_policy));
  }
  if (own) {
    const size_t equals = options->policy.find('=', options->policy.rfind('/'));
    const std::string argument =
        equals == std::string::npos ? "" : options->policy.substr(equals + 1);
    ASSIGN_OR_RETURN(auto policy,
                     LoadPolicy(options->policy.substr(0, equals), argument, &mapper->pool()));
    options->policy = std::string(policy->name());
    mapper->Install(std::move(policy));
  }
  return mapper;
}

absl::StatusOr<std::unique_ptr<MapperState>> MapperState::Make(const MapperOptions& options) {
  std::unique_ptr<MapperState> state(new MapperState(options));
  ASSIGN_OR_RETURN(state->mapper_, MakeMapper(&state->options_));
  return state;
}

bool IsOwnPolicy(const std::string& policy) { return policy.find('/') != std::string::npos; }

placement::NodeId MapperState::NodeOf(const std::string& node) {
  return node_ids_.emplace(node, static_cast<placement::NodeId>(node_ids_.size())).first->second;
}

placement::ModelId MapperState::ModelOf(const GpuRecord& gpu) {
  // Beyond the bound the last one stands for all the others.
  const auto next = static_cast<placement::ModelId>(
      std::min<size_t>(model_ids_.size(), placement::kModelsMax - 1));
  return model_ids_.emplace(ModelKey(gpu.model, gpu.memory_bytes), next).first->second;
}

void MapperState::SetMap(const Gmap& map) {
  std::map<Gid, std::pair<std::string, GpuRecord>> now;
  for (const auto& [name, node] : map.nodes) {
    NodeOf(name);
    for (const GpuRecord& gpu : node.gpus) now[gpu.gid] = {name, gpu};
  }
  const std::map<Gid, double> weights = Weights(map);
  for (auto it = gpus_.begin(); it != gpus_.end();) {
    const auto same = now.find(it->first);
    if (same != now.end() && same->second == it->second) {
      mapper_->SetWeight(it->first, weights.at(it->first));
      ++it;
    } else {
      mapper_->RemoveGpu(it->first);
      it = gpus_.erase(it);
    }
  }
  for (const auto& [gid, entry] : now) {
    if (gpus_.contains(gid)) continue;
    const GpuRecord& record = entry.second;
    placement::Gpu gpu;
    gpu.gid = gid;
    gpu.node = NodeOf(entry.first);
    gpu.local_device = record.device;
    gpu.model = ModelOf(record);
    gpu.weight = weights.at(gid);
    gpu.memory_total = record.memory_bytes;
    gpu.memory_bandwidth = record.speed.memory;
    if (!mapper_->AddGpu(gpu)) {
      LOG(ERROR) << "the mapper takes no GPU more: " << gid << " of node " << entry.first;
      continue;
    }
    gpus_[gid] = entry;
  }
  std::vector<AssemblyKey> gone;
  for (const auto& [key, ids] : bound_) {
    if (!map.nodes.contains(key.first)) gone.push_back(key);
  }
  for (const AssemblyKey& key : gone) Forget(key);
}

void MapperState::Forget(const AssemblyKey& key) {
  const auto it = bound_.find(key);
  if (it == bound_.end()) return;
  for (const placement::ApplicationId id : it->second) mapper_->Unbind(id);
  bound_.erase(it);
}

void MapperState::Clear(const std::string& node) {
  std::vector<AssemblyKey> of_node;
  for (const auto& [key, ids] : bound_) {
    if (key.first == node) of_node.push_back(key);
  }
  for (const AssemblyKey& key : of_node) Forget(key);
}

void MapperState::Release(const std::string& node, uint64_t id) { Forget({node, id}); }

placement::Application MapperState::Describe(const std::string& node, const UsedAssembly& who) {
  placement::Application application;
  application.id = next_application_++;
  application.program = ProgramOf(who.application);
  application.node = NodeOf(node);
  application.only = who.only;
  application.policy = mapper_->Know(who.policy);
  return application;
}

bool MapperState::Bind(const AssemblyKey& key, const placement::Application& application, Gid gid,
                       Nanos now) {
  if (!mapper_->Bind(application, gid, now)) return false;
  bound_[key].push_back(application.id);
  return true;
}

absl::StatusOr<std::vector<PlacedVgpu>> MapperState::Place(const std::string& node,
                                                           const UsedAssembly& who, uint32_t vgpus,
                                                           bool trial, Nanos now) {
  const AssemblyKey key = {node, who.id};
  if (mapper_->Know(who.policy) != who.policy) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the pool's mapper has no placement policy ", who.policy));
  }
  if (!trial) Forget(key);
  std::vector<PlacedVgpu> placed;
  std::set<Gid> used;
  std::optional<placement::Application> first;
  while (placed.size() < vgpus && used.size() < gpus_.size()) {
    placement::Application application = Describe(node, who);
    application.device = static_cast<uint32_t>(placed.size());
    const placement::Decision decision = mapper_->Place(application, now);
    if (decision.outcome == placement::Decision::Outcome::kPlaced &&
        used.insert(decision.gid).second) {
      placed.push_back({decision.gid, placement::Explain(decision, application)});
      if (!first.has_value()) first = application;
      continue;
    }
    if (placed.empty()) {
      return absl::ResourceExhaustedError(placement::Explain(decision, application));
    }
    // The policy means one that this program has: then the least used of the others, near ones
    // first.
    std::optional<std::tuple<bool, uint32_t, Gid>> best;
    for (const auto& [gid, entry] : gpus_) {
      if (used.contains(gid) || !application.MayUse(gid)) continue;
      const std::tuple<bool, uint32_t, Gid> candidate = {entry.first != node,
                                                         mapper_->pool().Find(gid)->bound(), gid};
      if (!best.has_value() || candidate < *best) best = candidate;
    }
    if (!best.has_value()) break;
    const auto [remote, bound, gid] = *best;
    used.insert(gid);
    placed.push_back({gid, absl::StrCat(remote ? "on another node, " : "near, ", bound,
                                        " there; the program has the ones before it already")});
  }
  if (placed.empty()) return absl::ResourceExhaustedError("the pool has no GPU");
  if (!trial && !Bind(key, *first, placed[0].gid, now)) {
    return absl::ResourceExhaustedError("the pool has its limit of applications");
  }
  return placed;
}

void MapperState::Use(const std::string& node, const UsedAssembly& assembly, Nanos now) {
  const AssemblyKey key = {node, assembly.id};
  std::vector<placement::ApplicationId> before;
  if (const auto it = bound_.find(key); it != bound_.end()) before.swap(it->second);
  bound_.erase(key);
  // First those that stay, so that only what is left is moved or ended.
  std::vector<Gid> others;
  for (const Gid gid : assembly.gids) {
    const auto stays = std::find_if(before.begin(), before.end(), [&](auto id) {
      const auto* binding = mapper_->pool().FindApplication(id);
      return binding != nullptr && mapper_->pool().at(binding->slot).gpu.gid == gid;
    });
    if (stays == before.end()) {
      others.push_back(gid);
    } else {
      bound_[key].push_back(*stays);
      before.erase(stays);
    }
  }
  for (const Gid gid : others) {
    placement::Application application = Describe(node, assembly);
    if (!before.empty()) {
      application.id = before.back();
      before.pop_back();
    }
    if (!Bind(key, application, gid, now)) mapper_->Unbind(application.id);
  }
  for (const placement::ApplicationId id : before) mapper_->Unbind(id);
}

bool MapperState::Record(const FeedbackRecord& record) {
  if (!known_records_.insert(record.id).second) return false;
  placement::Feedback feedback;
  feedback.program = ProgramOf(record.application);
  const auto model = model_ids_.find(record.model);
  // A model that there is no GPU of now gets its number when one comes; of more models than the
  // bound the last number stands for all.
  feedback.model = model != model_ids_.end() ? model->second
                                             : static_cast<placement::ModelId>(std::min<size_t>(
                                                   model_ids_.size(), placement::kModelsMax - 1));
  if (model == model_ids_.end()) model_ids_[record.model] = feedback.model;
  feedback.runtime = record.runtime;
  feedback.gpu_time = std::min(record.gpu_time, record.runtime);
  feedback.transfer_time = std::min(record.transfer_time, record.runtime);
  feedback.transferred = record.bytes;
  feedback.bandwidth = record.bandwidth;
  feedback.sensitivity = record.sensitivity;
  if (!mapper_->Record(feedback, record.ended_unix)) {
    LOG(WARNING) << "a measurement of " << record.application << " makes no sense";
    return false;
  }
  history_.push_back(record);
  if (history_.size() > kFeedbackKept) {
    known_records_.erase(history_.front().id);
    history_.pop_front();
  }
  return true;
}

std::string MapperState::History() const {
  Json records = Json::array();
  for (const FeedbackRecord& record : history_) records.push_back(ToJson(record));
  return Json{{"schema", 1}, {"records", std::move(records)}}.dump(-1, ' ', false,
                                                                   Json::error_handler_t::replace);
}

void MapperState::Load(const std::string& history) {
  if (history.empty()) return;
  const Json json = Json::parse(history, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("records") || !json["records"].is_array()) {
    LOG(WARNING) << "the pool's history is not of this version; it begins anew";
    return;
  }
  for (const Json& entry : json["records"]) {
    if (const auto record = FromJson(entry); record.has_value()) Record(*record);
  }
}

std::vector<GpuUse> MapperState::Uses() const {
  std::vector<GpuUse> uses;
  for (const auto& [gid, entry] : gpus_) {
    uses.push_back({gid, mapper_->pool().Find(gid)->bound()});
  }
  return uses;
}

std::string MapperState::policy() const {
  return mapper_->by_feedback() ? options_.feedback_policy : options_.policy;
}

}  // namespace consort::gpool
