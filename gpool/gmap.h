// SPDX-License-Identifier: Apache-2.0
// gpool/gmap.h: the gMap: which nodes there are, which GPUs they have, and their global ids. Plain
// values, and their form in the store:
//
//   nodes/NODE   on the node's lease
//   {"schema":1,"node":"a","address":"10.0.0.1:7010","boot":"5f...","gpus":[{"gid":3,"device":0,
//    "uuid":"GPU-...","model":"NVIDIA H200","memory_bytes":150754820096,"weight":1.0,
//    "memory_bandwidth":4.1e12,"description":"..."}]}
#ifndef CONSORT_GPOOL_GMAP_H_
#define CONSORT_GPOOL_GMAP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpool/store.h"

namespace consort::gpool {

// The global id of a GPU: given when a node first brings it, and never to another. 0: none.
using Gid = uint32_t;

struct GpuRecord {
  Gid gid = 0;
  uint32_t device = 0;  // its index on its node
  std::string uuid;     // as the driver's tools write it
  std::string model;
  uint64_t memory_bytes = 0;
  double weight = 0;            // relative speed, measured; 0: not measured
  double memory_bandwidth = 0;  // bytes a second, likewise
  std::string description;      // the owner's own bytes; nothing here looks at them

  friend bool operator==(const GpuRecord&, const GpuRecord&) = default;
};

struct NodeRecord {
  std::string node;
  std::string address;  // where its links are taken
  std::string boot;     // another each time its daemon starts
  std::vector<GpuRecord> gpus;

  friend bool operator==(const NodeRecord&, const NodeRecord&) = default;
};

struct Gmap {
  std::map<std::string, NodeRecord> nodes;

  // Null if no node has it now. The pointers live as long as the map.
  const GpuRecord* Find(Gid gid, const NodeRecord** node) const;
  size_t gpu_count() const;
};

std::string NodeJson(const NodeRecord& record);
// None, if it is not of this form: another version's daemon wrote it.
std::optional<NodeRecord> ParseNode(std::string_view json);

// The nodes among `entries`; those that cannot be read are left out, with a line in the log.
Gmap MakeGmap(const Entries& entries);

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_GMAP_H_
