// SPDX-License-Identifier: Apache-2.0
// gpool/gmap.h: the gMap: which nodes there are, which GPUs they have, and their global ids. Plain
// values, and their form in the store:
//
//   nodes/NODE   on the node's lease
//   {"schema":1,"node":"a","address":"10.0.0.1:7010","boot":"5f...","gpus":[{"gid":3,"device":0,
//    "uuid":"GPU-...","model":"NVIDIA H200","memory_bytes":150754820096,
//    "speed":{"to_device":5e10,"to_host":5e10,"memory":4e12,"arithmetic":5e13},
//    "description":"..."}]}
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

// As its node has measured it; all 0: not measured.
struct GpuSpeed {
  double to_device = 0;   // bytes a second, copied from the host
  double to_host = 0;     // likewise
  double memory = 0;      // bytes a second that kernels read and write
  double arithmetic = 0;  // operations a second on numbers of 32 bits

  friend bool operator==(const GpuSpeed&, const GpuSpeed&) = default;
};

// Of a GPU beside others, for kernels of which half wait for memory: the geometric mean of its two
// rates for kernels, where 1 stands for 100 GB/s and 1 TFLOP/s. 0: not measured.
double WeightOf(const GpuSpeed& speed);

struct GpuRecord {
  Gid gid = 0;
  uint32_t device = 0;  // its index on its node
  std::string uuid;     // as the driver's tools write it
  std::string model;
  uint64_t memory_bytes = 0;
  GpuSpeed speed;
  std::string description;  // the owner's own bytes; nothing here looks at them

  double weight() const { return WeightOf(speed); }

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
