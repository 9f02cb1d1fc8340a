// SPDX-License-Identifier: Apache-2.0
#include "host/session/stream_order.h"

#include <algorithm>

#include "base/log.h"

namespace consort::host {

void StreamOrder::Add(Key stream) {
  CHECK_NE(stream, kDefaultStream);
  blocking_[stream] = Blocking{};
}

bool StreamOrder::Remove(Key stream) {
  const auto it = blocking_.find(stream);
  if (it == blocking_.end()) return false;
  const bool has_new_work = it->second.has_new_work;
  blocking_.erase(it);
  with_new_work_.erase(std::remove(with_new_work_.begin(), with_new_work_.end(), stream),
                       with_new_work_.end());
  return has_new_work;
}

void StreamOrder::BeforeWork(Key stream, std::vector<Key>* wait_for) {
  if (stream == kDefaultStream) {
    ++default_work_;
    for (const Key other : with_new_work_) blocking_[other].has_new_work = false;
    wait_for->insert(wait_for->end(), with_new_work_.begin(), with_new_work_.end());
    with_new_work_.clear();
    return;
  }
  const auto it = blocking_.find(stream);
  if (it == blocking_.end()) return;
  Blocking& blocking = it->second;
  if (blocking.default_work_waited_for != default_work_) {
    blocking.default_work_waited_for = default_work_;
    wait_for->push_back(kDefaultStream);
  }
  if (!blocking.has_new_work) {
    blocking.has_new_work = true;
    with_new_work_.push_back(stream);
  }
}

}  // namespace consort::host
