// SPDX-License-Identifier: Apache-2.0
// device/image/system_atomics.h: whether the code of an image may do atomics that are to be atomic
// for the host, too: atom and red of scope .sys (atomicAdd_system, cuda::atomic).
//
// Told from PTX. Machine code counts as the PTX of the same architecture beside it, which nvcc made
// it from; of machine code alone it is not known, and said that there are none. The bytes are a
// guest's: see image.h. Pure; thread safe. Source: PTX ISA 9.0, "Parallel Synchronization and
// Communication Instructions: atom, red", "Scope".
#ifndef CONSORT_DEVICE_IMAGE_SYSTEM_ATOMICS_H_
#define CONSORT_DEVICE_IMAGE_SYSTEM_ATOMICS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace consort::image {

bool MayHaveSystemAtomicsInPtx(std::string_view text);

// Of an image on a device of `capability` (major * 10 + minor), which loads machine code where the
// image has it.
bool MayHaveSystemAtomics(std::span<const std::byte> image, uint32_t capability);

}  // namespace consort::image

#endif  // CONSORT_DEVICE_IMAGE_SYSTEM_ATOMICS_H_
