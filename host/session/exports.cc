// SPDX-License-Identifier: Apache-2.0
#include "host/session/exports.h"

#include <sys/random.h>

#include "base/log.h"

namespace consort::host {

ExportToken Exports::Add(Export what) {
  ExportToken token;
  // Up to 256 bytes come whole or not at all. Source: getrandom(2).
  CHECK(getrandom(&token, sizeof(token), 0) == sizeof(token));
  absl::MutexLock lock(&mutex_);
  CHECK(exports_.emplace(token, std::move(what)).second);
  return token;
}

void Exports::Remove(const ExportToken& token) {
  Export removed;  // let go of outside the lock: that calls the driver
  absl::MutexLock lock(&mutex_);
  const auto it = exports_.find(token);
  if (it == exports_.end()) return;
  removed = std::move(it->second);
  exports_.erase(it);
}

std::optional<Export> Exports::Find(const ExportToken& token, const std::string& tenant) const {
  absl::MutexLock lock(&mutex_);
  const auto it = exports_.find(token);
  if (it == exports_.end() || it->second.tenant != tenant) return std::nullopt;
  return it->second;
}

}  // namespace consort::host
