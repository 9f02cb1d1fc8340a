// SPDX-License-Identifier: Apache-2.0
// host/daemon/settings.h: the scheduler's policy, and the tenants' weights, GPUs and rates: those
// of the operator's files and flags, over them what the pool says to all its hosts (consortctl
// tenant set --pool), and over that what was set here at run time (consortctl policy, consortctl
// tenant set).
//
// What was set at run time is kept in a state file with who set it and when, so that it holds after
// a restart, until it is set back to what the files say:
//
//   {"schema": 1,
//    "policy": {"name": "las", "by": "uid 0", "at": 1767225600},
//    "weights": {"web-1": {"weight": 4, "by": "uid 1000", "at": 1767225600}},
//    "gpus": {"web-1": {"gpus": ["0"], ...}},
//    "placements": {"web-1": {"placement": "mbf", ...}},
//    "launch_rates": {"web-1": {"max_launches_per_second": 20000, ...}},
//    "copy_rates": {"web-1": {"max_copy_bytes_per_second": 1073741824, ...}}}
//
// The pool has a value for each tenant (gpool/member.h), with who changed it last and when:
//
//   {"weight": 4, "gpus": ["0"], "by": "uid 0 of node a", "at": 1767225600}
//
// Owned by consortd's loop.
#ifndef CONSORT_HOST_DAEMON_SETTINGS_H_
#define CONSORT_HOST_DAEMON_SETTINGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/daemon/tenant_change.h"
#include "host/daemon/tenants.h"

namespace consort::host {

inline constexpr char kDefaultPolicy[] = "tfs";

class Settings {
 public:
  // `policy`: of the flags; empty: what `tenants` says, or kDefaultPolicy. `state_path`: of the
  // state file, which need not be there yet; empty: nothing is kept. kInvalidArgument: the state
  // file is none of ours; the text names it.
  static absl::StatusOr<Settings> Load(TenantsFile tenants, std::string policy,
                                       std::string state_path);
  // The tenants' file has been read again.
  void Replace(TenantsFile tenants) { tenants_ = std::move(tenants); }
  // What the pool says now, a value for each tenant. kInvalidArgument: something of it cannot be
  // read and says nothing; the text names it.
  absl::Status ReplacePool(const std::map<std::string, std::string>& values);
  // The pool's value of a tenant with a change; empty: nothing is left to say. `now`: the value so
  // far, empty if there is none. kInvalidArgument: no such value, or `now` is none of ours.
  static absl::StatusOr<std::string> PoolValue(const std::string& now, const TenantChange& change,
                                               const std::string& who, uint64_t at);
  // Who said last what the pool says of a tenant; empty: it says nothing.
  std::string PoolSetter(const std::string& tenant) const;

  std::string policy() const;
  uint32_t WeightOf(std::string_view tenant) const;
  // As the file says alone.
  const TenantsFile& tenants() const { return tenants_; }
  // With what was set over it.
  Tenant Find(std::string_view tenant) const;
  // All that a file or the pool names or that were set, likewise.
  std::map<std::string, Tenant> Tenants() const;
  bool keeps() const { return !state_path_.empty(); }
  // What was set at run time, as the state file has it.
  std::string StateText() const;
  // Takes such a text, and writes nothing. kInvalidArgument: it is none.
  absl::Status Restore(const std::string& state_text);

  // From now on, said by `who` at `at` seconds since 1970; no value: what the pool or the files
  // say.
  // kInvalidArgument: no such policy or value, or too many are set. Others: it could not be
  // written, and is not in force.
  absl::Status SetPolicy(const std::optional<std::string>& policy, const std::string& who,
                         uint64_t at);
  absl::Status SetTenant(const TenantChange& change, const std::string& who, uint64_t at);

 private:
  template <class T>
  struct Said {
    T value;
    std::string by;
    uint64_t at = 0;
  };
  // By tenant.
  template <class T>
  using SaidOf = std::map<std::string, Said<T>>;
  struct Terms {
    SaidOf<uint32_t> weights;
    SaidOf<GpuList> gpus;
    SaidOf<std::string> placements;
    SaidOf<uint64_t> launch_rates;
    SaidOf<uint64_t> copy_rates;
  };
  struct State {
    std::optional<Said<std::string>> policy;
    Terms terms;
  };
  // Calls `with` for each kind of terms: its name in the file, its key there, what of `terms` it
  // is, and what `change` says of it.
  template <class T, class F>
  static absl::Status ForEachKind(T* terms, const TenantChange& change, F with);

  Settings(TenantsFile tenants, std::string policy, std::string state_path)
      : tenants_(std::move(tenants)),
        policy_(std::move(policy)),
        state_path_(std::move(state_path)) {}
  absl::Status Read();
  // kInvalidArgument: what is wrong with a state's text.
  static absl::StatusOr<State> ParseState(const std::string& text);
  // Writes `state` to the file, and takes it if that worked.
  absl::Status Take(State state);

  TenantsFile tenants_;
  std::string policy_;
  std::string state_path_;
  Terms pool_;
  State state_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_SETTINGS_H_
