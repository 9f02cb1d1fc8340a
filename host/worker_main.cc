// SPDX-License-Identifier: Apache-2.0
// host/worker_main.cc: consort-worker, started by consortd, one for each device.
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>

#include "absl/strings/numbers.h"
#include "base/log.h"
#include "base/log_descriptor.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "device/driver/board_links.h"
#include "device/driver/driver_loader.h"
#include "host/control/control_socket.h"
#include "host/limits.h"
#include "host/memory/memory_broker.h"
#include "host/scheduler/scheduler.h"
#include "host/session/shared_output.h"
#include "host/session/worker_device.h"
#include "host/worker/worker.h"
#include "memmgr/swap_store.h"
#include "policies/admission/admission.h"
#include "policies/schedule/policy.h"
#include "vmsock/deadline.h"

namespace consort::host {
namespace {

struct WorkerMainOptions {
  int control = -1;
  uint32_t index = 0;
  device::DriverKind kind = device::DriverKind::kAuto;
  std::string scheduler = "tfs";
  Bytes memory = 0;  // for programs; 0: all of the device
  admission::Order admission = admission::Order::kFifo;
  memmgr::SwapOptions swap;
  std::string keep_memory = "off";
  uint32_t save_after_seconds = 0;  // 0: never
  std::string launch_chains = "off";
  std::string peer_access = "off";
  std::string shared_code = "off";
  int verbosity = 0;
};

// False: not started by a consortd of the same build.
bool ParseOptions(int argc, char** argv, WorkerMainOptions* options) {
  const option long_options[] = {{"control", required_argument, nullptr, 'c'},
                                 {"device", required_argument, nullptr, 'd'},
                                 {"index", required_argument, nullptr, 'i'},
                                 {"scheduler", required_argument, nullptr, 's'},
                                 {"verbose", required_argument, nullptr, 'v'},
                                 {"memory", required_argument, nullptr, 'm'},
                                 {"keep-memory", required_argument, nullptr, 'k'},
                                 {"checkpoint-after", required_argument, nullptr, 'A'},
                                 {"launch-chains", required_argument, nullptr, 'l'},
                                 {"peer-access", required_argument, nullptr, 'r'},
                                 {"shared-code", required_argument, nullptr, 'h'},
                                 {"admission", required_argument, nullptr, 'a'},
                                 {"swap-pinned", required_argument, nullptr, 'p'},
                                 {"swap-pageable", required_argument, nullptr, 'g'},
                                 {"swap-file", required_argument, nullptr, 'f'},
                                 {"swap-folder", required_argument, nullptr, 'F'},
                                 {nullptr, 0, nullptr, 0}};
  int flag;
  while ((flag = getopt_long(argc, argv, "", long_options, nullptr)) != -1) {
    switch (flag) {
      case 'c':
        if (!absl::SimpleAtoi(optarg, &options->control)) return false;
        break;
      case 'i':
        if (!absl::SimpleAtoi(optarg, &options->index)) return false;
        break;
      case 'd': {
        const auto kind = device::ParseDriverKind(optarg);
        if (!kind.ok()) return false;
        options->kind = *kind;
        break;
      }
      case 's':
        options->scheduler = optarg;
        break;
      case 'm':
        if (!absl::SimpleAtoi(optarg, &options->memory)) return false;
        break;
      case 'k':
        options->keep_memory = optarg;
        break;
      case 'A':
        if (!absl::SimpleAtoi(optarg, &options->save_after_seconds)) return false;
        break;
      case 'l':
        options->launch_chains = optarg;
        break;
      case 'r':
        options->peer_access = optarg;
        break;
      case 'h':
        options->shared_code = optarg;
        break;
      case 'a': {
        const auto order = admission::OrderByName(optarg);
        if (!order.has_value()) return false;
        options->admission = *order;
        break;
      }
      case 'p':
        if (!absl::SimpleAtoi(optarg, &options->swap.pinned_bytes)) return false;
        break;
      case 'g':
        if (!absl::SimpleAtoi(optarg, &options->swap.pageable_bytes)) return false;
        break;
      case 'f':
        if (!absl::SimpleAtoi(optarg, &options->swap.file_bytes)) return false;
        break;
      case 'F':
        options->swap.file_folder = optarg;
        break;
      case 'v':
        if (!absl::SimpleAtoi(optarg, &options->verbosity)) return false;
        break;
      default:
        return false;
    }
  }
  return options->control >= 0 && optind == argc;
}

int Fail(ControlSocket* control, const absl::Status& status) {
  StartFailed failed;
  SetText(failed.text, std::string(status.message()));
  const absl::Status sent = control->Send(failed);
  LOG_IF(ERROR, !sent.ok()) << status << "; and telling consortd: " << sent;
  return EXIT_FAILURE;
}

// The CPU driver lies in ../lib, in the build tree and when installed.
std::string CpuDriverFolder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : (self.parent_path().parent_path() / "lib").string();
}

// Whether a flag of on, off or auto asks for what it names; `by_itself`: where auto does.
bool AskedFor(const std::string& said, bool by_itself) {
  return said == "on" || (said == "auto" && by_itself);
}

// What a device lacks, contents in a swap store among it, ends with its worker.
bool KeepsMemory(const WorkerMainOptions& options, const device::LoadedDriver& driver) {
  const bool possible = driver.table.cuMemExportToShareableHandle != nullptr &&
                        driver.table.cuMemImportFromShareableHandle != nullptr &&
                        options.swap.total() == 0;
  LOG_IF(WARNING, !possible && options.keep_memory == "on")
      << "sessions end with this worker: "
      << (options.swap.total() != 0 ? "it swaps" : "its driver cannot export memory");
  // NVIDIA's only on demand.
  return possible && AskedFor(options.keep_memory, driver.cpu);
}

// Every piece of memory that is shared with a guest keeps a descriptor: as many as may be.
void AllowAllDescriptors() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) PLOG(WARNING) << "raising the limit of descriptors";
}

int Run(const WorkerMainOptions& options) {
  AllowAllDescriptors();
  ControlSocket control{UniqueFd(options.control)};
  const auto driver = device::LoadDriver(options.kind, CpuDriverFolder());
  if (!driver.ok()) return Fail(&control, driver.status());
  auto device = WorkerDevice::Open(*driver, options.index);
  if (!device.ok()) return Fail(&control, device.status());
  if (driver->set_stream_output == nullptr) {
    auto shared = SharedOutput::Capture();
    if (!shared.ok()) return Fail(&control, shared.status());
    SendLogTo((*shared)->log_descriptor());
    (*device)->set_shared_output(*std::move(shared));
    // Now, as it is fixed from the first kernel on that prints. A driver that refuses has its own.
    driver->table.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, kDeviceOutputBytesMax);
  }
  std::unique_ptr<schedule::Policy> policy;
  if (!MakeSchedulerPolicy(options.scheduler, &policy)) {
    return Fail(&control, absl::InvalidArgumentError("no scheduler " + options.scheduler));
  }
  Scheduler scheduler(std::move(policy));
  Ready ready;
  ready.snapshot = (*device)->snapshot();
  MemoryRules rules;
  rules.order = options.admission;
  rules.capacity = ready.snapshot.total_bytes;
  rules.limited = options.memory != 0 && options.memory < rules.capacity;
  if (rules.limited) rules.capacity = ready.snapshot.total_bytes = options.memory;
  std::unique_ptr<memmgr::SwapStore> store;
  if (options.swap.total() != 0) {
    auto opened = memmgr::SwapStore::Open((*device)->driver(), options.swap);
    if (!opened.ok()) return Fail(&control, opened.status());
    store = *std::move(opened);
  }
  MemoryBroker broker((*device)->driver(), rules, store.get(),
                      [&device] { return (*device)->MakeCurrent(); });
  auto worker = Worker::Create(&control, device->get(), &scheduler, &broker);
  if (!worker.ok()) return Fail(&control, worker.status());
  if (KeepsMemory(options, *driver)) (*worker)->set_keeps_memory();
  (*worker)->set_save_after(static_cast<Nanos>(options.save_after_seconds) * kSecond);
  // Not seen on NVIDIA's driver yet.
  if (AskedFor(options.shared_code, driver->cpu)) (*device)->ShareLibraries();
  (*device)->vigils()->AllowFor(std::thread::hardware_concurrency());
  // The CPU driver gains nothing.
  if (AskedFor(options.launch_chains, !driver->cpu)) (*worker)->set_launches_graphs();

  // What is swapped is not always there to be reached.
  if (store == nullptr && AskedFor(options.peer_access, true)) {
    ready.reaches = (*device)->reaches();
    ready.reaches_atomically = (*device)->reaches_atomically();
  }
  ready.slot = (*device)->slot();
  if (ready.reaches != 0) {
    ready.links = device::ReadBoardLinks(*driver, (*device)->device(), ready.slot);
  }
  ready.driver_version = driver->version;
  SetText(ready.release, driver->release);
  ready.device_count = driver->device_count;
  SetText(ready.driver, driver->library);
  const absl::Status sent = control.Send(ready);
  if (!sent.ok()) {
    LOG(ERROR) << "telling consortd that the device is ready: " << sent;
    return EXIT_FAILURE;
  }
  if (!(*worker)->Run()) {
    // Threads are inside the driver, which would wait for them for ever.
    LOG(ERROR) << "ending with work on the device";
    _exit(EXIT_FAILURE);
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace consort::host

int main(int argc, char** argv) {
  consort::host::WorkerMainOptions options;
  if (!consort::host::ParseOptions(argc, argv, &options)) {
    fputs("consort-worker is started by consortd\n", stderr);
    return 2;
  }
  consort::StartLogging("consort-worker", options.verbosity);
  return consort::host::Run(options);
}
