// SPDX-License-Identifier: Apache-2.0
#include "gpool/etcd_store.h"

#include <curl/curl.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gpool/clock.h"
#include "gpool/limits.h"

namespace consort::gpool {
namespace {

using CurlHandle = std::unique_ptr<CURL, void (*)(CURL*)>;
using CurlHeaders = std::unique_ptr<curl_slist, void (*)(curl_slist*)>;

constexpr long kHttpOk = 200;
constexpr long kHttpServerError = 500;
// gRPC's codes are absl's.
constexpr int kStatusCodeMax = 16;

void StartCurl() {
  static std::once_flag once;
  std::call_once(once, [] { CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK); });
}

size_t Append(char* bytes, size_t size, size_t count, void* to) {
  auto* body = static_cast<std::string*>(to);
  if (body->size() + size * count > kStoreAnswerBytesMax) return 0;
  body->append(bytes, size * count);
  return size * count;
}

// A request that is ready but for its time limits. Borrows all but `options`.
CurlHandle Post(const EtcdOptions& options, const std::string& url, const curl_slist* headers,
                const std::string& body) {
  CurlHandle curl(curl_easy_init(), &curl_easy_cleanup);
  CHECK(curl != nullptr);
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROXY, "");
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, body.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(kStoreConnectTimeout / kMillisecond));
  if (!options.authority_file.empty()) {
    curl_easy_setopt(curl.get(), CURLOPT_CAINFO, options.authority_file.c_str());
  }
  if (!options.certificate_file.empty()) {
    curl_easy_setopt(curl.get(), CURLOPT_SSLCERT, options.certificate_file.c_str());
    curl_easy_setopt(curl.get(), CURLOPT_SSLKEY, options.key_file.c_str());
  }
  return curl;
}

CurlHeaders Headers() {
  curl_slist* list = curl_slist_append(nullptr, "Content-Type: application/json");
  // A member without a leader ends a watch instead of keeping silent.
  list = curl_slist_append(list, "Grpc-Metadata-hasleader: true");
  return CurlHeaders(list, &curl_slist_free_all);
}

// int64 is text in etcd's JSON, and absent when it is 0.
int64_t Number(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end()) return 0;
  if (it->is_number_integer()) return it->get<int64_t>();
  int64_t number = 0;
  if (!it->is_string() || !absl::SimpleAtoi(it->get<std::string>(), &number)) return 0;
  return number;
}

std::string Bytes(const nlohmann::json& object, const char* key) {
  std::string bytes;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_string()) return bytes;
  absl::Base64Unescape(it->get<std::string>(), &bytes);
  return bytes;
}

// The key range that begins with `prefix`, which is not empty and does not end in 0xff.
nlohmann::json Range(const std::string& prefix) {
  std::string end = prefix;
  ++end.back();
  return {{"key", absl::Base64Escape(prefix)}, {"range_end", absl::Base64Escape(end)}};
}

std::pair<std::string, KeyValue> Entry(const nlohmann::json& object) {
  return {Bytes(object, "key"),
          {Bytes(object, "value"), Number(object, "create_revision"),
           Number(object, "mod_revision"), Number(object, "lease")}};
}

nlohmann::json Parse(const std::string& body) {
  nlohmann::json json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : nlohmann::json::object();
}

const nlohmann::json& Member(const nlohmann::json& object, const char* key) {
  static const nlohmann::json* const none = new nlohmann::json(nlohmann::json::object());
  const auto it = object.find(key);
  return it != object.end() && it->is_object() ? *it : *none;
}

const nlohmann::json& List(const nlohmann::json& object, const char* key) {
  static const nlohmann::json* const none = new nlohmann::json(nlohmann::json::array());
  const auto it = object.find(key);
  return it != object.end() && it->is_array() ? *it : *none;
}

}  // namespace

// ---- One streamed request, a thread, and readings when the stream ends.
class EtcdStore::EtcdWatch final : public Watch {
 public:
  EtcdWatch(EtcdStore* store, const std::string& prefix,
            std::function<void(const Entries&)> on_entries)
      : store_(store), prefix_(prefix), on_entries_(std::move(on_entries)) {
    multi_ = curl_multi_init();
    CHECK(multi_ != nullptr);
    thread_ = std::thread([this] { Run(); });
  }
  ~EtcdWatch() override {
    stop_ = true;
    curl_multi_wakeup(multi_);
    thread_.join();
    curl_multi_cleanup(multi_);
  }

 private:
  void Run() {
    bool told = false;
    while (!stop_) {
      absl::StatusOr<Listing> listing = store_->Read(prefix_);
      if (!listing.ok()) {
        Pause();
        continue;
      }
      if (!told || listing->entries != entries_) {
        entries_ = std::move(listing->entries);
        on_entries_(entries_);
      }
      told = true;
      Stream(listing->revision + 1);
    }
  }

  void Pause() {
    curl_multi_poll(multi_, nullptr, 0, static_cast<int>(kStoreRetry / kMillisecond), nullptr);
  }

  // Follows the changes from `revision` on, until the stream ends or is silent for too long.
  void Stream(Revision revision) {
    nlohmann::json request = Range(prefix_);
    request["start_revision"] = absl::StrCat(revision);
    const std::string body = nlohmann::json{{"create_request", request}}.dump();
    const size_t member = store_->current_ % store_->options_.endpoints.size();
    const std::string url = absl::StrCat(store_->options_.endpoints[member], "/v3/watch");
    const CurlHeaders headers = Headers();
    const CurlHandle curl = Post(store_->options_, url, headers.get(), body);
    lines_.clear();
    ended_ = false;
    last_ = revision;
    curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, &OnBytes);
    curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, this);
    if (curl_multi_add_handle(multi_, curl.get()) != CURLM_OK) return Pause();
    Nanos silent_until = Clock::System()->Monotonic() + kWatchSilence;
    size_t seen = 0;
    int running = 1;
    while (!stop_ && !ended_ && running != 0) {
      const Nanos left = silent_until - Clock::System()->Monotonic();
      if (left <= 0) break;
      curl_multi_poll(multi_, nullptr, 0, static_cast<int>(left / kMillisecond) + 1, nullptr);
      if (curl_multi_perform(multi_, &running) != CURLM_OK) break;
      if (received_ != seen) silent_until = Clock::System()->Monotonic() + kWatchSilence;
      seen = received_;
      if (changed_) on_entries_(entries_);
      changed_ = false;
    }
    curl_multi_remove_handle(multi_, curl.get());
    // Ended by itself: the member is gone or alone.
    if (!stop_ && running == 0) {
      ++store_->current_;
      Pause();
    }
  }

  static size_t OnBytes(char* bytes, size_t size, size_t count, void* to) {
    auto* watch = static_cast<EtcdWatch*>(to);
    watch->received_ += size * count;
    if (watch->lines_.size() + size * count > kStoreAnswerBytesMax) return 0;
    watch->lines_.append(bytes, size * count);
    size_t end;
    while ((end = watch->lines_.find('\n')) != std::string::npos) {
      watch->OnLine(watch->lines_.substr(0, end));
      watch->lines_.erase(0, end + 1);
    }
    return size * count;
  }

  void OnLine(const std::string& line) {
    const nlohmann::json answer = Parse(line);
    const nlohmann::json& result = Member(answer, "result");
    if (answer.contains("error") || result.value("canceled", false)) {
      ended_ = true;  // compacted, or the member lost its leader: everything is read again
      return;
    }
    for (const nlohmann::json& event : gpool::List(result, "events")) {
      auto [key, entry] = Entry(Member(event, "kv"));
      if (entry.modified < last_) continue;  // told twice: 3.4.23 does that
      last_ = entry.modified;
      if (event.value("type", "PUT") == "DELETE") {
        changed_ = entries_.erase(key) != 0 || changed_;
        continue;
      }
      entries_[key] = std::move(entry);
      changed_ = true;
    }
  }

  EtcdStore* const store_;
  const std::string prefix_;
  const std::function<void(const Entries&)> on_entries_;
  CURLM* multi_;
  std::atomic<bool> stop_{false};  // set before the wake-up that makes it seen
  // Of the thread.
  Entries entries_;
  Revision last_ = 0;  // of what the stream told
  std::string lines_;
  size_t received_ = 0;
  bool changed_ = false;
  bool ended_ = false;
  std::thread thread_;
};

std::unique_ptr<EtcdStore> EtcdStore::Make(const EtcdOptions& options) {
  CHECK(!options.endpoints.empty());
  StartCurl();
  return std::unique_ptr<EtcdStore>(new EtcdStore(options));
}

absl::StatusOr<std::unique_ptr<EtcdStore>> EtcdStore::Connect(const EtcdOptions& options) {
  std::unique_ptr<EtcdStore> store = Make(options);
  // Any call would do; this one has no effect.
  RETURN_IF_ERROR(store->List("consort/probe").status());
  return store;
}

EtcdStore::~EtcdStore() = default;

absl::StatusOr<std::string> EtcdStore::Call(const std::string& path, const std::string& body,
                                            bool anywhere) {
  const CurlHeaders headers = Headers();
  const Nanos deadline = Clock::System()->Monotonic() + kStoreCallTimeout;
  absl::Status last = absl::UnavailableError("no time");
  for (size_t tries = 0; tries < options_.endpoints.size(); ++tries) {
    const Nanos left = deadline - Clock::System()->Monotonic();
    if (left <= 0) break;
    const size_t member = current_ % options_.endpoints.size();
    const std::string url = absl::StrCat(options_.endpoints[member], path);
    const CurlHandle curl = Post(options_, url, headers.get(), body);
    std::string answer;
    curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, &Append);
    curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &answer);
    // One that takes the request and does not answer must leave time for another.
    const Nanos share = anywhere && options_.endpoints.size() > 1 ? left / 2 : left;
    curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, static_cast<long>(share / kMillisecond) + 1);
    const CURLcode result = curl_easy_perform(curl.get());
    long http = 0;
    curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &http);
    if (result == CURLE_OK && http == kHttpOk) return answer;
    if (result == CURLE_OK) {
      const nlohmann::json error = Parse(answer);
      const auto code = Number(error, "code");
      const std::string text =
          error.value("message", absl::StrCat("HTTP ", http, " from ", url, ": no etcd gateway?"));
      last =
          absl::Status(code > 0 && code <= kStatusCodeMax ? static_cast<absl::StatusCode>(code)
                                                          : absl::StatusCode::kFailedPrecondition,
                       text);
      // Only what another member could answer is asked again.
      if (!absl::IsUnavailable(last) && !absl::IsDeadlineExceeded(last)) return last;
      last = absl::UnavailableError(text);
    } else {
      last = absl::UnavailableError(absl::StrCat(url, ": ", curl_easy_strerror(result)));
    }
    ++current_;
    const bool unsent = result == CURLE_COULDNT_CONNECT || result == CURLE_COULDNT_RESOLVE_HOST;
    if (!anywhere && !unsent) break;
  }
  return last;
}

absl::StatusOr<EtcdStore::Listing> EtcdStore::Read(const std::string& prefix) {
  ASSIGN_OR_RETURN(const std::string body, Call("/v3/kv/range", Range(prefix).dump(), true));
  const nlohmann::json answer = Parse(body);
  Listing listing;
  listing.revision = Number(Member(answer, "header"), "revision");
  if (listing.revision == 0) {
    return absl::FailedPreconditionError("what answers is no etcd with a JSON gateway");
  }
  for (const nlohmann::json& entry : gpool::List(answer, "kvs")) {
    listing.entries.insert(Entry(entry));
  }
  return listing;
}

absl::StatusOr<Entries> EtcdStore::List(const std::string& prefix) {
  ASSIGN_OR_RETURN(Listing listing, Read(prefix));
  return std::move(listing.entries);
}

absl::StatusOr<std::optional<Revision>> EtcdStore::Commit(const std::vector<Condition>& conditions,
                                                          const std::vector<Change>& changes) {
  nlohmann::json request = {{"compare", nlohmann::json::array()},
                            {"success", nlohmann::json::array()}};
  for (const Condition& condition : conditions) {
    request["compare"].push_back({{"key", absl::Base64Escape(condition.key)},
                                  {"target", "CREATE"},
                                  {"result", "EQUAL"},
                                  {"create_revision", absl::StrCat(condition.created)}});
    if (!condition.modified.has_value()) continue;
    request["compare"].push_back({{"key", absl::Base64Escape(condition.key)},
                                  {"target", "MOD"},
                                  {"result", "EQUAL"},
                                  {"mod_revision", absl::StrCat(*condition.modified)}});
  }
  for (const Change& change : changes) {
    const std::string key = absl::Base64Escape(change.key);
    if (!change.value.has_value()) {
      request["success"].push_back({{"request_delete_range", {{"key", key}}}});
      continue;
    }
    request["success"].push_back({{"request_put",
                                   {{"key", key},
                                    {"value", absl::Base64Escape(*change.value)},
                                    {"lease", absl::StrCat(change.lease)}}}});
  }
  ASSIGN_OR_RETURN(const std::string body, Call("/v3/kv/txn", request.dump(), false));
  const nlohmann::json answer = Parse(body);
  if (!answer.value("succeeded", false)) return std::optional<Revision>();
  return std::optional<Revision>(Number(Member(answer, "header"), "revision"));
}

absl::StatusOr<LeaseId> EtcdStore::Grant(int seconds) {
  ASSIGN_OR_RETURN(
      const std::string body,
      Call("/v3/lease/grant", nlohmann::json{{"TTL", absl::StrCat(seconds)}}.dump(), true));
  const LeaseId lease = Number(Parse(body), "ID");
  if (lease == 0) return absl::UnavailableError("etcd granted no lease");
  return lease;
}

absl::Status EtcdStore::KeepAlive(LeaseId lease) {
  ASSIGN_OR_RETURN(
      const std::string body,
      Call("/v3/lease/keepalive", nlohmann::json{{"ID", absl::StrCat(lease)}}.dump(), true));
  // The answer to a lease that has lapsed is one without time.
  if (Number(Member(Parse(body), "result"), "TTL") <= 0) {
    return absl::NotFoundError("the lease has lapsed");
  }
  return absl::OkStatus();
}

absl::Status EtcdStore::Revoke(LeaseId lease) {
  const absl::Status revoked =
      Call("/v3/lease/revoke", nlohmann::json{{"ID", absl::StrCat(lease)}}.dump(), true).status();
  return absl::IsNotFound(revoked) ? absl::OkStatus() : revoked;
}

std::unique_ptr<Watch> EtcdStore::Observe(const std::string& prefix,
                                          std::function<void(const Entries&)> on_entries) {
  return std::make_unique<EtcdWatch>(this, prefix, std::move(on_entries));
}

}  // namespace consort::gpool
