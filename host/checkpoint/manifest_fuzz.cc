// SPDX-License-Identifier: Apache-2.0
// host/checkpoint/manifest_fuzz.cc: DecodeManifest over arbitrary bytes. Frames have checksums that
// no mutation keeps, so the input is also tried as what a frame holds. What decodes encodes to the
// same again.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/log.h"
#include "host/checkpoint/manifest.h"
#include "memmgr/packed_frame.h"

namespace {

void Decode(std::span<const std::byte> bytes) {
  const auto manifest = consort::host::DecodeManifest(bytes);
  if (!manifest.ok()) return;
  const auto again = consort::host::EncodeManifest(*manifest);
  CHECK(again.ok());
  CHECK(*consort::host::DecodeManifest(*again) == *manifest);
  CHECK(!consort::host::ManifestText(*manifest).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  Decode(bytes);
  const auto frame = consort::memmgr::PackFrame(bytes.first(bytes.size() & ~size_t{7}));
  CHECK(frame.ok());
  static constexpr unsigned char kHeader[16] = {'C', 'O', 'N', 'S', 'C', 'K', 'P', 'T', 1};
  const auto header = std::as_bytes(std::span(kHeader));
  std::vector<std::byte> whole(header.begin(), header.end());
  whole.insert(whole.end(), frame->begin(), frame->end());
  Decode(whole);
  return 0;
}
