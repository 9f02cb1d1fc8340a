// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/admin_client.h"

#include <curl/curl.h>
#include <errno.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace consort::host {
namespace {

constexpr long kTimeoutSeconds = 10;
constexpr long kHttpOk = 200;
// Of an answer: a thousand sessions take a third of a MiB.
constexpr size_t kAnswerBytesMax = 64 << 20;

size_t Append(char* bytes, size_t size, size_t count, void* to) {
  auto* body = static_cast<std::string*>(to);
  if (body->size() + size * count > kAnswerBytesMax) return 0;
  body->append(bytes, size * count);
  return size * count;
}

}  // namespace

absl::StatusOr<std::string> AdminGet(const std::string& socket_path, const std::string& path) {
  if (access(socket_path.c_str(), R_OK | W_OK) != 0) {
    if (errno == EACCES) {
      return absl::PermissionDeniedError(absl::StrCat(
          "you may not use ", socket_path, ": be root, or a member of the group of that file"));
    }
    return absl::UnavailableError(absl::StrCat(
        "there is no ", socket_path,
        ": is consortd running (systemctl status consortd)? --admin-socket names another"));
  }
  const std::unique_ptr<CURL, void (*)(CURL*)> curl(curl_easy_init(), &curl_easy_cleanup);
  if (curl == nullptr) return absl::InternalError("libcurl does not start");
  std::string body;
  const std::string url = absl::StrCat("http://consort", path);
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_UNIX_SOCKET_PATH, socket_path.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROXY, "");
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT, kTimeoutSeconds);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, &Append);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &body);
  const CURLcode result = curl_easy_perform(curl.get());
  if (result != CURLE_OK) {
    return absl::UnavailableError(absl::StrCat("consortd does not answer on ", socket_path, " (",
                                               curl_easy_strerror(result),
                                               "): see journalctl -u consortd"));
  }
  long code = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &code);
  if (code != kHttpOk) {
    return absl::InternalError(
        absl::StrCat(socket_path, " answered ", code, " to GET ", path, ": ", body));
  }
  return body;
}

absl::StatusOr<nlohmann::ordered_json> AdminStatus(const std::string& socket_path) {
  ASSIGN_OR_RETURN(const std::string body, AdminGet(socket_path, "/api/v1/status"));
  nlohmann::ordered_json status =
      nlohmann::ordered_json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (status.is_discarded() || !status.is_object()) {
    return absl::InternalError(absl::StrCat(socket_path, " is not consortd's: no JSON"));
  }
  return status;
}

}  // namespace consort::host
