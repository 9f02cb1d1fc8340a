// SPDX-License-Identifier: Apache-2.0
// host/worker_main.cc: consort-worker, started by consortd, one for each device.
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/numbers.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "device/driver/driver_loader.h"
#include "host/control/control_socket.h"
#include "host/scheduler/scheduler.h"
#include "host/session/worker_device.h"
#include "host/worker/worker.h"
#include "policies/schedule/policy.h"

namespace consort::host {
namespace {

struct WorkerMainOptions {
  int control = -1;
  uint32_t index = 0;
  device::DriverKind kind = device::DriverKind::kAuto;
  std::string scheduler = "tfs";
  int verbosity = 0;
};

// False: not started by a consortd of the same build.
bool ParseOptions(int argc, char** argv, WorkerMainOptions* options) {
  const option long_options[] = {
      {"control", required_argument, nullptr, 'c'}, {"device", required_argument, nullptr, 'd'},
      {"index", required_argument, nullptr, 'i'},   {"scheduler", required_argument, nullptr, 's'},
      {"verbose", required_argument, nullptr, 'v'}, {nullptr, 0, nullptr, 0}};
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
        if (optarg != kNoScheduler && schedule::PolicyPromise(optarg).empty()) return false;
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

int Run(const WorkerMainOptions& options) {
  ControlSocket control{UniqueFd(options.control)};
  const auto driver = device::LoadDriver(options.kind, CpuDriverFolder());
  if (!driver.ok()) return Fail(&control, driver.status());
  auto device = WorkerDevice::Open(*driver, options.index);
  if (!device.ok()) return Fail(&control, device.status());
  Scheduler scheduler(options.scheduler == kNoScheduler
                          ? nullptr
                          : schedule::MakePolicy(options.scheduler, schedule::Options()));
  auto worker = Worker::Create(&control, device->get(), &scheduler);
  if (!worker.ok()) return Fail(&control, worker.status());

  Ready ready;
  ready.snapshot = (*device)->snapshot();
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
