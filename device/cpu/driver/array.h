// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/array.h: CUDA arrays: texels in rows, with a shape and a format.
//
// The memory is a device allocation of plain rows: what is opaque to a program needs no other
// layout here. Immutable; thread safe. Source: CUDA Driver API, cuArray3DCreate.
#ifndef CONSORT_DEVICE_CPU_DRIVER_ARRAY_H_
#define CONSORT_DEVICE_CPU_DRIVER_ARRAY_H_

#include <memory>
#include <utility>

#include "device/cpu/driver/context.h"
#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/texture.h"

namespace consort::cpu {

// Kind and size of one channel. False: not one of the eight plain formats.
bool ChannelOf(CUarray_format format, TexelGrid* grid);

// The rows of an array of that shape, without memory. CUDA_ERROR_INVALID_VALUE: no such array;
// CUDA_ERROR_NOT_SUPPORTED: a format or kind that this device has not.
CUresult GridOf(const CUDA_ARRAY3D_DESCRIPTOR& descriptor, TexelGrid* grid);

class Array {
 public:
  Array(std::shared_ptr<Context> context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor,
        const TexelGrid& grid)
      : context_(std::move(context)), descriptor_(descriptor), grid_(grid) {}
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  const std::shared_ptr<Context>& context() const { return context_; }
  const CUDA_ARRAY3D_DESCRIPTOR& descriptor() const { return descriptor_; }
  const TexelGrid& grid() const { return grid_; }

 private:
  const std::shared_ptr<Context> context_;
  const CUDA_ARRAY3D_DESCRIPTOR descriptor_;
  const TexelGrid grid_;
};

// A texture or surface object that a program made, for the day its context goes.
struct TextureOwner {
  std::shared_ptr<Context> owner;
  uint64_t handle = 0;
  const std::shared_ptr<Context>& context() const { return owner; }
  ~TextureOwner() { ForgetTexture(handle); }
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_ARRAY_H_
