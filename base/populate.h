// SPDX-License-Identifier: Apache-2.0
// base/populate.h: gives mapped memory its pages before somebody needs them at once.
#ifndef CONSORT_BASE_POPULATE_H_
#define CONSORT_BASE_POPULATE_H_

#include <cstddef>

#include "base/units.h"

namespace consort {

// Has the kernel give `memory`, which is mapped for writing, its pages; contents stay. Of a file
// that has become shorter what is left of it: never a signal, as touching would be. Where that
// fails, or the kernel cannot (before 5.14), pages come when they are touched, as ever.
void Populate(void* memory, Bytes bytes);

}  // namespace consort

#endif  // CONSORT_BASE_POPULATE_H_
