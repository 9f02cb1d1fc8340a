// SPDX-License-Identifier: Apache-2.0
// host/session/textures.h: a session's CUDA arrays, texture and surface objects.
//
// Arrays are named by the guest and looked up; objects are the driver's numbers, which a guest may
// only destroy if they are its own. Owned by the session loop; calls need the worker's context.
// Results are the driver's. What is left is released in the destructor.
// Source: CUDA driver API, Memory Management, Texture and Surface Object Management.
#ifndef CONSORT_HOST_SESSION_TEXTURES_H_
#define CONSORT_HOST_SESSION_TEXTURES_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "gen/device/driver_table.h"
#include "gen/wire/requests.h"

namespace consort::host {

class Textures {
 public:
  // `driver` is borrowed for this object's life.
  explicit Textures(const device::DriverTable& driver) : driver_(driver) {}
  ~Textures();
  Textures(const Textures&) = delete;
  Textures& operator=(const Textures&) = delete;

  // CUDA_ERROR_INVALID_HANDLE: the name is taken. CUDA_ERROR_OUT_OF_MEMORY: device or table full.
  CUresult CreateArray(uint32_t context, const wire::ArrayCreateRequest& request);
  // The array, or null.
  CUarray FindArray(uint64_t name) const;
  // Takes the array out, for the caller to destroy once nothing uses it; null: there is none.
  CUarray TakeArray(uint64_t name);

  // The caller has checked that the resource's memory is the session's.
  CUresult CreateTexture(uint32_t context, const CUDA_RESOURCE_DESC& resource,
                         const CUDA_TEXTURE_DESC& texture, uint64_t* object);
  CUresult CreateSurface(uint32_t context, const CUDA_RESOURCE_DESC& resource, uint64_t* object);
  // As TakeArray. False: this session has no such object.
  bool TakeObject(uint64_t object, bool is_surface);

  // Whether there is no array and no object.
  bool empty() const { return arrays_.empty() && textures_.empty() && surfaces_.empty(); }

  // Destroys what belongs to a context whose work has ended.
  void DestroyContext(uint32_t context);

 private:
  struct Array {
    CUarray handle = nullptr;
    uint32_t context = 0;
  };
  using Objects = absl::flat_hash_map<uint64_t, uint32_t>;  // to their context

  const device::DriverTable& driver_;
  absl::flat_hash_map<uint64_t, Array> arrays_;
  Objects textures_;
  Objects surfaces_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_TEXTURES_H_
