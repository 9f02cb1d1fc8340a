// SPDX-License-Identifier: Apache-2.0
#include "policies/sim/scenario_file.h"

#include <functional>
#include <map>
#include <optional>
#include <utility>

// The library's errors as values; its shared form has them as exceptions only.
#undef TOML_HEADER_ONLY
#undef TOML_SHARED_LIB
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/absl_text.h"
#include "base/status_macros.h"

namespace consort::sim {
namespace {

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  absl::StatusOr<PoolScenario> Read(const toml::table& root) {
    // In this order whatever the file's: streams name programs, nodes name models.
    RETURN_IF_ERROR(Table(root, "",
                          {{"seed", Whole(&scenario_.seed)},
                           {"stop_seconds", Seconds(&scenario_.stop)},
                           {"mode", Mode()},
                           {"scheduler", Text(&scenario_.scheduler)},
                           {"batches_in_flight", Whole(&scenario_.batches_in_flight)},
                           {"context_switch_us", Micros(&scenario_.context_switch)},
                           {"placement", Skip()},
                           {"network", Skip()},
                           {"model", Skip()},
                           {"node", Skip()},
                           {"program", Skip()},
                           {"stream", Skip()}}));
    placement::MapperOptions& placement = scenario_.placement;
    RETURN_IF_ERROR(One(root, "placement",
                        {{"policy", Text(&placement.policy)},
                         {"feedback_policy", Text(&placement.feedback_policy)},
                         {"enter_percent", Percent(&placement.enter)},
                         {"leave_percent", Percent(&placement.leave)},
                         {"sensitivity_max", Number(&placement.sensitivity_max)},
                         {"offload_threshold", Whole(&placement.offload_threshold)},
                         {"half_life_seconds", Seconds(&placement.feedback.half_life)},
                         {"enough", Number(&placement.feedback.enough)},
                         {"bandwidth_measured", Flag(&scenario_.bandwidth_measured)},
                         {"bandwidth_error", Number(&scenario_.bandwidth_error)}}));
    RETURN_IF_ERROR(One(root, "network",
                        {{"gigabytes_a_second", Giga(&scenario_.network_bandwidth)},
                         {"round_trip_us", Micros(&scenario_.round_trip)}}));
    RETURN_IF_ERROR(Each(root, "model", [&](const toml::table& table) -> absl::Status {
      GpuModel model;
      RETURN_IF_ERROR(Table(table, "model",
                            {{"name", Text(&model.name)},
                             {"sms", Number(&model.sms)},
                             {"sm_speed", Number(&model.sm_speed)},
                             {"memory_gigabytes_a_second", Giga(&model.memory_bandwidth)},
                             {"copy_gigabytes_a_second", Giga(&model.copy_bandwidth)},
                             {"copy_engines", Whole(&model.copy_engines)},
                             {"kernels_max", Whole(&model.kernels_max)},
                             {"memory_mib", Mebibytes(&model.memory)}}));
      RETURN_IF_ERROR(Name(table, &models_, model.name));
      scenario_.models.push_back(std::move(model));
      return absl::OkStatus();
    }));
    RETURN_IF_ERROR(Each(root, "node", [&](const toml::table& table) -> absl::Status {
      std::vector<uint32_t> gpus;
      uint32_t count = 1;
      RETURN_IF_ERROR(Table(table, "node", {{"gpus", Models(&gpus)}, {"count", Whole(&count)}}));
      if (scenario_.nodes.size() + count > kNodesMax) {
        return Error(table.source(), absl::StrCat("at most ", kNodesMax, " nodes"));
      }
      scenario_.nodes.insert(scenario_.nodes.end(), count, gpus);
      return absl::OkStatus();
    }));
    RETURN_IF_ERROR(Each(root, "program", [&](const toml::table& table) -> absl::Status {
      ProgramModel program;
      RETURN_IF_ERROR(Table(table, "program",
                            {{"name", Text(&program.name)},
                             {"cycles", Whole(&program.cycles)},
                             {"threads", Whole(&program.threads)},
                             {"cpu_us", Micros(&program.cpu)},
                             {"to_device_kib", Kibibytes(&program.to_device)},
                             {"kernel_us", Micros(&program.kernel)},
                             {"sms", Number(&program.sms)},
                             {"compute", Number(&program.compute)},
                             {"gigabytes_a_second", Giga(&program.bandwidth)},
                             {"to_host_kib", Kibibytes(&program.to_host)},
                             {"calls", Whole(&program.calls)},
                             {"memory_mib", Mebibytes(&program.memory)}}));
      RETURN_IF_ERROR(Name(table, &programs_, program.name));
      scenario_.programs.push_back(std::move(program));
      return absl::OkStatus();
    }));
    RETURN_IF_ERROR(Each(root, "stream", [&](const toml::table& table) -> absl::Status {
      StreamModel stream;
      uint32_t nodes = 1;
      RETURN_IF_ERROR(Table(table, "stream",
                            {{"program", OneOf(&stream.program, &programs_)},
                             {"node", Whole(&stream.node)},
                             {"nodes", Whole(&nodes)},
                             {"tenant", Whole(&stream.tenant)},
                             {"weight", Whole(&stream.weight)},
                             {"device", Whole(&stream.device)},
                             {"gap_seconds", Number(&stream.gap_seconds)},
                             {"count", Whole(&stream.count)},
                             {"start_seconds", Seconds(&stream.start)}}));
      if (stream.tenant >= kTenantsMax || nodes > kNodesMax) {
        return Error(table.source(),
                     absl::StrCat("at most ", kTenantsMax, " tenants and ", kNodesMax, " nodes"));
      }
      for (uint32_t i = 0; i < nodes; ++i) {
        scenario_.streams.push_back(stream);
        ++stream.node;
      }
      return absl::OkStatus();
    }));
    return std::move(scenario_);
  }

  absl::Status Error(const toml::source_region& where, absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ":", where.begin.line, ":", where.begin.column, ": ", what));
  }

 private:
  static constexpr uint32_t kNodesMax = 16'384;
  static constexpr uint32_t kTenantsMax = 65'536;
  using Set = std::function<absl::Status(const toml::key&, const toml::node&)>;
  using Keys = std::map<std::string, Set, std::less<>>;
  using Names = std::map<std::string, uint32_t, std::less<>>;

  absl::Status Wants(const toml::key& key, const toml::node& node, absl::string_view what) const {
    return Error(node.source(), absl::StrCat(AbslText(key.str()), " wants ", what));
  }

  absl::Status Table(const toml::table& table, std::string_view name, const Keys& keys) const {
    for (const auto& [key, node] : table) {
      const auto found = keys.find(key.str());
      if (found == keys.end()) {
        return Error(key.source(),
                     absl::StrCat("unknown key ", AbslText(key.str()), name.empty() ? "" : " of ",
                                  AbslText(name), "; known: ",
                                  absl::StrJoin(keys, ", ", [](std::string* out, const auto& each) {
                                    out->append(each.first);
                                  })));
      }
      RETURN_IF_ERROR(found->second(key, node));
    }
    return absl::OkStatus();
  }
  absl::Status One(const toml::table& root, std::string_view name, const Keys& keys) const {
    const toml::node* const node = root.get(name);
    if (node == nullptr) return absl::OkStatus();
    if (node->as_table() == nullptr) {
      return Error(node->source(),
                   absl::StrCat(AbslText(name), " begins with [", AbslText(name), "]"));
    }
    return Table(*node->as_table(), name, keys);
  }
  absl::Status Each(const toml::table& root, std::string_view name,
                    const std::function<absl::Status(const toml::table&)>& read) const {
    const toml::node* const node = root.get(name);
    if (node == nullptr) return absl::OkStatus();
    const toml::array* const array = node->as_array();
    if (array == nullptr || !array->is_homogeneous(toml::node_type::table)) {
      return Error(node->source(), absl::StrCat("a ", AbslText(name), " begins with a line [[",
                                                AbslText(name), "]]"));
    }
    for (const toml::node& entry : *array) RETURN_IF_ERROR(read(*entry.as_table()));
    return absl::OkStatus();
  }
  absl::Status Name(const toml::table& table, Names* names, const std::string& name) const {
    if (name.empty()) return Error(table.source(), "this needs a name");
    if (!names->emplace(name, static_cast<uint32_t>(names->size())).second) {
      return Error(table.source(), absl::StrCat("there are two of the name ", name));
    }
    return absl::OkStatus();
  }

  static Set Skip() {
    return [](const toml::key&, const toml::node&) { return absl::OkStatus(); };
  }
  Set Text(std::string* to) const {
    return [this, to](const toml::key& key, const toml::node& node) {
      const std::optional<std::string> text = node.value_exact<std::string>();
      if (!text.has_value()) return Wants(key, node, "text in quotes");
      *to = *text;
      return absl::OkStatus();
    };
  }
  Set Mode() {
    return [this](const toml::key& key, const toml::node& node) {
      const std::string mode = node.value_exact<std::string>().value_or("");
      if (mode != "packed" && mode != "process") {
        return Wants(key, node, "\"packed\" or \"process\"");
      }
      scenario_.packed = mode == "packed";
      return absl::OkStatus();
    };
  }
  Set Flag(bool* to) const {
    return [this, to](const toml::key& key, const toml::node& node) {
      const std::optional<bool> value = node.value_exact<bool>();
      if (!value.has_value()) return Wants(key, node, "true or false");
      *to = *value;
      return absl::OkStatus();
    };
  }
  template <class T>
  Set Whole(T* to) const {
    return [this, to](const toml::key& key, const toml::node& node) {
      const std::optional<int64_t> value = node.value_exact<int64_t>();
      if (!value.has_value() || *value < 0 || *value > int64_t{UINT32_MAX}) {
        return Wants(key, node, "a whole number from 0 to 4294967295");
      }
      *to = static_cast<T>(*value);
      return absl::OkStatus();
    };
  }
  // A number of at least 0, given on.
  Set Scaled(std::function<void(double)> set) const {
    return [this, set = std::move(set)](const toml::key& key, const toml::node& node) {
      // value: whole numbers are good here too.
      const std::optional<double> value = node.value<double>();
      if (!value.has_value() || !(*value >= 0) || !(*value <= kNumberMax)) {
        return Wants(key, node, "a number from 0 to 1e9");
      }
      set(*value);
      return absl::OkStatus();
    };
  }
  static constexpr double kNumberMax = 1e9;
  Set Number(double* to) const {
    return Scaled([to](double value) { *to = value; });
  }
  Set Giga(double* to) const {
    return Scaled([to](double value) { *to = value * 1e9; });
  }
  Set Micros(Nanos* to) const {
    return Scaled([to](double value) { *to = static_cast<Nanos>(value * kMicrosecond); });
  }
  Set Seconds(Nanos* to) const {
    return Scaled([to](double value) { *to = static_cast<Nanos>(value * kSecond); });
  }
  Set Percent(placement::Ppm* to) const {
    return Scaled(
        [to](double value) { *to = static_cast<placement::Ppm>(value / 100 * placement::kWhole); });
  }
  Set Kibibytes(Bytes* to) const {
    return Scaled([to](double value) { *to = static_cast<Bytes>(value * kKiB); });
  }
  Set Mebibytes(Bytes* to) const {
    return Scaled([to](double value) { *to = static_cast<Bytes>(value * kMiB); });
  }
  Set OneOf(uint32_t* to, const Names* names) const {
    return [this, to, names](const toml::key& key, const toml::node& node) {
      const auto found = names->find(node.value_exact<std::string>().value_or(""));
      if (found == names->end()) {
        return Wants(key, node,
                     absl::StrCat("one of ", absl::StrJoin(*names, ", ",
                                                           [](std::string* out, const auto& each) {
                                                             out->append(each.first);
                                                           })));
      }
      *to = found->second;
      return absl::OkStatus();
    };
  }
  Set Models(std::vector<uint32_t>* to) const {
    return [this, to](const toml::key& key, const toml::node& node) {
      const toml::array* const array = node.as_array();
      if (array == nullptr) return Wants(key, node, "a list of names of models");
      for (const toml::node& each : *array) {
        uint32_t model = 0;
        RETURN_IF_ERROR(OneOf(&model, &models_)(key, each));
        to->push_back(model);
      }
      return absl::OkStatus();
    };
  }

  const std::string path_;
  PoolScenario scenario_;
  Names models_;
  Names programs_;
};

}  // namespace

absl::StatusOr<PoolScenario> ParseScenario(const std::string& path, std::string_view text) {
  Reader reader(path);
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) return reader.Error(parsed.error().source(), AbslText(parsed.error().description()));
  return reader.Read(parsed.table());
}

}  // namespace consort::sim
