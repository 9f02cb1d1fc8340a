// SPDX-License-Identifier: Apache-2.0
#include "policies/placement/gpu_index.h"

#include <algorithm>

namespace consort::placement {
namespace {

// Spreads neighbouring slots over the whole range (a multiplicative hash with a final mix).
uint32_t PriorityOf(uint32_t slot) {
  uint32_t x = slot * 0x9e3779b1u;
  x ^= x >> 15;
  x *= 0x85ebca77u;
  return x ^ (x >> 13);
}

}  // namespace

GpuIndex::Slot GpuIndex::Better(Slot a, Slot b, uint32_t key) const {
  if (a == kNone) return b;
  if (b == kNone) return a;
  const double of_a = KeyOf(a, key);
  const double of_b = KeyOf(b, key);
  if (of_a != of_b) return of_a < of_b ? a : b;
  return nodes_[a].gid < nodes_[b].gid ? a : b;
}

void GpuIndex::Update(Slot slot) {
  const Node& node = nodes_[slot];
  for (uint32_t key = 0; key < keys_; ++key) {
    Slot best = slot;
    if (node.left != kNone) best = Better(best, best_[node.left * keys_ + key], key);
    if (node.right != kNone) best = Better(best, best_[node.right * keys_ + key], key);
    best_[slot * keys_ + key] = best;
  }
}

void GpuIndex::Split(Slot under, const Node& at, Slot* before, Slot* after) {
  if (under == kNone) {
    *before = *after = kNone;
    return;
  }
  Node& node = nodes_[under];
  if (Before(node, at)) {
    Slot rest = kNone;
    Split(node.right, at, &rest, after);
    node.right = rest;
    *before = under;
  } else {
    Slot rest = kNone;
    Split(node.left, at, before, &rest);
    node.left = rest;
    *after = under;
  }
  Update(under);
}

GpuIndex::Slot GpuIndex::Merge(Slot before, Slot after) {
  if (before == kNone) return after;
  if (after == kNone) return before;
  if (nodes_[before].priority >= nodes_[after].priority) {
    nodes_[before].right = Merge(nodes_[before].right, after);
    Update(before);
    return before;
  }
  nodes_[after].left = Merge(before, nodes_[after].left);
  Update(after);
  return after;
}

void GpuIndex::Insert(Slot* root, Slot slot) {
  if (*root == kNone || nodes_[slot].priority > nodes_[*root].priority) {
    Split(*root, nodes_[slot], &nodes_[slot].left, &nodes_[slot].right);
    *root = slot;
  } else {
    Node& node = nodes_[*root];
    Insert(Before(nodes_[slot], node) ? &node.left : &node.right, slot);
  }
  Update(*root);
}

void GpuIndex::Erase(Slot* root, Slot slot) {
  if (*root == slot) {
    *root = Merge(nodes_[slot].left, nodes_[slot].right);
    return;
  }
  Node& node = nodes_[*root];
  Erase(Before(nodes_[slot], node) ? &node.left : &node.right, slot);
  Update(*root);
}

void GpuIndex::UpdatePath(Slot root, Slot slot) {
  if (root != slot) {
    const Node& node = nodes_[root];
    UpdatePath(Before(nodes_[slot], node) ? node.left : node.right, slot);
  }
  Update(root);
}

void GpuIndex::Set(Slot slot, uint32_t group, Bytes free, Gid gid, std::span<const double> keys) {
  if (slot >= nodes_.size()) {
    nodes_.resize(slot + size_t{1});
    key_values_.resize(nodes_.size() * keys_);
    best_.resize(nodes_.size() * keys_, kNone);
  }
  if (group >= roots_.size()) roots_.resize(group + size_t{1}, kNone);
  Node& node = nodes_[slot];
  const bool stays = node.present && node.group == group && node.free == free && node.gid == gid;
  if (!stays) Remove(slot);
  std::copy(keys.begin(), keys.end(), key_values_.begin() + slot * size_t{keys_});
  if (stays) {
    UpdatePath(roots_[group], slot);
    return;
  }
  node =
      Node{.free = free, .gid = gid, .group = group, .priority = PriorityOf(slot), .present = true};
  Insert(&roots_[group], slot);
}

void GpuIndex::Remove(Slot slot) {
  if (slot >= nodes_.size() || !nodes_[slot].present) return;
  Erase(&roots_[nodes_[slot].group], slot);
  nodes_[slot].present = false;
}

GpuIndex::Slot GpuIndex::Min(uint32_t group, Bytes need, uint32_t key) const {
  if (group >= roots_.size()) return kNone;
  Slot best = kNone;
  for (Slot at = roots_[group]; at != kNone;) {
    const Node& node = nodes_[at];
    if (node.free < need) {
      at = node.right;
      continue;
    }
    best = Better(best, at, key);
    if (node.right != kNone) best = Better(best, best_[node.right * keys_ + key], key);
    at = node.left;
  }
  return best;
}

}  // namespace consort::placement
