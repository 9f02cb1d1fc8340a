// SPDX-License-Identifier: Apache-2.0
// consortd: what operators set, in files that are read again and at run time, and that workers and
// doors are told of it.
#include <time.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "host/daemon/daemon.h"
#include "host/daemon/vm_files.h"

namespace consort::host {
namespace {

std::string RateText(uint64_t per_second) {
  return per_second == 0 ? "none" : absl::StrCat(per_second);
}

}  // namespace

void Daemon::Reload() {
  if (stopping_ || vm_doors_ == nullptr) return;
  // Somebody may have moved it away.
  if (account_.has_value()) ReopenAccount();
  const absl::Status tenants = ReloadTenants();
  LOG_IF(ERROR, !tenants.ok()) << "reading the tenants' file again: " << tenants.message();
  const absl::Status vms = OpenVmDoors();
  LOG_IF(ERROR, !vms.ok()) << "reading the VMs' files again: " << vms.message();
  for (const absl::Status& status : {tenants, vms}) {
    if (status.ok()) continue;
    events_.Add(EventLevel::kError, absl::StrCat("reading files again: ",
                                                 PrintableName(std::string(status.message()))));
  }
  reload_failed_ = !tenants.ok() || !vms.ok();
  if (reload_failed_) return;
  LOG(INFO) << "read the files again: " << settings_.tenants().tenants.size() << " tenants, "
            << vm_doors_->vms().size() << " VMs";
}

void Daemon::ReopenAccount() {
  auto opened = AccountFile::Open(options_.account_path);
  if (opened.ok()) {
    account_ = *std::move(opened);
    return;
  }
  LOG(ERROR) << opened.status().message()
             << (account_.has_value() ? "; the one that is open goes on" : "; there is no account");
  ++errors_[kErrorAccount];
  events_.Add(EventLevel::kError, PrintableName(std::string(opened.status().message())));
}

absl::Status Daemon::ReloadTenants() {
  auto file = ReadTenants(options_.tenants_path);
  // There need not be one, but what one said is not taken back by its loss.
  if (absl::IsNotFound(file.status()) && settings_.tenants().tenants.empty()) file = TenantsFile();
  RETURN_IF_ERROR(file.status());
  const std::string policy = settings_.policy();
  const std::map<std::string, Tenant> before = settings_.Tenants();
  settings_.Replace(*std::move(file));
  TellChanges(policy, before);
  return OpenTenantDoors();
}

void Daemon::TellChanges(const std::string& policy, const std::map<std::string, Tenant>& before) {
  if (settings_.policy() != policy) {
    LOG(INFO) << "the policy is " << settings_.policy() << " now (was " << policy << ")";
    for (const auto& [worker, running] : workers_) SendSettings(worker);
  }
  SendTerms(before);
}

absl::Status Daemon::OpenTenantDoors() {
  std::map<std::string, std::string> wanted;
  for (const Tenant& tenant : settings_.tenants().tenants) {
    if (!tenant.socket_path.empty()) wanted[tenant.socket_path] = tenant.name;
  }
  // A socket that is another tenant's now is opened anew.
  std::erase_if(unix_doors_, [&](const auto& entry) {
    const auto it = wanted.find(entry.first);
    return entry.first != options_.socket_path &&
           (it == wanted.end() || it->second != entry.second->tenant());
  });
  absl::Status status = absl::OkStatus();
  for (const auto& [path, tenant] : wanted) {
    if (unix_doors_.contains(path)) continue;
    auto door = Door::OpenUnix(loop_, path, tenant, greet_);
    status.Update(door.status());  // the others' doors open all the same
    if (!door.ok()) continue;
    unix_doors_[path] = *std::move(door);
    LOG(INFO) << "listening on " << path << " for tenant " << tenant << ", weight "
              << settings_.WeightOf(tenant);
  }
  return status;
}

absl::Status Daemon::OpenVmDoors() {
  if (options_.vm_folder.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<VmOptions> wanted,
                   ReadVmFiles(options_.vm_folder, options_.vm_defaults));
  std::map<std::string, bool> keep;
  for (const VmOptions& vm : options_.vms) keep[vm.name] = true;
  for (const VmOptions& vm : wanted) {
    if (!keep.emplace(vm.name, true).second) {
      return absl::InvalidArgumentError(absl::StrCat("VM ", vm.name, " is named by --vm too"));
    }
  }
  std::vector<std::string> gone;
  for (const auto& [name, vm] : vm_doors_->vms()) {
    if (!keep.contains(name)) gone.push_back(name);
  }
  for (const std::string& name : gone) {
    vm_doors_->Remove(name);
    events_.Add(EventLevel::kInfo, absl::StrCat("virtual machine ", name, " is gone"));
  }
  absl::Status status = absl::OkStatus();
  for (const VmOptions& vm : wanted) {
    if (vm_doors_->vms().contains(vm.name)) {
      status.Update(vm_doors_->Change(vm));
    } else {
      const absl::Status added = vm_doors_->Add(vm);  // the others' doors open all the same
      status.Update(added);
      if (!added.ok()) continue;
      events_.Add(EventLevel::kInfo,
                  absl::StrCat("virtual machine ", vm.name, " of tenant ",
                               vm.tenant.empty() ? vm.name : vm.tenant, " has a socket"));
    }
  }
  return status;
}

absl::Status Daemon::SetPolicy(const std::optional<std::string>& policy, const std::string& who) {
  const std::string before = settings_.policy();
  RETURN_IF_ERROR(settings_.SetPolicy(policy, who, static_cast<uint64_t>(time(nullptr))));
  LOG(INFO) << who << " set the policy to " << settings_.policy() << " (was " << before << ")";
  events_.Add(EventLevel::kInfo, absl::StrCat("the scheduler is ", settings_.policy(), ", was ",
                                              before, "; set by ", who));
  // The same policy anew would forget what tenants owe.
  if (settings_.policy() == before) return absl::OkStatus();
  for (const auto& [worker, owned] : workers_) SendSettings(worker);
  return absl::OkStatus();
}

void Daemon::SetTenant(const TenantChange& change, const std::string& who,
                       std::function<void(const absl::Status&)> done) {
  if (!change.pool) return done(SetTenantHere(change, who));
  if (pool_ == nullptr) {
    return done(absl::FailedPreconditionError(
        "this consortd is in no pool (--pool-node); without --pool the change is of this host"));
  }
  pool_->ChangeTenant(change, who, std::move(done));
}

absl::Status Daemon::SetTenantHere(const TenantChange& change, const std::string& who) {
  const Tenant before = settings_.Find(change.tenant);
  RETURN_IF_ERROR(settings_.SetTenant(change, who, static_cast<uint64_t>(time(nullptr))));
  const Tenant now = settings_.Find(change.tenant);
  TellTerms(before, now, who);
  SendTerms(before, now);
  return absl::OkStatus();
}

void Daemon::TakePoolTenants(const gpool::TenantValues& values) {
  const std::map<std::string, Tenant> before = settings_.Tenants();
  const absl::Status read = settings_.ReplacePool(values);
  if (!read.ok()) {
    LOG(ERROR) << read.message();
    events_.Add(EventLevel::kError, PrintableName(std::string(read.message())));
  }
  std::map<std::string, Tenant> now = settings_.Tenants();
  for (const auto& [name, tenant] : before) now.try_emplace(name, settings_.Find(name));
  for (const auto& [name, tenant] : now) {
    const auto was = before.find(name);
    const std::string setter = settings_.PoolSetter(name);
    TellTerms(was == before.end() ? settings_.tenants().Find(name) : was->second, tenant,
              setter.empty() ? "the pool" : absl::StrCat(setter, " in the pool"));
  }
  SendTerms(before);
}

void Daemon::TellTerms(const Tenant& before, const Tenant& now, const std::string& who) {
  const auto tell = [&](const char* what, const auto& is, const auto& was) {
    if (is == was) return;
    const std::string name = PrintableName(now.name);
    LOG(INFO) << who << " set the " << what << " of " << name << " to " << is << " (was " << was
              << ")";
    events_.Add(EventLevel::kInfo, absl::StrCat("the ", what, " of ", name, " is ", is, ", was ",
                                                was, "; set by ", who));
  };
  tell("weight", now.weight, before.weight);
  tell("list of GPUs", now.gpus.Text(), before.gpus.Text());
  const auto placement = [](const Tenant& tenant) {
    return tenant.placement.empty() ? std::string("the pool's") : tenant.placement;
  };
  tell("placement", placement(now), placement(before));
  tell("limit of launches a second", RateText(now.rates.launches_per_second),
       RateText(before.rates.launches_per_second));
  tell("limit of bytes copied a second", RateText(now.rates.copy_bytes_per_second),
       RateText(before.rates.copy_bytes_per_second));
}

void Daemon::Denied(const std::string& who, const std::string& what) {
  LOG(WARNING) << who << " was denied a change of " << PrintableName(what);
  events_.Add(EventLevel::kWarning,
              absl::StrCat(who, " was denied a change of ", PrintableName(what)));
}

void Daemon::SendSettings(WorkerProcess* worker) {
  SetScheduler policy;
  SetText(policy.name, settings_.policy());
  const absl::Status sent = worker->control().Send(policy);
  LOG_IF(ERROR, !sent.ok()) << "worker " << worker->pid() << " was not told its policy: " << sent;
}

void Daemon::SendTerms(std::map<std::string, Tenant> before) {
  for (const auto& [name, now] : settings_.Tenants()) {
    before.try_emplace(name, TenantsFile().Find(name));
  }
  for (const auto& [name, was] : before) SendTerms(was, settings_.Find(name));
}

void Daemon::SendTerms(const Tenant& before, const Tenant& now) {
  host::SetWeight weight;
  SetText(weight.tenant, now.name);
  weight.weight = now.weight;
  SetRates rates;
  SetText(rates.tenant, now.name);
  rates.rates = now.rates;
  for (auto& [id, session] : sessions_) {
    if (session.identity.tenant == now.name) session.weight = now.weight;
  }
  for (const auto& [worker, running] : workers_) {
    absl::Status sent = absl::OkStatus();
    if (before.weight != now.weight) sent.Update(worker->control().Send(weight));
    if (before.rates != now.rates) sent.Update(worker->control().Send(rates));
    LOG_IF(ERROR, !sent.ok()) << "worker " << worker->pid()
                              << " was not told a tenant's terms: " << sent;
  }
}

}  // namespace consort::host
