// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/binder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace consort::host {

absl::StatusOr<std::unique_ptr<Binder>> Binder::Make(gpool::MapperOptions options) {
  std::unique_ptr<Binder> binder(new Binder());
  ASSIGN_OR_RETURN(binder->mapper_, gpool::MakeMapper(&options));
  return binder;
}

placement::ModelId Binder::ModelOf(const std::string& model) {
  // Beyond the bound the last one stands for all the others.
  const auto next =
      static_cast<placement::ModelId>(std::min<size_t>(models_.size(), placement::kModelsMax - 1));
  return models_.emplace(model, next).first->second;
}

placement::Application Binder::Describe(const Application& application) {
  placement::Application described;
  described.id = application.session;
  described.program = gpool::ProgramOf(application.program);
  described.device = application.device;
  return described;
}

void Binder::Know(std::span<const Device> devices, std::span<const Application> bound, Nanos now) {
  for (uint32_t index = 0; index < devices.size(); ++index) {
    const Device& device = devices[index];
    if (mapper_->pool().Find(index) == nullptr) {
      placement::Gpu gpu;
      gpu.gid = gpu.local_device = index;
      gpu.model = ModelOf(device.model);
      gpu.memory_total = device.memory_total;
      if (!mapper_->AddGpu(gpu)) LOG(ERROR) << "placement takes no device " << index;
    }
    mapper_->SetLoad(index, {.memory_used = device.memory_used, .utilisation = device.utilisation});
  }
  std::map<uint64_t, uint32_t> known = std::exchange(bound_, {});
  for (const Application& application : bound) {
    const auto it = known.find(application.session);
    const bool same = it != known.end() && it->second == application.device;
    if (it != known.end()) known.erase(it);
    if (same || mapper_->Bind(Describe(application), application.device, now)) {
      bound_.emplace(application.session, application.device);
    }
  }
  for (const auto& [session, device] : known) mapper_->Unbind(session);
}

Binder::Choice Binder::Choose(std::span<const Device> devices, std::span<const Application> bound,
                              const Wanted& wanted, Nanos now) {
  Know(devices, bound, now);
  const uint32_t here = wanted.application.device;
  placement::Application application = Describe(wanted.application);
  application.memory = wanted.memory;
  application.policy = mapper_->Know(wanted.policy);
  application.only = {here};
  const placement::Decision stay = mapper_->Place(application, now);
  application.only.insert(application.only.end(), wanted.others.begin(), wanted.others.end());
  std::sort(application.only.begin(), application.only.end());
  const placement::Decision best = mapper_->Place(application, now);
  constexpr auto kPlaced = placement::Decision::Outcome::kPlaced;
  // One that fits nowhere takes turns where it is, as others do that share a device.
  const bool stays =
      best.outcome != kPlaced || (stay.outcome == kPlaced && stay.score <= best.score);
  if (stays) return {here, placement::Explain(stay, application)};
  return {best.gid, placement::Explain(best, application)};
}

void Binder::Record(const std::string& program, const std::string& model, const Measured& measured,
                    Nanos now) {
  placement::Feedback feedback;
  feedback.program = gpool::ProgramOf(program);
  feedback.model = ModelOf(model);
  feedback.runtime = measured.runtime;
  feedback.gpu_time = std::min(measured.kernels, measured.runtime);
  feedback.transferred = measured.copied;
  const bool taken = mapper_->Record(feedback, now);
  VLOG_IF(1, !taken) << "a measurement of " << program << " makes no sense";
}

}  // namespace consort::host
