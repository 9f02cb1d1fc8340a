// SPDX-License-Identifier: Apache-2.0
// device/image/image_fuzz.cc: every function of image.h, managed.h, printing.h and
// system_atomics.h over arbitrary bytes.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/log.h"
#include "device/image/image.h"
#include "device/image/managed.h"
#include "device/image/printing.h"
#include "device/image/system_atomics.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace image = consort::image;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto extent = image::ImageBytes(bytes);
  if (extent.ok()) CHECK_LE(*extent, size);
  image::MayHaveSystemAtomics(bytes, 90);
  for (const bool machine_code : {false, true}) {
    const image::Target target{.machine_code = machine_code, .prefer_portable = machine_code};
    image::FindPrinting(bytes, target);
    const auto texts = image::SelectPtx(bytes, target);
    if (texts.ok()) {
      CHECK(!texts->empty());
      for (const std::string& text : *texts) {
        const auto managed = image::ManagedPtx::Parse(text);
        if (!managed.ok()) continue;
        const auto placed = image::ManagedPtx::Parse(managed->At(4096));
        CHECK(placed.ok() && placed->variables().empty());
      }
    }
    const auto binaries = image::ParseFatBinaries(bytes);
    if (!binaries.ok()) continue;
    for (const image::FatBinary& binary : *binaries) {
      const auto entry = image::ChooseEntry(binary.entries, target);
      if (entry.ok() && (*entry)->kind == image::EntryKind::kPtx) {
        const auto plain = image::Decompress(**entry);
        if (plain.ok()) CHECK_EQ(plain->size(), (*entry)->decompressed_bytes);
      }
    }
  }
  return 0;
}
