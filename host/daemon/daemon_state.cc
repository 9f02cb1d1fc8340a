// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/daemon_state.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "host/control/field_coder.h"
#include "host/control/fingerprint.h"
#include "host/daemon/event_log.h"
#include "host/daemon/vsock_device_fields.h"
#include "host/daemon/worker_process.h"
#include "host/limits.h"
#include "vmsock/wire/handshake.h"

namespace consort::host {
namespace {

constexpr uint64_t kMagic = 0x000064'7472736e'63;  // "cnsrtd"

struct Head {
  uint64_t magic = kMagic;
  uint64_t version = kDaemonStateVersion;
  uint64_t control = ControlFingerprint();
};

template <class Coder, class Items>
void DescribeListening(Coder& coder, Items& items) {
  coder.Each(items, [&](auto& listening) {
    coder.Bytes(listening.path);
    coder.Bytes(listening.tenant);
    coder.Number(listening.socket);
    coder.Number(listening.lock);
  });
}

template <class Coder, class Items>
void DescribeCounts(Coder& coder, Items& items) {
  coder.Each(items, [&](auto& one) {
    coder.Bytes(one.name);
    coder.Number(one.count);
  });
}

template <class Coder, class State>
void Describe(Coder& coder, State& state) {
  coder.Bytes(state.build);
  coder.Number(state.description_hash);
  coder.Number(state.started_unix_seconds);
  coder.Number(state.upgrade.number);
  coder.Bytes(state.upgrade.by);
  DescribeListening(coder, state.doors);
  coder.Number(state.vsock);
  DescribeListening(coder, state.admin);
  DescribeListening(coder, state.metrics);
  coder.Each(state.vms, [&](auto& vm) {
    coder.Bytes(vm.name);
    coder.Bytes(vm.socket_path);
    coder.Bytes(vm.tenant);
    coder.Each(vm.vgpus, [&](auto& vgpus) { coder.Number(vgpus); });
    DescribeVsockDevice(coder, vm.device);
    coder.Each(vm.memory, [&](auto& memory) {
      coder.Bytes(memory.path);
      coder.Number(memory.bytes);
      coder.Number(memory.file);
    });
  });
  coder.Each(state.greetings, [&](auto& greeting) {
    coder.Number(greeting.socket);
    coder.Bytes(greeting.tenant);
    coder.Bytes(greeting.vm);
    coder.Number(greeting.devices_max);
    coder.Bytes(greeting.front_door);
    coder.Bytes(greeting.peer);
    coder.Number(greeting.shares_memory);
    coder.Bytes(greeting.input);
    coder.Bytes(greeting.output);
  });
  coder.Each(state.devices, [&](auto& device) {
    coder.Struct(device.info);
    coder.Struct(device.speed);
    coder.Struct(device.memory);
    coder.Number(device.worker_starts);
    coder.Number(device.workers_retired);
    coder.Number(device.drained);
  });
  coder.Each(state.workers, [&](auto& worker) {
    coder.Number(worker.pid);
    coder.Number(worker.device);
    coder.Bytes(worker.tenant);
    coder.Number(worker.state);
    coder.Number(worker.takes_sessions);
    coder.Bytes(worker.binary);
    coder.Number(worker.control);
  });
  coder.Each(state.children, [&](auto& child) {
    coder.Number(child.pid);
    coder.Number(child.device);
  });
  coder.Each(state.sessions, [&](auto& session) {
    coder.Struct(session.open);
    coder.Bytes(session.tenant);
    coder.Bytes(session.vm);
    coder.Bytes(session.front_door);
    coder.Bytes(session.application);
    coder.Number(session.pid);
    coder.Bytes(session.device_name);
    coder.Number(session.device);
    coder.Number(session.assembly);
    coder.Number(session.vgpu);
    coder.Bytes(session.why);
    coder.Number(session.worker);
    coder.Number(session.weight);
    coder.Number(session.started_unix_seconds);
    coder.Number(session.started);
    coder.Number(session.stage);
    coder.Number(session.bound);
    coder.Struct(session.told);
    coder.Struct(session.usage);
    coder.Each(session.parts, [&](auto& part) {
      coder.Number(part.offset);
      coder.Number(part.bytes);
    });
  });
  coder.Number(state.next_session);
  coder.Each(state.totals, [&](auto& totals) {
    coder.Bytes(totals.tenant);
    coder.Bytes(totals.application);
    coder.Number(totals.device);
    coder.Number(totals.sessions_begun);
    coder.Number(totals.sessions_open);
    coder.Struct(totals.used);
  });
  coder.Each(state.events, [&](auto& event) {
    coder.Number(event.number);
    coder.Number(event.unix_seconds);
    coder.Number(event.level);
    coder.Bytes(event.text);
    coder.Number(event.times);
  });
  coder.Number(state.last_event);
  coder.Number(state.trace.recording);
  coder.Bytes(state.trace.folder);
  coder.Number(state.trace.bytes_max);
  coder.Bytes(state.trace.by);
  coder.Number(state.trace.since);
  coder.Each(state.trace.files, [&](auto& file) {
    coder.Number(file.device);
    coder.Number(file.worker);
    coder.Bytes(file.path);
    coder.Bytes(file.ended);
  });
  DescribeCounts(coder, state.refused);
  DescribeCounts(coder, state.unsupported_calls);
  DescribeCounts(coder, state.errors);
  coder.Bytes(state.settings);
  coder.Bytes(state.policy);
  coder.Each(state.terms, [&](auto& terms) {
    coder.Bytes(terms.tenant);
    coder.Number(terms.weight);
    coder.Struct(terms.rates);
  });
}

// What contradicts itself, or goes beyond a bound; empty: nothing.
std::string WhatIsWrong(const DaemonState& state) {
  if (state.devices.size() > kDevicesMax) return "too many devices";
  const auto is_device = [&](uint32_t index) { return index < state.devices.size(); };
  std::set<int32_t> workers;
  for (const DaemonState::Worker& worker : state.workers) {
    if (worker.pid <= 0 || !workers.insert(worker.pid).second) return "a worker's pid";
    if (!is_device(worker.device)) return "a worker's device";
    if (worker.control == DaemonState::kNone) return "a worker without its control socket";
    if (worker.state > static_cast<uint32_t>(WorkerProcess::State::kDraining)) {
      return "a worker's state";
    }
  }
  for (const DaemonState::Child& child : state.children) {
    if (child.pid <= 0 || !is_device(child.device)) return "a child";
  }
  std::set<uint64_t> numbers;
  for (const DaemonState::Session& session : state.sessions) {
    if (session.open.session >= state.next_session || !numbers.insert(session.open.session).second)
      return "a session's number";
    if (!is_device(session.device)) return "a session's device";
    if (!workers.contains(session.worker)) return "a session's worker";
  }
  std::set<std::string> vms;
  for (const DaemonState::Vm& vm : state.vms) {
    if (!vms.insert(vm.name).second || vm.vgpus.size() > 1) return "a VM";
    if (vm.device.listener == DaemonState::kNone) return "a VM without its socket";
    if (vm.memory.size() > 1) return "a VM's memory";
    for (const DaemonState::VmMemory& memory : vm.memory) {
      if (memory.file == DaemonState::kNone || memory.path.empty()) return "a VM's memory";
    }
  }
  if (state.vms.size() > kVmsMax) return "too many VMs";
  for (const DaemonState::Greeting& greeting : state.greetings) {
    if (greeting.socket == DaemonState::kNone) return "a greeting without its socket";
    if (greeting.input.size() >= sizeof(wire::Hello)) return "a Hello that is too long";
  }
  if (state.events.size() > kEventsMax) return "too many events";
  for (const DaemonState::Event& event : state.events) {
    if (event.level > static_cast<uint32_t>(EventLevel::kError)) return "an event's level";
  }
  if (state.admin.size() > 1 || state.metrics.size() > 1) return "too many administrations";
  std::set<int> descriptors;
  for (const int descriptor : DescriptorsOf(state)) {
    // 0 to 2 are the standard ones.
    if (descriptor <= 2 || !descriptors.insert(descriptor).second) return "a descriptor";
  }
  return "";
}

}  // namespace

std::vector<std::byte> Encode(const DaemonState& state) {
  std::vector<std::byte> bytes;
  FieldWriter writer(&bytes);
  const Head head;
  writer.Number(head.magic);
  writer.Number(head.version);
  writer.Number(head.control);
  Describe(writer, state);
  return bytes;
}

absl::StatusOr<DaemonState> DecodeDaemonState(std::span<const std::byte> bytes) {
  FieldReader reader(bytes);
  Head head;
  reader.Number(head.magic);
  reader.Number(head.version);
  reader.Number(head.control);
  if (head.magic != kMagic) return absl::InvalidArgumentError("this is no state of a consortd");
  constexpr char kAdvice[] = "; it can be started anew when no application runs";
  if (head.version != kDaemonStateVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the running consortd keeps its state in version ", head.version,
                     ", this one reads ", kDaemonStateVersion, kAdvice));
  }
  if (head.control != ControlFingerprint()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the workers that run speak another version of consortd's messages", kAdvice));
  }
  DaemonState state;
  Describe(reader, state);
  if (!reader.Done()) return absl::InvalidArgumentError("a consortd's state that is cut or wrong");
  if (const std::string wrong = WhatIsWrong(state); !wrong.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a consortd's state is wrong: ", wrong));
  }
  return state;
}

std::vector<int> DescriptorsOf(const DaemonState& state) {
  std::vector<int> descriptors;
  const auto add = [&](int descriptor) {
    if (descriptor != DaemonState::kNone) descriptors.push_back(descriptor);
  };
  for (const auto* sockets : {&state.doors, &state.admin, &state.metrics}) {
    for (const DaemonState::Listening& listening : *sockets) {
      add(listening.socket);
      add(listening.lock);
    }
  }
  add(state.vsock);
  for (const DaemonState::Vm& vm : state.vms) {
    for (const int descriptor : vhost_user::DescriptorsOf(vm.device)) add(descriptor);
    for (const DaemonState::VmMemory& memory : vm.memory) add(memory.file);
  }
  for (const DaemonState::Greeting& greeting : state.greetings) add(greeting.socket);
  for (const DaemonState::Worker& worker : state.workers) add(worker.control);
  return descriptors;
}

}  // namespace consort::host
