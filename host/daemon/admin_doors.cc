// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/admin_doors.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "host/daemon/metrics_text.h"
#include "host/daemon/status_json.h"

namespace consort::host {
namespace {

constexpr mode_t kAdminSocketMode = 0660;
constexpr unsigned kNotFound = 404;

HttpResponse Answer(const std::string& path, bool admin,
                    const std::function<DaemonStatus()>& status) {
  if (path == "/metrics") return {200, kMetricsContentType, MetricsText(status())};
  if (path == "/healthz") return {200, "text/plain; charset=utf-8", "ok\n"};
  if (admin && path == "/api/v1/status") return {200, "application/json", StatusJson(status())};
  return {kNotFound, "text/plain; charset=utf-8",
          admin ? "there are /metrics, /healthz and /api/v1/status\n"
                : "there are /metrics and /healthz\n"};
}

absl::StatusOr<std::unique_ptr<Listener>> ListenAdmin(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(folder.string(), ": ", error.message()));
  }
  return Listener::ListenUnix({path, kAdminSocketMode});
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdminDoors>> AdminDoors::Open(EventLoop* loop,
                                                             const AdminOptions& options,
                                                             std::function<DaemonStatus()> status) {
  std::unique_ptr<AdminDoors> doors(new AdminDoors());
  if (!options.socket_path.empty()) {
    ASSIGN_OR_RETURN(doors->admin_listener_, ListenAdmin(options.socket_path));
    UniqueFd copy(fcntl(doors->admin_listener_->fd(), F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) return absl::ResourceExhaustedError(strerror(errno));
    ASSIGN_OR_RETURN(doors->admin_,
                     HttpServer::Start(loop, std::move(copy), [status](const std::string& path) {
                       return Answer(path, true, status);
                     }));
    LOG(INFO) << "administration on " << options.socket_path;
  }
  if (!options.metrics_address.empty()) {
    std::string bound;
    auto listening = ListenTcp(options.metrics_address, &bound);
    if (absl::IsAlreadyExists(listening.status()) && options.metrics_by_default) {
      LOG(WARNING) << "no metrics: " << listening.status().message()
                   << "; --metrics chooses another address, or off";
      return doors;
    }
    if (!listening.ok()) {
      return absl::Status(listening.status().code(),
                          absl::StrCat("--metrics ", listening.status().message()));
    }
    ASSIGN_OR_RETURN(doors->metrics_, HttpServer::Start(loop, *std::move(listening),
                                                        [status](const std::string& path) {
                                                          return Answer(path, false, status);
                                                        }));
    LOG(INFO) << "metrics on http://" << bound << "/metrics";
  }
  return doors;
}

}  // namespace consort::host
