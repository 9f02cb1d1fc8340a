// SPDX-License-Identifier: Apache-2.0
// consortd: what it answers to programs that ask which devices they have and how those are used.
#include <cuda.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/daemon/daemon.h"
#include "host/daemon/device_choice.h"
#include "host/daemon/shown_links.h"
#include "host/limits.h"

namespace consort::host {

void Daemon::AnswerQuery(Connection connection, const wire::Hello& hello) {
  const bool status = hello.purpose == wire::kPurposeStatus;
  const std::vector<uint32_t> shown = DevicesFor(connection);
  if (shown.empty() && !devices_.empty() && connection.devices_max != 0) {
    const std::string text = MayNotUseText(
        connection.tenant, settings_.Find(connection.tenant).gpus, "a GPU of this host");
    return Refuse(std::move(connection), wire::kWelcomeNoDevice, text);
  }
  wire::Welcome welcome;
  welcome.device_count = static_cast<uint32_t>(shown.size());
  const bool vm_memory = SeenMemory(connection, hello) != nullptr;
  if (vm_memory) welcome.features |= wire::kFeatureVmMemory;
  // In a pool a number is an assembly of the pool's; who is answered without it goes by what holds
  // when a session begins.
  if (pool_ == nullptr) welcome.assembly = ChoiceOf(shown);
  if (!devices_.empty()) {
    const Ready& driver = *devices_[0]->info;
    welcome.driver_version = driver.driver_version;
    // The CPU driver has no releases of its own.
    SetText(welcome.driver_release,
            driver.release[0] != '\0' ? GetText(driver.release) : CONSORT_VERSION);
  }
  std::vector<wire::DeviceUse> uses;
  std::vector<wire::ProcessUse> processes;
  if (status) {
    uses = UsesOf(connection, shown);
    processes = ProcessesOf(connection, shown);
    welcome.process_count = static_cast<uint32_t>(processes.size());
  }
  std::string bytes;
  const auto append = [&bytes](const auto& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  append(welcome);
  const Bytes quota = settings_.tenants().Find(connection.tenant).memory_hard;
  std::vector<const Ready*> boards;
  for (const uint32_t index : shown) boards.push_back(&*devices_[index]->info);
  for (size_t place = 0; place < shown.size(); ++place) {
    const Ready& ready = *boards[place];
    wire::DeviceSnapshot snapshot = ready.snapshot;
    if (quota != 0) snapshot.total_bytes = quota;
    // Behind a guest's proxy, a program sees a UNIX socket and cannot know.
    if (!connection.shares_memory && !vm_memory) {
      snapshot.attributes[CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 0;
    }
    for (size_t peer = 0; pool_ == nullptr && peer < shown.size(); ++peer) {
      snapshot.peers |= (ready.reaches >> shown[peer] & 1) << peer;
      snapshot.peer_atomics |= (ready.reaches_atomically >> shown[peer] & 1) << peer;
    }
    ShowLinks(boards, place, &snapshot);
    append(snapshot);
  }
  for (const wire::DeviceUse& use : uses) append(use);
  for (const wire::ProcessUse& process : processes) append(process);
  greeter_.Answer(std::move(connection), std::move(bytes));
}

std::vector<wire::DeviceUse> Daemon::UsesOf(const Connection& connection,
                                            const std::vector<uint32_t>& shown) const {
  const Nanos now = MonotonicNow();
  std::vector<wire::DeviceUse> of_device(devices_.size());
  std::vector<uint64_t> used_by_all(devices_.size());
  for (const auto& [id, session] : sessions_) {
    const uint32_t index = session.identity.device_index;
    const uint64_t bytes = usage_.Latest(id).memory_bytes;
    used_by_all[index] += bytes;
    if (session.identity.tenant != connection.tenant) continue;
    of_device[index].used_bytes += bytes;
    of_device[index].busy_percent =
        std::min(100u, of_device[index].busy_percent + session.recent.BusyPercent(now));
  }
  const Bytes quota = settings_.tenants().Find(connection.tenant).memory_hard;
  std::vector<wire::DeviceUse> uses;
  for (const uint32_t index : shown) {
    wire::DeviceUse& use = uses.emplace_back(of_device[index]);
    const Bytes device_bytes = devices_[index]->info->snapshot.total_bytes;
    use.total_bytes = quota != 0 ? quota : device_bytes;
    // With swapping there can be more in use than the device has.
    use.free_bytes = std::min(device_bytes - std::min(device_bytes, used_by_all[index]),
                              use.total_bytes - std::min(use.total_bytes, use.used_bytes));
  }
  return uses;
}

std::vector<wire::ProcessUse> Daemon::ProcessesOf(const Connection& connection,
                                                  const std::vector<uint32_t>& shown) const {
  static_assert(kWindowSlots <= kProcessUsesMax);  // a tenant's sessions have a window each
  const Nanos now = MonotonicNow();
  const std::string& vm = connection.vm.empty() ? connection.tenant : connection.vm;
  std::vector<wire::ProcessUse> processes;
  for (const auto& [id, session] : sessions_) {
    const auto device = std::find(shown.begin(), shown.end(), session.identity.device_index);
    if (session.identity.tenant != connection.tenant || session.identity.vm != vm ||
        device == shown.end() || session.stage == Session::Stage::kHeld) {
      continue;
    }
    wire::ProcessUse& process = processes.emplace_back();
    process.device = static_cast<uint32_t>(device - shown.begin());
    process.pid = session.identity.pid;
    process.memory_bytes = usage_.Latest(id).memory_bytes;
    process.busy_percent = session.recent.BusyPercent(now);
    SetText(process.application, session.identity.application);
  }
  return processes;
}

}  // namespace consort::host
