// SPDX-License-Identifier: Apache-2.0
#include "host/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <cstring>

#include "gen/wire/opcodes.h"
#include "host/limits.h"
#include "host/session/session_state.h"

namespace consort::host {
namespace {

CheckpointManifest Full() {
  CheckpointManifest manifest;
  for (size_t i = 0; i < manifest.id.size(); ++i) manifest.id[i] = static_cast<uint8_t>(i * 17);
  manifest.created_unix_seconds = 1'771'113'600;
  manifest.who = "uid 0";
  manifest.version = "1.2.3";
  manifest.description = wire::kDescriptionHash;
  manifest.state_version = kSessionStateVersion;
  manifest.tenant = "render";
  manifest.vm = "web-1";
  manifest.application = "train\n\x1b[31m";
  manifest.pid = 4711;
  manifest.device = 3;
  manifest.device_model = "NVIDIA H200";
  manifest.window_base = 0x2000'0000'0000;
  manifest.window_bytes = kGiB;
  manifest.streams = 4;
  manifest.events = 5;
  manifest.libraries = 1;
  manifest.kernels = 2;
  manifest.allocations = 11;
  manifest.pinned_bytes = 4096;
  manifest.resume_token.bytes[15] = 7;
  manifest.vgpu = 1;
  using Kind = CheckpointChunk::Kind;
  manifest.chunks = {{Kind::kState, 0, 800, 300, 1},
                     {Kind::kImage, 4096, 10'000, 4000, 2},
                     {Kind::kContents, 0x2000'0000'0000, kCheckpointChunkBytesMax, 77, 3}};
  return manifest;
}

TEST(Manifest, ComesBackAsItWas) {
  const auto bytes = EncodeManifest(Full());
  ASSERT_TRUE(bytes.ok());
  const auto back = DecodeManifest(*bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, Full());
  EXPECT_EQ(back->BytesOf(CheckpointChunk::Kind::kImage), 10'000u);
  EXPECT_EQ(back->packed_bytes(), 4377u);
  EXPECT_EQ(*DecodeManifest(*EncodeManifest(CheckpointManifest())), CheckpointManifest());
}

TEST(Manifest, IsRefusedAtEveryOtherLength) {
  const auto bytes = EncodeManifest(Full());
  ASSERT_TRUE(bytes.ok());
  for (size_t length = 0; length < bytes->size(); ++length) {
    EXPECT_FALSE(DecodeManifest(std::span(*bytes).first(length)).ok()) << length;
  }
  auto longer = *bytes;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(absl::IsDataLoss(DecodeManifest(longer).status()));
}

// Some bits of a frame change nothing: those that zstd does not use, and ways to say the same.
TEST(Manifest, NeverSaysSomethingElseForAFlippedBit) {
  auto bytes = EncodeManifest(Full());
  ASSERT_TRUE(bytes.ok());
  size_t taken = 0;
  for (size_t bit = 0; bit < bytes->size() * 8; ++bit) {
    const auto flip = static_cast<std::byte>(1 << bit % 8);
    (*bytes)[bit / 8] ^= flip;
    const auto back = DecodeManifest(*bytes);
    if (back.ok()) {
      EXPECT_EQ(*back, Full()) << bit;
    }
    taken += back.ok();
    (*bytes)[bit / 8] ^= flip;
  }
  EXPECT_LT(taken, bytes->size() * 8 / 20);
}

TEST(Manifest, SaysWhatIsWrongWithIt) {
  auto bytes = *EncodeManifest(Full());
  bytes[8] = std::byte{9};
  EXPECT_EQ(DecodeManifest(bytes).status().message(),
            "its format is version 9; this build reads 1");
  EXPECT_EQ(DecodeManifest(std::as_bytes(std::span("#!/bin/sh\necho hello\n"))).status().message(),
            "it is no manifest of a checkpoint");
  CheckpointManifest manifest = Full();
  EXPECT_TRUE(CheckBuild(manifest).ok());
  manifest.description ^= 1;
  EXPECT_EQ(CheckBuild(manifest).message(), "it was written by another build of Consort (1.2.3)");
  manifest = Full();
  ++manifest.state_version;
  EXPECT_FALSE(CheckBuild(manifest).ok());
}

TEST(Manifest, RefusesChunksThatCannotBe) {
  for (const Bytes bytes : {Bytes{0}, kCheckpointChunkBytesMax + 1}) {
    CheckpointManifest manifest = Full();
    manifest.chunks[1].bytes = bytes;
    EXPECT_TRUE(absl::IsDataLoss(DecodeManifest(*EncodeManifest(manifest)).status())) << bytes;
  }
  CheckpointManifest manifest = Full();
  manifest.chunks[1].packed_bytes = 0;
  EXPECT_FALSE(DecodeManifest(*EncodeManifest(manifest)).ok());
  manifest = Full();
  manifest.chunks[0].kind = static_cast<CheckpointChunk::Kind>(3);
  EXPECT_FALSE(DecodeManifest(*EncodeManifest(manifest)).ok());
}

TEST(Manifest, TellsPeopleALineAFact) {
  const std::string text = ManifestText(Full());
  EXPECT_NE(text.find("application   train\\n\\x1b[31m\n"), std::string::npos) << text;
  EXPECT_NE(text.find("written       2026-02-15T00:00:00Z for uid 0\n"), std::string::npos) << text;
  EXPECT_NE(text.find("id            00112233445566778899aabbccddeeff\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("on disk       4377 bytes in 3 chunks\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace consort::host
