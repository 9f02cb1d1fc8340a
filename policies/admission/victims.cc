// SPDX-License-Identifier: Apache-2.0
#include "policies/admission/victims.h"

#include <algorithm>

namespace consort::admission {
namespace {

// Drops from the front what is not needed: the last one taken may suffice for some before it.
Bytes DropSpare(std::span<const Candidate> candidates, Bytes sum, Bytes wanted,
                std::vector<size_t>* taken) {
  for (auto it = taken->begin(); it != taken->end();) {
    if (sum - candidates[*it].bytes >= wanted) {
      sum -= candidates[*it].bytes;
      it = taken->erase(it);
    } else {
      ++it;
    }
  }
  return sum;
}

}  // namespace

Victims ChooseVictims(std::span<const Candidate> candidates, const Shortage& shortage) {
  Victims victims;
  std::vector<size_t> idle;
  std::vector<size_t> busy;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].bytes == 0) continue;
    if (candidates[i].idle && candidates[i].idle_for >= shortage.idle_least) {
      idle.push_back(i);
    } else if (candidates[i].on_device_for >= shortage.patience) {
      busy.push_back(i);
    }
  }
  std::stable_sort(idle.begin(), idle.end(), [&](size_t a, size_t b) {
    const Candidate& x = candidates[a];
    const Candidate& y = candidates[b];
    return x.over_soft != y.over_soft ? x.over_soft : x.idle_for > y.idle_for;
  });
  std::stable_sort(busy.begin(), busy.end(), [&](size_t a, size_t b) {
    const Candidate& x = candidates[a];
    const Candidate& y = candidates[b];
    return x.over_soft != y.over_soft ? x.over_soft : x.on_device_for > y.on_device_for;
  });
  Bytes sum = 0;
  for (const size_t i : idle) {
    if (sum >= shortage.bytes) break;
    victims.leave.push_back(i);
    sum += candidates[i].bytes;
  }
  if (sum >= shortage.bytes) {
    DropSpare(candidates, sum, shortage.bytes, &victims.leave);
    victims.enough = true;
    return victims;
  }
  if (shortage.waited < shortage.patience) {
    // Moving some away now would help nobody yet.
    victims.leave.clear();
    return victims;
  }
  Bytes asked = 0;
  for (const size_t i : busy) {
    if (sum + asked >= shortage.bytes) break;
    victims.ask.push_back(i);
    asked += candidates[i].bytes;
  }
  if (sum + asked < shortage.bytes) {
    victims.leave.clear();
    victims.ask.clear();
    return victims;
  }
  DropSpare(candidates, asked, shortage.bytes - sum, &victims.ask);
  victims.enough = true;
  return victims;
}

}  // namespace consort::admission
