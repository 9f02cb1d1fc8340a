// SPDX-License-Identifier: Apache-2.0
// device/image/image_test.cc: fat binaries made by nvcc at build time, whole and damaged.
#include "device/image/image.h"

#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/image/image_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace consort::image {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::byte> ReadImage(const std::string& name) {
  return ReadTestImage(name + ".fatbin");
}

std::vector<std::byte> BytesOf(std::string_view text) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<FatEntry> Entries(std::span<const std::byte> image) {
  auto binaries = ParseFatBinaries(image);
  EXPECT_TRUE(binaries.ok()) << binaries.status();
  EXPECT_EQ(binaries->size(), 1u);
  return (*binaries)[0].entries;
}

template <typename T>
void Store(std::vector<std::byte>& image, size_t offset, T value) {
  ASSERT_LE(offset + sizeof(value), image.size());
  std::memcpy(image.data() + offset, &value, sizeof(value));
}

// Offset of the first entry's header field `offset`, after the 16-byte header of the fat binary.
constexpr size_t Field(size_t offset) { return 16 + offset; }

struct Mode {
  const char* name;
  Compression elf;
  Compression ptx;
};

class ImageOfMode : public ::testing::TestWithParam<Mode> {};

INSTANTIATE_TEST_SUITE_P(
    Nvcc, ImageOfMode,
    ::testing::Values(Mode{"mode_none", Compression::kNone, Compression::kNone},
                      Mode{"mode_size", Compression::kZstd, Compression::kZstd},
                      Mode{"mode_speed", Compression::kNone, Compression::kLz4Block},
                      Mode{"mode_balance", Compression::kNone, Compression::kZstd}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(ImageOfMode, EveryEntryIsFoundAndDecompresses) {
  const auto image = ReadImage(GetParam().name);
  EXPECT_EQ(Classify(image), ImageKind::kFatBinary);
  const auto entries = Entries(image);
  ASSERT_EQ(entries.size(), 4u);
  int ptx_count = 0;
  for (const FatEntry& entry : entries) {
    const auto plain = Decompress(entry);
    ASSERT_TRUE(plain.ok()) << plain.status();
    EXPECT_EQ(plain->size(), entry.decompressed_bytes);
    if (entry.kind == EntryKind::kElf) {
      EXPECT_EQ(entry.compression, GetParam().elf);
      EXPECT_EQ(Classify(*plain), ImageKind::kElf);
      const auto extent = ImageBytes(*plain);
      ASSERT_TRUE(extent.ok()) << extent.status();
      EXPECT_LE(plain->size() - *extent, 8u);  // nothing but padding is left
    } else {
      ++ptx_count;
      EXPECT_EQ(entry.kind, EntryKind::kPtx);
      EXPECT_EQ(entry.compression, GetParam().ptx);
      const auto text = PtxText(entry);
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_THAT(*text, HasSubstr(".entry Axpy("));
      EXPECT_NE(text->back(), '\0');
    }
  }
  EXPECT_EQ(ptx_count, 3);
}

TEST_P(ImageOfMode, ChoosesNewestPtxNotAboveTheDevice) {
  const auto image = ReadImage(GetParam().name);
  const auto entries = Entries(image);
  const auto architecture = [&](uint32_t capability) -> uint32_t {
    const auto entry = ChooseEntry(entries, {.capability = capability});
    return entry.ok() ? (*entry)->architecture : 0;
  };
  EXPECT_EQ(architecture(70), 0u);
  EXPECT_EQ(architecture(75), 75u);
  EXPECT_EQ(architecture(89), 75u);
  EXPECT_EQ(architecture(90), 90u);
  EXPECT_EQ(architecture(120), 90u);
}

TEST_P(ImageOfMode, ArchitectureSpecificPtxOnlyForItsOwn) {
  const auto image = ReadImage(GetParam().name);
  const auto entries = Entries(image);
  EXPECT_TRUE((*ChooseEntry(entries, {.capability = 90}))->architecture_specific);
  EXPECT_FALSE((*ChooseEntry(entries, {.capability = 100}))->architecture_specific);
  EXPECT_FALSE(
      (*ChooseEntry(entries, {.capability = 90, .prefer_portable = true}))->architecture_specific);
}

TEST_P(ImageOfMode, MachineCodeBeatsPtxWhereItMayRun) {
  const auto image = ReadImage(GetParam().name);
  const auto entries = Entries(image);
  const auto kind = [&](uint32_t capability) {
    return (*ChooseEntry(entries, {.capability = capability, .machine_code = true}))->kind;
  };
  EXPECT_EQ(kind(90), EntryKind::kElf);
  EXPECT_EQ(kind(80), EntryKind::kPtx);
  EXPECT_EQ(kind(100), EntryKind::kPtx);
}

TEST_P(ImageOfMode, EveryTruncationIsRefused) {
  const auto image = ReadImage(GetParam().name);
  for (size_t bytes = 0; bytes < image.size(); bytes += bytes < 256 ? 1 : 13) {
    EXPECT_FALSE(ParseFatBinaries(std::span(image).first(bytes)).ok()) << bytes;
    EXPECT_FALSE(ImageBytes(std::span(image).first(bytes)).ok()) << bytes;
  }
}

// Any answer is right as long as nothing is read or written outside (sanitizers watch) and sizes
// hold.
TEST_P(ImageOfMode, DamagedBytesAreSurvived) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto image = ReadImage(GetParam().name);
  for (int round = 0; round < 2000; ++round) {
    auto damaged = image;
    for (int i = 0; i < 3; ++i) {
      // Half of the damage goes to the headers, where it tells.
      const size_t at = random() % (i == 0 ? std::min<size_t>(112, image.size()) : image.size());
      damaged[at] = static_cast<std::byte>(random());
    }
    const auto texts = SelectPtx(damaged, {.capability = 90});
    if (texts.ok()) {
      EXPECT_FALSE(texts->empty());
    }
    const auto extent = ImageBytes(damaged);
    if (extent.ok()) {
      EXPECT_LE(*extent, damaged.size());
    }
  }
}

TEST(Image, CompressedEntryThatDoesNotDecompressIsDataLoss) {
  for (const char* name : {"mode_speed", "mode_size"}) {
    auto image = ReadImage(name);
    const auto entries = Entries(image);
    const size_t at = static_cast<size_t>(entries[0].stored.data() - image.data());
    std::fill_n(image.begin() + at, 64, std::byte{0xFF});
    EXPECT_EQ(Decompress(Entries(image)[0]).status().code(), absl::StatusCode::kDataLoss) << name;
  }
}

TEST(Image, WrongDecompressedSizeIsDataLoss) {
  for (const char* name : {"mode_speed", "mode_size"}) {
    auto image = ReadImage(name);
    const uint64_t size = Entries(image)[0].decompressed_bytes;
    for (const uint64_t wrong : {size - 1, size + 1}) {
      Store<uint64_t>(image, Field(56), wrong);
      EXPECT_EQ(Decompress(Entries(image)[0]).status().code(), absl::StatusCode::kDataLoss)
          << name << " " << wrong;
    }
  }
}

TEST(Image, DecompressedSizeIsBounded) {
  auto image = ReadImage("mode_size");
  Store<uint64_t>(image, Field(56), kDecompressedBytesMax + 1);
  EXPECT_EQ(Decompress(Entries(image)[0]).status().code(), absl::StatusCode::kResourceExhausted);
  Store<uint64_t>(image, Field(56), kDecompressedBytesMax);
  EXPECT_EQ(Decompress(Entries(image)[0]).status().code(), absl::StatusCode::kDataLoss);
}

TEST(Image, HeaderAndPayloadSizesAreChecked) {
  const auto image = ReadImage("mode_none");
  for (const uint32_t header_bytes : {0u, 63u, 0xFFFFFFFFu}) {
    auto damaged = image;
    Store<uint32_t>(damaged, Field(4), header_bytes);
    EXPECT_FALSE(ParseFatBinaries(damaged).ok()) << header_bytes;
  }
  for (const uint64_t payload_bytes : {uint64_t{image.size()}, ~uint64_t{0}}) {
    auto damaged = image;
    Store<uint64_t>(damaged, Field(8), payload_bytes);
    EXPECT_FALSE(ParseFatBinaries(damaged).ok()) << payload_bytes;
    Store<uint64_t>(damaged, 8, payload_bytes);
    EXPECT_FALSE(ImageBytes(damaged).ok()) << payload_bytes;
  }
}

TEST(Image, EntryCountIsBounded) {
  for (const size_t count : {kEntriesMax, kEntriesMax + 1}) {
    std::vector<std::byte> image(16 + 64 * count);
    Store<uint32_t>(image, 0, kFatBinaryMagic);
    Store<uint16_t>(image, 6, 16);
    Store<uint64_t>(image, 8, 64 * count);
    for (size_t i = 0; i < count; ++i) Store<uint32_t>(image, 16 + 64 * i + 4, 64);
    EXPECT_EQ(ParseFatBinaries(image).ok(), count <= kEntriesMax);
  }
}

TEST(Image, FatBinaryCountIsBounded) {
  for (const size_t count : {kFatBinariesMax, kFatBinariesMax + 1}) {
    std::vector<std::byte> image(16 * count);
    for (size_t i = 0; i < count; ++i) {
      Store<uint32_t>(image, 16 * i, kFatBinaryMagic);
      Store<uint16_t>(image, 16 * i + 6, 16);
    }
    EXPECT_EQ(ParseFatBinaries(image).ok(), count <= kFatBinariesMax);
  }
}

TEST(Image, SaysWhatItFoundInsteadOfPtx) {
  const auto image = ReadImage("only_sm_90");
  const auto texts = SelectPtx(image, {.capability = 90});
  EXPECT_EQ(texts.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(texts.status().message()),
            "image holds only sm_90 machine code and no PTX");

  const auto plain = Decompress(Entries(image)[0]);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(std::string(SelectPtx(*plain, {.capability = 90}).status().message()),
            "image holds only sm_90 machine code and no PTX");

  const auto newer = SelectPtx(ReadImage("only_compute_100"), {.capability = 90});
  EXPECT_EQ(newer.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(newer.status().message()),
              HasSubstr("compute_100 PTX, none for compute capability 9.0"));
}

TEST(Image, FlattenedWrapperUsesTheLinkedPartFirst) {
  auto image = ReadImage("mode_balance");
  const auto other = ReadImage("other");
  image.insert(image.end(), other.begin(), other.end());
  const auto texts = SelectPtx(image, {.capability = 90});
  ASSERT_TRUE(texts.ok()) << texts.status();
  ASSERT_EQ(texts->size(), 1u);
  EXPECT_THAT((*texts)[0], HasSubstr(".entry Axpy("));
}

TEST(Image, FlattenedWrapperFallsBackToThePartsBeforeLinking) {
  auto image = ReadImage("only_sm_90");
  for (const char* name : {"other", "mode_none"}) {
    const auto part = ReadImage(name);
    image.resize(image.size() + 8);  // padding, as in a section
    image.insert(image.end(), part.begin(), part.end());
  }
  const auto texts = SelectPtx(image, {.capability = 90});
  ASSERT_TRUE(texts.ok()) << texts.status();
  ASSERT_EQ(texts->size(), 2u);
  EXPECT_THAT((*texts)[0], HasSubstr(".entry Fill("));
  EXPECT_THAT((*texts)[1], HasSubstr(".entry Axpy("));
}

TEST(Image, MissingVersionLineComesFromTheEntry) {
  auto image = ReadImage("mode_none");
  auto entries = Entries(image);
  const FatEntry& entry = entries[0];
  std::string text(reinterpret_cast<const char*>(entry.stored.data()), entry.stored.size());
  const size_t at = text.find(".version");
  ASSERT_NE(at, std::string::npos);
  const size_t line_end = text.find('\n', at);
  const std::string version_line = text.substr(at, line_end - at);
  const size_t image_at = static_cast<size_t>(entry.stored.data() - image.data()) + at;
  std::fill_n(image.begin() + image_at, version_line.size(), std::byte{' '});

  const auto made = PtxText(Entries(image)[0]);
  ASSERT_TRUE(made.ok());
  EXPECT_THAT(*made, StartsWith(version_line + "\n"));
  const auto untouched = PtxText(Entries(ReadImage("mode_size"))[0]);
  ASSERT_TRUE(untouched.ok());
  EXPECT_THAT(*untouched, Not(StartsWith(".version")));
}

TEST(Image, PtxHeaderIsReadThroughComments) {
  const auto read = [](std::string_view text) {
    const PtxHeader header = ReadPtxHeader(text);
    return std::pair(header.version, header.target);
  };
  EXPECT_EQ(read("// .version 1.0\n/* .target\n */ .version 8.7\n.target sm_90a, debug\n"),
            std::pair(87u, 90u));
  EXPECT_EQ(read(".version 9.0 .target sm_120"), std::pair(90u, 120u));
  EXPECT_EQ(read(".target sm_75"), std::pair(0u, 75u));
  EXPECT_EQ(read(".visible .entry f() {}\n.version 8.0"), std::pair(0u, 0u));
  EXPECT_EQ(read(".version 99999999999.0"), std::pair(0u, 0u));
  EXPECT_EQ(read("/* open"), std::pair(0u, 0u));
  EXPECT_EQ(read(".version"), std::pair(0u, 0u));
}

TEST(Image, PtxTextIsTakenAsItIs) {
  const auto text = BytesOf("// comment\n.version 8.0\n.target sm_80\0\0");
  EXPECT_EQ(Classify(text), ImageKind::kPtx);
  const auto texts = SelectPtx(BytesOf(std::string_view("\n .version 8.0\n\0\0", 17)), {});
  ASSERT_TRUE(texts.ok());
  EXPECT_EQ((*texts)[0], "\n .version 8.0\n");
  EXPECT_EQ(*ImageBytes(BytesOf(std::string_view(".version 8.0\0junk", 17))), 13u);
  EXPECT_FALSE(ImageBytes(BytesOf(".version 8.0")).ok());
}

TEST(Image, GarbageIsNotAnImage) {
  for (const std::string_view text :
       {std::string_view(), std::string_view("   "), std::string_view("garbage"),
        std::string_view("\0\0\0\0", 4)}) {
    EXPECT_EQ(Classify(BytesOf(text)), ImageKind::kUnknown);
    EXPECT_EQ(SelectPtx(BytesOf(text), {}).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(ImageBytes(BytesOf(text)).ok());
  }
}

}  // namespace
}  // namespace consort::image
