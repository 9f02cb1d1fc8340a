// SPDX-License-Identifier: Apache-2.0
// policies/placement/types.h: what placement knows and says: GPUs, applications, measurements,
// decisions. Plain values. Shares of time and bandwidth are integers in millionths, so that sums
// that are kept up step by step equal sums that are made anew.
#ifndef CONSORT_POLICIES_PLACEMENT_TYPES_H_
#define CONSORT_POLICIES_PLACEMENT_TYPES_H_

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace consort::placement {

// The global id of a GPU. Given by the pool, never used again while the pool lives.
using Gid = uint32_t;
using NodeId = uint32_t;
// GPUs that behave alike (same product, same memory). Chosen by the pool.
using ModelId = uint32_t;
using ApplicationId = uint64_t;
// Stands for the same program over the pool's life: a hash of what identifies it.
using ProgramId = uint64_t;
using TenantId = uint32_t;
// Millionths.
using Ppm = int64_t;
inline constexpr Ppm kWhole = 1'000'000;

// The same as a part of 1.
inline double Part(Ppm part) { return static_cast<double>(part) / kWhole; }

inline constexpr Gid kNoGid = UINT32_MAX;

// Bounds. Reaching one refuses the new GPU or application and changes nothing else.
inline constexpr uint32_t kGpusMax = 65'536;             // several times the largest pool planned
inline constexpr uint32_t kModelsMax = 256;              // each decision looks at every model
inline constexpr uint32_t kGpusOfNodeMax = 64;           // each decision looks at the local ones
inline constexpr uint32_t kApplicationsMax = 4'194'304;  // bound at once
inline constexpr uint32_t kHistoriesMax = 65'536;        // pairs of program and model
// Measurements beyond these come of a fault, and are refused.
inline constexpr Nanos kRuntimeMax = 100 * 24 * 3600 * kSecond;
inline constexpr double kBandwidthMax = 1e18;  // bytes a second
inline constexpr double kSensitivityMax = 1e6;
inline constexpr double kWeightMax = 1e6;  // and its inverse is the least

// What does not change while a GPU is in the pool, but for its weight.
struct Gpu {
  Gid gid = kNoGid;
  NodeId node = 0;
  uint32_t local_device = 0;  // ordinal on its node
  ModelId model = 0;          // < kModelsMax
  double weight = 1;          // speed relative to the others, measured at registration; > 0
  Bytes memory_total = 0;
  double memory_bandwidth = 0;  // bytes a second; 0: the most that feedback has shown of the model
};

// What is measured on a GPU now.
struct Load {
  Bytes memory_used = 0;  // by whomever
  Ppm utilisation = 0;    // part of the time in which the device had work
};

struct Application {
  ApplicationId id = 0;
  ProgramId program = 0;
  TenantId tenant = 0;
  NodeId node = 0;      // where it runs; need not have a GPU
  Bytes memory = 0;     // that it will need; 0: not known, fits everywhere
  uint32_t device = 0;  // what it asked for by cudaSetDevice: only the policy `static` looks at it
  // How much a GPU on another node would slow it down (sensitivity.h); negative: not known, taken
  // from the program's history, and 0 where there is none.
  double sensitivity = -1;
  // The only GPUs that its tenant may use, ascending; empty: all.
  std::vector<Gid> only = {};
  // The policy that its tenant is placed by, of Mapper::Know; empty: the pool's.
  std::string_view policy = {};

  bool MayUse(Gid gid) const {
    return only.empty() || std::binary_search(only.begin(), only.end(), gid);
  }
};

// What was measured of one application that ended, or of a part of its life.
struct Feedback {
  ProgramId program = 0;
  ModelId model = 0;
  Nanos runtime = 0;        // by the wall, without what it waited for others; > 0
  Nanos gpu_time = 0;       // kernels, as if alone
  Nanos transfer_time = 0;  // copies between host and device
  Bytes transferred = 0;
  double bandwidth = 0;     // bytes that its kernels touched over gpu_time, a second
  double sensitivity = -1;  // negative: not measured
};

// What is expected of a program on a model.
struct Profile {
  bool known = false;  // from history of this program; else the mean of all, or a guess
  Nanos runtime = kSecond;
  Ppm compute = kWhole / 2;    // part of its time in which it computes on the device
  Ppm transfer = kWhole / 10;  // ... in which it copies
  Ppm bandwidth = kWhole / 4;  // of the GPU's memory bandwidth, while it computes
  double sensitivity = 0;
};

// Where an application may go, and why no farther.
enum class Scope : uint8_t {
  kAnywhere,
  kNodeSensitive,   // its node only: a remote GPU would slow it down too much
  kNodeShortQueue,  // its node only: the local queue is below the threshold for offloading
};

struct Decision {
  enum class Outcome : uint8_t {
    kPlaced,
    kNoGpu,     // the pool has none (or, `static`: not the one asked for)
    kNoMemory,  // there is none with enough free memory now
  };
  Outcome outcome = Outcome::kNoGpu;
  Gid gid = kNoGid;
  NodeId node = 0;
  uint32_t local_device = 0;
  bool local = false;  // on the application's node

  // Why. Scores are the policy's own: less is better.
  std::string_view policy = {};  // lives as long as the mapper
  bool by_feedback = false;      // the arbiter chose the feedback policy
  Ppm coverage = 0;              // of the latest arrivals, by history
  Scope scope = Scope::kAnywhere;
  double score = 0;
  Gid local_best = kNoGid;  // the best of the application's node, chosen or not
  double local_score = 0;
  uint32_t bound = 0;    // applications on the chosen GPU before this one
  Profile profile = {};  // of the program on the chosen GPU's model
};

}  // namespace consort::placement

#endif  // CONSORT_POLICIES_PLACEMENT_TYPES_H_
