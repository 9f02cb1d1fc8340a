// SPDX-License-Identifier: Apache-2.0
// policies/placement/plugin.h: the interface of a placement policy that is a shared object of the
// administrator's own. This header is all that one needs; it includes nothing of Consort.
//
//   #include "policies/placement/plugin.h"
//   class Mine : public consort_placement::Policy {
//     uint32_t Choose(const consort_placement::Question& question) const override { ... }
//   };
//   CONSORT_PLACEMENT_POLICY("mine", Mine)
//
//   g++ -std=c++20 -shared -fPIC -I CONSORT mine.cc -o mine.so
//
// A policy is pure: the same calls must bring the same choices. It reads no clock, starts no
// thread, prints nothing and keeps no state but what these calls tell; then the simulator and the
// daemon decide alike, and traces replay. One thread at a time calls an object.
//
// The loader refuses an object whose version or whose layout of these structs is another one than
// its own, before it runs any of its functions. kVersion is raised with every change here.
// policies/placement/example/best_fit.cc is a worked example.
#ifndef CONSORT_POLICIES_PLACEMENT_PLUGIN_H_
#define CONSORT_POLICIES_PLACEMENT_PLUGIN_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace consort_placement {

inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kNobody = UINT32_MAX;

// One GPU now. Parts of time are of 1; several applications may add up to more.
struct Gpu {
  uint32_t gid;           // its name in the pool
  uint32_t node;          // where it is
  uint32_t local_device;  // ordinal there
  uint32_t model;         // GPUs that behave alike have the same
  double weight;          // speed relative to others, measured
  uint64_t memory_total;  // bytes
  uint64_t memory_free;   // neither used nor promised to an application
  double utilisation;     // measured: part of the time in which it had work
  uint32_t bound;         // applications on it
  double compute;         // what those are expected to compute, as part of the time
  double transfer;        // ... to copy
  double bandwidth;       // ... of its memory's bandwidth
  double runtime;         // seconds that they would run, one after the other
};

// What is expected of the application's program on one model.
struct Expectation {
  bool known;      // by its own history; else as the others are
  double runtime;  // seconds
  double compute;  // parts of that
  double transfer;
  double bandwidth;  // part of the memory's bandwidth while it computes
};

struct Application {
  uint64_t id;
  uint64_t program;
  uint32_t tenant;
  uint32_t node;       // where it runs
  uint64_t memory;     // bytes that it needs; 0: not known
  uint32_t device;     // what it asked for itself
  double sensitivity;  // part of its time that it would lose on another node
};

// One application that needs a GPU. Valid during Choose.
class Question {
 public:
  virtual const Application& application() const = 0;
  // The GPUs that may be chosen now, by ascending gid: the tenant may use them, they have the
  // memory, and those of other nodes are among them only if the application may be remote. The
  // first call costs a look at all GPUs of the pool; a policy that keeps an order of its own uses
  // Find.
  virtual size_t candidate_count() const = 0;
  virtual const Gpu& candidate(size_t i) const = 0;
  // Null: no such GPU, or it may not be chosen.
  virtual const Gpu* Find(uint32_t gid) const = 0;
  virtual Expectation ExpectedOn(uint32_t model) const = 0;

 protected:
  ~Question() = default;
};

class Policy {
 public:
  virtual ~Policy() = default;
  // The gid of the GPU to use; kNobody: no opinion. For that, for a GPU that may not be chosen and
  // for an exception the candidate with the least applications is taken, and counted.
  virtual uint32_t Choose(const Question& question) const = 0;
  // A GPU is new, or something about it has changed.
  virtual void GpuChanged(const Gpu& /*gpu*/) {}
  virtual void GpuRemoved(uint32_t /*gid*/) {}
};

// Changes with the size and the places of what passes between the two sides.
constexpr uint64_t Layout() {
  uint64_t digest = 0xcbf29ce484222325;
  for (const size_t part :
       {sizeof(Gpu), offsetof(Gpu, weight), offsetof(Gpu, memory_free), offsetof(Gpu, bound),
        offsetof(Gpu, runtime), sizeof(Expectation), offsetof(Expectation, bandwidth),
        sizeof(Application), offsetof(Application, device), offsetof(Application, sensitivity),
        sizeof(void*)}) {
    digest = (digest ^ part) * 0x100000001b3;
  }
  return digest;
}

// What the shared object exports by the name `consort_placement_policy`. The first two fields keep
// their place in all versions.
struct Export {
  uint32_t version;
  uint32_t reserved;
  uint64_t layout;
  const char* name;
  // Null if it cannot be made from that argument, which comes from the configuration; not null.
  Policy* (*make)(const char* argument);
  void (*destroy)(Policy* policy);
};

template <class P>
Policy* MakeOf([[maybe_unused]] const char* argument) {
  if constexpr (requires { P(argument); }) {
    return new P(argument);
  } else {
    return new P();
  }
}

}  // namespace consort_placement

// At namespace scope, once. `type` has a constructor that takes const char* (the argument of the
// configuration), or one that takes nothing.
#define CONSORT_PLACEMENT_POLICY(name, type)                   \
  extern "C" __attribute__((visibility("default")))            \
  const consort_placement::Export consort_placement_policy;    \
  const consort_placement::Export consort_placement_policy = { \
      consort_placement::kVersion,     0,                      \
      consort_placement::Layout(),     name,                   \
      consort_placement::MakeOf<type>, [](consort_placement::Policy* policy) { delete policy; }};

#endif  // CONSORT_POLICIES_PLACEMENT_PLUGIN_H_
