// SPDX-License-Identifier: Apache-2.0
#include "host/session/journal.h"

#include <algorithm>

#include "base/log.h"

namespace consort::host {

void Journal::AddMade(const ObjectName& object, JournalEntry entry,
                      const std::optional<ObjectName>& owner) {
  Object made;
  made.context = entry.context;
  made.owner = owner;
  made.made = std::move(entry);
  CHECK(objects_.emplace(object, std::move(made)).second) << "the name was free";
  if (owner.has_value()) objects_.at(*owner).owned.push_back(object);
}

void Journal::AddChange(const ObjectName& object, uint64_t aspect, JournalEntry entry) {
  const auto found = objects_.find(object);
  if (found == objects_.end()) {
    Object made;
    made.lasts = true;
    made.made = std::move(entry);
    objects_.emplace(object, std::move(made));
    return;
  }
  if (found->second.lasts) {
    found->second.made = std::move(entry);
    return;
  }
  for (auto& [known, change] : found->second.changes) {
    if (known != aspect) continue;
    change = std::move(entry);
    return;
  }
  found->second.changes.emplace_back(aspect, std::move(entry));
}

void Journal::Drop(const ObjectName& object) {
  const auto found = objects_.find(object);
  if (found == objects_.end()) return;
  const Object gone = std::move(found->second);
  objects_.erase(found);
  for (const ObjectName& owned : gone.owned) Drop(owned);
  if (!gone.owner.has_value()) return;
  const auto owner = objects_.find(*gone.owner);
  if (owner != objects_.end()) std::erase(owner->second.owned, object);
}

void Journal::DropContext(uint32_t context) {
  std::vector<ObjectName> gone;
  for (const auto& [name, object] : objects_) {
    if (object.context == context && !object.owner.has_value() && !object.lasts) {
      gone.push_back(name);
    }
  }
  for (const ObjectName& name : gone) Drop(name);
}

std::vector<const JournalEntry*> Journal::Entries() const {
  std::vector<const JournalEntry*> entries;
  entries.reserve(objects_.size());
  for (const auto& [name, object] : objects_) {
    entries.push_back(&object.made);
    for (const auto& [aspect, change] : object.changes) entries.push_back(&change);
  }
  std::sort(entries.begin(), entries.end(),
            [](const JournalEntry* a, const JournalEntry* b) { return a->order < b->order; });
  return entries;
}

}  // namespace consort::host
