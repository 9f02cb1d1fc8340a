// SPDX-License-Identifier: Apache-2.0
// tests/api/images.h: the device code that the cases load, built by nvcc from kernels/ and embedded
// by cmake/Embed.cmake.
//
// Immutable. A zero byte follows each image and is not counted, so PTX can be passed as a C string.
#ifndef CONSORT_TESTS_API_IMAGES_H_
#define CONSORT_TESTS_API_IMAGES_H_

#include <cstddef>

namespace consort::tests::api {

struct Image {
  const unsigned char* data;
  size_t bytes;
};

// PTX text for compute_75, one per file of kernels/.
extern const Image kBasicPtx;
extern const Image kParamsPtx;
extern const Image kTimingPtx;
extern const Image kFaultsPtx;
extern const Image kAssertPtx;
extern const Image kConditionPtx;
extern const Image kCooperativePtx;
extern const Image kTexturePtx;
extern const Image kManagedPtx;
extern const Image kManagedAtomicsPtx;
extern const Image kSystemAtomicsPtx;

// basic.cu for sm_90 (ELF) and compute_75 (PTX), one per nvcc --compress-mode.
extern const Image kBasicFatbinNone;
extern const Image kBasicFatbinSize;
extern const Image kBasicFatbinSpeed;
extern const Image kBasicFatbinBalance;

// basic.cu for sm_75 only, without PTX.
extern const Image kBasicFatbinSm75;

// basic.cu as a bare ELF that only devices of compute capability 9.x can run.
extern const Image kBasicCubinSm90;

// Relocatable, one of two units each (kernels/link*.cu): PTX text, a fat binary of sm_90 and
// compute_75, an ELF of sm_90.
extern const Image kLinkMainPtx;
extern const Image kLinkHelperPtx;
extern const Image kLinkHelperFatbin;
extern const Image kLinkHelperCubin;

// exports.txt: the names that the driver's library exports, one a line.
extern const Image kExports;

}  // namespace consort::tests::api

#endif  // CONSORT_TESTS_API_IMAGES_H_
