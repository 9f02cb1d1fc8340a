// SPDX-License-Identifier: Apache-2.0
// policies/placement/feedback_table.h: the scheduler feedback table (SFT): what was measured of a
// program on a model of GPU, aged.
//
// Each entry holds means in which a measurement weighs 2^(-age / half_life). The sum of those
// weights says how much an entry is worth now; a program is *known* while its entries together are
// worth `enough`. At most kHistoriesMax entries: then the program whose latest measurement is
// oldest goes. Thread compatible.
#ifndef CONSORT_POLICIES_PLACEMENT_FEEDBACK_TABLE_H_
#define CONSORT_POLICIES_PLACEMENT_FEEDBACK_TABLE_H_

#include <array>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "policies/placement/types.h"

namespace consort::placement {

struct FeedbackOptions {
  Nanos half_life = 1800 * kSecond;
  double enough = 2;
  // What is older than this many times as much is not kept apart: so much weight at most.
  double weight_max = 16;
};

class FeedbackTable {
 public:
  // What the table must know of the models to carry over from one to another.
  struct Model {
    double weight = 1;
    double memory_bandwidth = 0;
  };

  explicit FeedbackTable(const FeedbackOptions& options) : options_(options) {}

  // False: the measurement makes no sense (a runtime of 0, a model out of bounds, more time on the
  // device than its runtime by far, negative or infinite numbers) and was not taken.
  bool Record(const Feedback& feedback, Nanos now);
  void SetModel(ModelId id, const Model& model) { models_[id] = model; }

  bool Knows(ProgramId program, Nanos now) const;
  // From this program's history on the model, or else on another: then the time on the device
  // goes by the weights, and what is left stays as it is. Without either: the mean of all programs.
  Profile Estimate(ProgramId program, ModelId model, Nanos now) const;

  // Entries, for tests and for showing.
  size_t size() const { return entries_; }

 private:
  struct Means {
    double runtime = 0;
    double gpu_time = 0;
    double transfer_time = 0;
    double bandwidth = 0;
    double sensitivity = 0;
  };
  struct Entry {
    ModelId model = 0;
    Nanos latest = 0;
    double weight = 0;  // at `latest`
    Means means = {};
  };
  struct Program {
    std::vector<Entry> entries;  // one a model that it was seen on
    std::list<ProgramId>::iterator age;
  };

  double WeightNow(const Entry& entry, Nanos now) const;
  void Add(Entry* entry, const Feedback& feedback, Nanos now) const;
  Profile ProfileOf(const Entry& entry, ModelId model) const;
  double BandwidthOf(ModelId model) const;

  const FeedbackOptions options_;
  std::unordered_map<ProgramId, Program> programs_;
  std::list<ProgramId> by_age_;  // latest measured first
  size_t entries_ = 0;
  Entry all_;  // of all programs and models
  std::array<Model, kModelsMax> models_ = {};
  std::array<double, kModelsMax> bandwidth_seen_ = {};
};

}  // namespace consort::placement

#endif  // CONSORT_POLICIES_PLACEMENT_FEEDBACK_TABLE_H_
