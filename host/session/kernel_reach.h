// SPDX-License-Identifier: Apache-2.0
// host/session/kernel_reach.h: which kernels reach memory by their arguments alone.
//
// Such a kernel's working set is known before its launch; of any other it is everything that its
// program has. Read from PTX, on the side of "may reach anything": a kernel is direct only if no
// 64-bit value that it loads from memory, or puts together of loaded parts, could be a pointer; it
// calls nothing; and uses no textures, surfaces or tensor maps. What it computes from an argument's
// pointer and loaded 32-bit numbers is inside that pointer's allocation, as C++ has it
// (expr.add). Machine code counts as its PTX where the image has that for the same architecture,
// which nvcc made it from. Pure; thread safe.
#ifndef CONSORT_HOST_SESSION_KERNEL_REACH_H_
#define CONSORT_HOST_SESSION_KERNEL_REACH_H_

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace consort::host {

// Names of the direct kernels of one PTX text.
std::set<std::string> DirectKernelsOfPtx(std::string_view text);

// Of a module image: direct in every PTX that it holds. Empty for images that are too large to be
// looked at (kReachImageBytesMax), of several units, or with machine code that has no PTX here.
std::set<std::string> DirectKernels(std::span<const std::byte> image);

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_KERNEL_REACH_H_
