// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/admin_doors.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "host/daemon/metrics_text.h"
#include "host/daemon/page.h"
#include "host/daemon/status_json.h"

namespace consort::host {
namespace {

using Json = nlohmann::json;

constexpr mode_t kAdminSocketMode = 0660;
constexpr unsigned kBadRequest = 400;
constexpr unsigned kForbidden = 403;
constexpr unsigned kNotFound = 404;
constexpr unsigned kUnavailable = 503;
constexpr char kPlainText[] = "text/plain; charset=utf-8";

HttpResponse Done(const absl::Status& status) {
  if (status.ok()) return {200, kPlainText, "done\n"};
  return {absl::IsInvalidArgument(status) ? kBadRequest : kUnavailable, kPlainText,
          absl::StrCat(status.message(), "\n")};
}

// A number that is none of a device's where it is too large.
uint32_t DeviceOf(const Json& body) {
  return static_cast<uint32_t>(std::min<uint64_t>(body["device"].get<uint64_t>(), UINT32_MAX));
}

// Nothing: the answer comes by `later`.
std::optional<HttpResponse> Put(const HttpRequest& request, const HttpServer::Later& later,
                                AdminActions* actions) {
  const Json body = Json::parse(request.body, nullptr, /*allow_exceptions=*/false);
  const auto bad = [&](const char* wanted) {
    return Done(absl::InvalidArgumentError(absl::StrCat("wanted is JSON such as ", wanted)));
  };
  const std::string who = request.user.has_value()  ? request.user->name
                          : request.uid.has_value() ? absl::StrCat("uid ", *request.uid)
                                                    : std::string("unknown");
  if (request.user.has_value() && !request.user->may_change) {
    actions->Denied(who, request.path);
    return HttpResponse{kForbidden, kPlainText,
                        absl::StrCat(who,
                                     " may look and change nothing; an admin's certificate may "
                                     "(consortctl pool operator NAME --role admin)\n")};
  }
  const auto has = [&](const char* key) { return body.is_object() && body.contains(key); };
  if (request.path == "/api/v1/scheduler") {
    if (!has("policy") || !(body["policy"].is_string() || body["policy"].is_null())) {
      return bad(R"({"policy": "tfs"})");
    }
    std::optional<std::string> policy;
    if (body["policy"].is_string()) policy = body["policy"].get<std::string>();
    return Done(actions->SetPolicy(policy, who));
  }
  if (request.path == "/api/v1/tenants") {
    const absl::StatusOr<TenantChange> change = ParseTenantChange(request.body);
    if (!change.ok()) return Done(change.status());
    actions->SetTenant(*change, who, [later](const absl::Status& status) { later(Done(status)); });
    return std::nullopt;
  }
  if (request.path == "/api/v1/trace") {
    const absl::StatusOr<TraceRequest> wanted = ParseTraceRequest(request.body);
    if (!wanted.ok()) return Done(wanted.status());
    actions->Trace(*wanted, who, [later](const absl::Status& status) { later(Done(status)); });
    return std::nullopt;
  }
  if (request.path == "/api/v1/upgrade") return Done(actions->Upgrade(who));
  const auto number = [&](const char* key) {
    return has(key) && body[key].is_number_unsigned() && body[key].get<uint64_t>() <= INT64_MAX;
  };
  if (request.path == "/api/v1/moves") {
    if (!number("session") || !number("device")) return bad(R"({"session": 12, "device": 1})");
    return Done(actions->MoveSession(body["session"].get<uint64_t>(), DeviceOf(body), who));
  }
  const auto folder = [&] { return has("folder") && body["folder"].is_string(); };
  if (request.path == "/api/v1/checkpoints") {
    if (!number("session") || !folder()) {
      return bad(R"({"session": 12, "folder": "/var/lib/consort/train"})");
    }
    CheckpointRequest wanted;
    wanted.session = body["session"].get<uint64_t>();
    wanted.folder = body["folder"].get<std::string>();
    wanted.leaves = has("leaves") && body["leaves"] == true;
    return Done(actions->CheckpointSession(wanted, who));
  }
  if (request.path == "/api/v1/restores") {
    if (!number("session") || (has("folder") && !folder()) ||
        (has("device") && !number("device"))) {
      return bad(R"({"session": 12, "folder": "/var/lib/consort/train", "device": 1})");
    }
    RestoreRequest wanted;
    wanted.session = body["session"].get<uint64_t>();
    if (folder()) wanted.folder = body["folder"].get<std::string>();
    if (has("device")) wanted.device = DeviceOf(body);
    return Done(actions->RestoreSession(wanted, who));
  }
  if (request.path == "/api/v1/awaited") {
    if (!folder() || (has("device") && !number("device"))) {
      return bad(R"({"folder": "/var/lib/consort/train", "device": 1})");
    }
    AwaitRequest wanted;
    wanted.folder = body["folder"].get<std::string>();
    if (has("device")) wanted.device = DeviceOf(body);
    actions->AwaitProgram(wanted, who,
                          [later](const absl::Status& status) { later(Done(status)); });
    return std::nullopt;
  }
  if (request.path == "/api/v1/devices") {
    if (!number("device") || !has("drained") || !body["drained"].is_boolean()) {
      return bad(R"({"device": 0, "drained": true})");
    }
    return Done(actions->SetDrained(DeviceOf(body), body["drained"].get<bool>(), who));
  }
  return HttpResponse{
      kNotFound, kPlainText,
      "PUT goes to /api/v1/scheduler, tenants, trace, moves, checkpoints, restores, awaited, "
      "devices and upgrade\n"};
}

HttpResponse Answer(const HttpRequest& request, bool admin, AdminActions* actions) {
  const std::string& path = request.path;
  if (path == "/metrics") return {200, kMetricsContentType, MetricsText(actions->Status())};
  if (path == "/healthz") return {200, kPlainText, "ok\n"};
  if (admin && path == "/api/v1/status") {
    return {200, "application/json", StatusJson(actions->Status())};
  }
  if (admin && path == "/api/v1/moves") return {200, "application/json", actions->Moves()};
  if (admin && path == "/api/v1/trace") return {200, "application/json", actions->Traces()};
  if (admin && path == "/api/v1/upgrade") return {200, "application/json", actions->Upgrades()};
  if (const auto page = ParsePagePath(path); page.has_value()) {
    return {200, "application/json", actions->Page(*page)};
  }
  if (auto file = PageFile(path); file.has_value()) return *std::move(file);
  return {kNotFound, kPlainText,
          admin
              ? "there are /, /metrics, /healthz, /api/v1/page, /api/v1/status and /api/v1/trace\n"
              : "there are /, /metrics, /healthz and /api/v1/page\n"};
}

// For the HTTP server, which closes what it listens on.
absl::StatusOr<UniqueFd> CopyOf(int fd) {
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return absl::ResourceExhaustedError(strerror(errno));
  return copy;
}

absl::StatusOr<std::unique_ptr<Listener>> ListenAdmin(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat(folder.string(), ": ", error.message(),
                     "; choose a folder that this user may make, with --socket or --admin-socket"));
  }
  return Listener::ListenUnix({path, kAdminSocketMode});
}

}  // namespace

void AdminDoors::Adopt(UniqueFd connection, const gpool::Identity& peer) {
  const std::string name = absl::StrCat(gpool::RoleName(peer.role), " ", PrintableName(peer.name));
  if (admin_ == nullptr) {
    LOG(WARNING) << name << " refused: this consortd has no administration (--admin-socket)";
    return;
  }
  const absl::Status adopted =
      admin_->Adopt(std::move(connection), {name, peer.role == gpool::Role::kAdmin});
  LOG_IF(WARNING, !adopted.ok()) << name << " refused: " << adopted.message();
}

absl::StatusOr<std::unique_ptr<AdminDoors>> AdminDoors::Open(EventLoop* loop,
                                                             const AdminOptions& options,
                                                             AdminActions* actions,
                                                             AdminSockets sockets) {
  std::unique_ptr<AdminDoors> doors(new AdminDoors());
  if (!options.socket_path.empty()) {
    doors->admin_listener_ = std::move(sockets.admin);
    if (doors->admin_listener_ == nullptr) {
      ASSIGN_OR_RETURN(doors->admin_listener_, ListenAdmin(options.socket_path));
    }
    ASSIGN_OR_RETURN(UniqueFd copy, CopyOf(doors->admin_listener_->fd()));
    ASSIGN_OR_RETURN(
        doors->admin_,
        HttpServer::Start(loop, std::move(copy), HttpServer::Access::kReadAndWrite,
                          [actions](const HttpRequest& request, const HttpServer::Later& later) {
                            if (request.put) return Put(request, later, actions);
                            return std::optional(Answer(request, /*admin=*/true, actions));
                          }));
    LOG(INFO) << "administration on " << options.socket_path;
  }
  if (!options.metrics_address.empty()) {
    auto listening = sockets.metrics.valid() ? absl::StatusOr<UniqueFd>(std::move(sockets.metrics))
                                             : ListenTcp(options.metrics_address);
    if (absl::IsAlreadyExists(listening.status()) && options.metrics_by_default) {
      LOG(WARNING) << "no metrics: " << listening.status().message()
                   << "; --metrics chooses another address, or off";
      return doors;
    }
    if (!listening.ok()) {
      return absl::Status(listening.status().code(),
                          absl::StrCat("--metrics ", listening.status().message(),
                                       "; choose another address, or off"));
    }
    doors->metrics_listening_ = *std::move(listening);
    const std::string bound = AddressText(doors->metrics_listening_.get());
    ASSIGN_OR_RETURN(UniqueFd copy, CopyOf(doors->metrics_listening_.get()));
    ASSIGN_OR_RETURN(
        doors->metrics_,
        HttpServer::Start(loop, std::move(copy), HttpServer::Access::kRead,
                          [actions](const HttpRequest& request, const HttpServer::Later&) {
                            return Answer(request, /*admin=*/false, actions);
                          }));
    LOG(INFO) << "metrics on http://" << bound << "/metrics";
    LOG(INFO) << "page on http://" << bound << "/";
  }
  return doors;
}

}  // namespace consort::host
