// SPDX-License-Identifier: Apache-2.0
#ifndef CONSORT_GUEST_ERROR_TEXT_H_
#define CONSORT_GUEST_ERROR_TEXT_H_

#include <cuda.h>

namespace consort::guest {

// "CUDA_ERROR_INVALID_VALUE" and "invalid argument"; null for a code that cuda.h does not have.
const char* ErrorName(CUresult code);
const char* ErrorDescription(CUresult code);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_ERROR_TEXT_H_
