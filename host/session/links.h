// SPDX-License-Identifier: Apache-2.0
// host/session/links.h: a session's runs of the just-in-time linker (CUlinkState).
//
//   LinkCreate ─▶ link ◀─LinkAdd─ images;  link ─LinkComplete─▶ result ─LinkRead─▶ guest
//
// Guests name them; a name is looked up whole. Owned by the session loop; calls need the worker's
// context. Results are the driver's. Spans in replies are valid until the next call.
// Source: CUDA driver API, Module Management (cuLink*).
#ifndef CONSORT_HOST_SESSION_LINKS_H_
#define CONSORT_HOST_SESSION_LINKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gen/device/driver_table.h"
#include "gen/wire/requests.h"
#include "host/session/jit_options.h"

namespace consort::host {

class Links {
 public:
  // `driver` is borrowed for this object's life.
  explicit Links(const device::DriverTable& driver) : driver_(driver) {}
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  // CUDA_ERROR_INVALID_HANDLE: the name is taken. CUDA_ERROR_OUT_OF_MEMORY: too many.
  CUresult Create(const wire::LinkCreateRequest& request);
  // Adds `data`, the image that the request names. CUDA_ERROR_INVALID_IMAGE: it does not state its
  // own extent truly, which the driver would believe.
  CUresult Add(const wire::LinkAddRequest& request, std::vector<std::byte> data,
               wire::LinkAddReply* reply);
  CUresult Complete(const wire::LinkCompleteRequest& request, wire::LinkCompleteReply* reply);
  CUresult Read(const wire::LinkReadRequest& request, wire::LinkReadReply* reply) const;
  void Destroy(uint64_t link);

  bool empty() const { return links_.empty(); }

 private:
  struct Link {
    explicit Link(std::span<const std::byte> jit_options) : options(jit_options) {}
    JitOptions options;  // the driver writes there until the end
    CUlinkState state = nullptr;
    std::span<const std::byte> result;  // the driver's, once complete
  };
  Link* Find(uint64_t link) const;

  const device::DriverTable& driver_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Link>> links_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_LINKS_H_
