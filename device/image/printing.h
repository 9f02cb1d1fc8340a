// SPDX-License-Identifier: Apache-2.0
// device/image/printing.h: which kernels of an image may print: whether they reach the `vprintf`
// that the driver provides, which code refers to as an undefined symbol.
//
// Of machine code this is told a kernel, by the pairs of symbols (caller, callee) that ptxas writes
// into .nv.callgraph, functions called through pointers among them; of PTX, and of machine code
// that launches kernels itself or has no such pairs, for the whole. Where an image cannot be read
// nothing of it is said to print. The bytes are not trusted: see image.h. Source: what nvcc (12.4,
// 13.0) was seen to write; PTX ISA, .extern; CUDA C++ Programming Guide, "Formatted Output".
#ifndef CONSORT_DEVICE_IMAGE_PRINTING_H_
#define CONSORT_DEVICE_IMAGE_PRINTING_H_

#include <cstddef>
#include <set>
#include <span>
#include <string>

#include "device/image/image.h"

namespace consort::image {

struct Printing {
  bool all = false;               // any kernel may
  std::set<std::string> kernels;  // else these

  bool May(const std::string& kernel) const { return all || kernels.contains(kernel); }
};

// For a device of `target`, which loads machine code where the image has it. Thread safe.
Printing FindPrinting(std::span<const std::byte> image, const Target& target);

}  // namespace consort::image

#endif  // CONSORT_DEVICE_IMAGE_PRINTING_H_
