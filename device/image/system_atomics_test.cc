// SPDX-License-Identifier: Apache-2.0
#include "device/image/system_atomics.h"

#include <gtest/gtest.h>

#include <vector>

#include "device/image/image_test_support.h"

namespace consort::image {
namespace {

TEST(SystemAtomics, AreInstructionsOfThatScope) {
  EXPECT_TRUE(MayHaveSystemAtomicsInPtx("{\n\tatom.global.sys.add.u32 %r1, [%rd1], 1;"));
  EXPECT_TRUE(MayHaveSystemAtomicsInPtx("@%p1 red.release.sys.global.add.u32 [%rd1], 1;"));
  EXPECT_TRUE(MayHaveSystemAtomicsInPtx("atom.add.acquire.sys.s32 %r1,[%rd1],%r2;"));
  for (const char* other :
       {"", ".sys", "membar.sys;", "fence.sc.sys;", "ld.acquire.sys.u32 %r1, [%rd1];",
        "atom.global.gpu.add.u32 %r1, [%rd1], 1; fence.sc.sys;", "my_atom.sys.add",
        "atom.system"}) {
    EXPECT_FALSE(MayHaveSystemAtomicsInPtx(other)) << other;
  }
}

TEST(SystemAtomics, AreFoundInWhatADeviceLoads) {
  // sm_80 with its PTX, and PTX alone for 90.
  for (const uint32_t capability : {80u, 86u, 90u}) {
    EXPECT_TRUE(MayHaveSystemAtomics(ReadTestImage("system_atomics.fatbin"), capability))
        << capability;
    EXPECT_FALSE(MayHaveSystemAtomics(ReadTestImage("device_atomics.fatbin"), capability))
        << capability;
  }
  EXPECT_FALSE(MayHaveSystemAtomics(ReadTestImage("system_atomics.fatbin"), 75));
  EXPECT_FALSE(MayHaveSystemAtomics(ReadTestImage("system_atomics_machine_code.fatbin"), 90));
}

TEST(SystemAtomics, AreNotInWhatIsNoImage) {
  EXPECT_FALSE(MayHaveSystemAtomics({}, 90));
  std::vector<std::byte> image = ReadTestImage("system_atomics.fatbin");
  image.resize(image.size() / 2);
  EXPECT_FALSE(MayHaveSystemAtomics(image, 90));
}

}  // namespace
}  // namespace consort::image
