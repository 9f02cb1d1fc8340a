// SPDX-License-Identifier: Apache-2.0
// base/pages.h: large pages, and pages before somebody needs them at once.
#ifndef CONSORT_BASE_PAGES_H_
#define CONSORT_BASE_PAGES_H_

#include <cstddef>

#include "base/units.h"

namespace consort {

// Memory of zeros, `bytes` (a multiple of 2 MiB) at a multiple of 2 MiB, so that it can have large
// pages; null: there is none. For munmap.
std::byte* MapAligned(Bytes bytes);
// As MapAligned; and it is to have them, which take a fraction of the time to make and to pin.
std::byte* MapLargePages(Bytes bytes);

// Has the kernel give `memory`, which is mapped for writing, its pages; contents stay. Of a file
// that has become shorter what is left of it: never a signal, as touching would be. Where that
// fails, or the kernel cannot (before 5.14), pages come when they are touched, as ever.
void Populate(void* memory, Bytes bytes);

}  // namespace consort

#endif  // CONSORT_BASE_PAGES_H_
