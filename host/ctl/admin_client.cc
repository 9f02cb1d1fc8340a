// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/admin_client.h"

#include <curl/curl.h>
#include <errno.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace consort::host {
namespace {

constexpr long kTimeoutSeconds = 10;
constexpr long kHttpOk = 200;
constexpr long kHttpBadRequest = 400;
constexpr long kHttpForbidden = 403;
// Of an answer: a thousand sessions take a third of a MiB.
constexpr size_t kAnswerBytesMax = 64 << 20;

size_t Append(char* bytes, size_t size, size_t count, void* to) {
  auto* body = static_cast<std::string*>(to);
  if (body->size() + size * count > kAnswerBytesMax) return 0;
  body->append(bytes, size * count);
  return size * count;
}

struct Answer {
  long code = 0;
  std::string body;
};

// GET, or PUT of `put` where it is not null.
absl::StatusOr<Answer> Ask(const std::string& socket_path, const std::string& path,
                           const std::string* put) {
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
  Answer answer;
  const std::string url = absl::StrCat("http://consort", path);
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_UNIX_SOCKET_PATH, socket_path.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROXY, "");
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT, kTimeoutSeconds);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, &Append);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &answer.body);
  if (put != nullptr) {
    curl_easy_setopt(curl.get(), CURLOPT_CUSTOMREQUEST, "PUT");
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE, static_cast<long>(put->size()));
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, put->c_str());
  }
  const CURLcode result = curl_easy_perform(curl.get());
  if (result != CURLE_OK) {
    return absl::UnavailableError(absl::StrCat("consortd does not answer on ", socket_path, " (",
                                               curl_easy_strerror(result),
                                               "): see journalctl -u consortd"));
  }
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &answer.code);
  return answer;
}

}  // namespace

absl::StatusOr<std::string> AdminGet(const std::string& socket_path, const std::string& path) {
  ASSIGN_OR_RETURN(const Answer answer, Ask(socket_path, path, nullptr));
  if (answer.code != kHttpOk) {
    return absl::InternalError(
        absl::StrCat(socket_path, " answered ", answer.code, " to GET ", path, ": ", answer.body));
  }
  return answer.body;
}

absl::Status AdminPut(const std::string& socket_path, const std::string& path,
                      const nlohmann::ordered_json& body) {
  // What is no UTF-8 is for consortd to refuse.
  const std::string text =
      body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  ASSIGN_OR_RETURN(const Answer answer, Ask(socket_path, path, &text));
  const std::string said(absl::StripTrailingAsciiWhitespace(answer.body));
  if (answer.code == kHttpOk) return absl::OkStatus();
  if (answer.code == kHttpBadRequest) return absl::InvalidArgumentError(said);
  if (answer.code == kHttpForbidden) return absl::PermissionDeniedError(said);
  return absl::InternalError(said);
}

absl::StatusOr<nlohmann::ordered_json> AdminGetJson(const std::string& socket_path,
                                                    const std::string& path) {
  ASSIGN_OR_RETURN(const std::string body, AdminGet(socket_path, path));
  nlohmann::ordered_json answer =
      nlohmann::ordered_json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (answer.is_discarded() || !answer.is_object()) {
    return absl::InternalError(absl::StrCat(socket_path, " is not consortd's: no JSON"));
  }
  return answer;
}

absl::StatusOr<nlohmann::ordered_json> AdminStatus(const std::string& socket_path) {
  return AdminGetJson(socket_path, "/api/v1/status");
}

}  // namespace consort::host
