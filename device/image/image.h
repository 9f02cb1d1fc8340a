// SPDX-License-Identifier: Apache-2.0
// device/image/image.h: what is inside a CUDA module image: fat binary, cubin or PTX text.
//
// The bytes come from a guest and are not trusted: nothing here reads outside the span it was
// given, allocates more than kDecompressedBytesMax, or recurses. Functions are pure and thread
// safe; views in results point into the caller's span.
//
// A fat binary is a 16-byte header and its entries, back to back, little-endian:
//   0  u32 magic 0xBA55ED50   4  u16 version (1)   6  u16 header bytes   8  u64 payload bytes
// and an entry is
//   0  u16 kind (1 PTX, 2 ELF, 8 LTO-IR)           4  u32 header bytes (64 or more; skip by it)
//   8  u64 payload bytes, padded to 8              16 u32 compressed bytes, unpadded, 0 = stored
//   plain 20 u32 offset of an options block in the header, 0 = none 24 u16 code version, minor   26
//   u16 major      28 u32 architecture (90 for sm_90) 40 u64 flags 56 u64 decompressed bytes
// Several fat binaries may follow each other: the flat form of a version-2 wrapper (relocatable
// device code), first the device-linked one, then those of the objects that went into it. The
// layout was found by observation of nvcc's output (11.8 to 13.0); it has no public specification.
#ifndef CONSORT_DEVICE_IMAGE_IMAGE_H_
#define CONSORT_DEVICE_IMAGE_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/units.h"

namespace consort::image {

inline constexpr uint32_t kFatBinaryMagic = 0xBA55ED50;

// Largest entry once decompressed. NCCL 2.28 has one of 134 MB, the largest known.
inline constexpr Bytes kDecompressedBytesMax = 512 * kMiB;
// Entries in one fat binary. Libraries built for every architecture have about twenty.
inline constexpr size_t kEntriesMax = 1024;
// Fat binaries in one image: one an object file that was linked with relocatable device code.
inline constexpr size_t kFatBinariesMax = 4096;

enum class ImageKind { kUnknown, kFatBinary, kElf, kPtx };

// What `image` looks like from its first bytes; kPtx for anything that begins like PTX text (white
// space, a comment or a directive).
ImageKind Classify(std::span<const std::byte> image);

enum class EntryKind { kPtx, kElf, kOther };
enum class Compression { kNone, kLz4Block, kZstd };

struct FatEntry {
  EntryKind kind = EntryKind::kOther;
  uint32_t architecture = 0;           // 90 for sm_90 or compute_90
  bool architecture_specific = false;  // sm_90a: runs on exactly that architecture
  bool family_specific = false;        // sm_120f: runs on that major version, same or newer minor
  uint32_t version_major = 0;          // of the PTX language or of the ELF flavour
  uint32_t version_minor = 0;
  Compression compression = Compression::kNone;
  Bytes decompressed_bytes = 0;        // as declared; what Decompress returns has exactly this size
  std::span<const std::byte> stored;   // as stored, padding removed if compressed
  std::span<const std::byte> options;  // the entry's options block, or empty
};

struct FatBinary {
  std::vector<FatEntry> entries;  // in file order
};

// The fat binaries in `image`, in order. kInvalidArgument: not a well-formed fat binary, or more
// than the bounds above; says where.
absl::StatusOr<std::vector<FatBinary>> ParseFatBinaries(std::span<const std::byte> image);

// Bytes that the image at the start of `image` occupies: what a driver that is given only a pointer
// would read. Never more than image.size(). For PTX the terminating NUL is included and must exist.
// kInvalidArgument: unknown kind, or it claims more than there is.
absl::StatusOr<size_t> ImageBytes(std::span<const std::byte> image);

struct Target {
  uint32_t capability = 90;      // compute capability, major * 10 + minor
  bool machine_code = false;     // may run ELF entries
  bool prefer_portable = false;  // take architecture-specific PTX only if there is no other
};

// The entry that a device of `target` should use: machine code of the same major version with the
// newest minor version not above the device's, else the newest PTX not above it; entries marked a
// or f only where they belong. kNotFound: nothing usable; the message says what there is.
absl::StatusOr<const FatEntry*> ChooseEntry(std::span<const FatEntry> entries,
                                            const Target& target);

// The plain bytes of `entry`. kDataLoss: does not decompress to the declared size.
// kResourceExhausted: declares more than kDecompressedBytesMax.
absl::StatusOr<std::vector<std::byte>> Decompress(const FatEntry& entry);

// PTX of `entry`, which is a kPtx entry: decompressed, trailing NULs removed, and with a `.version`
// line made from the entry's header where the text has none. Errors as Decompress.
absl::StatusOr<std::string> PtxText(const FatEntry& entry);

// What a PTX text says of itself. Source: PTX ISA 9.0, module directives .version and .target.
struct PtxHeader {
  uint32_t version = 0;  // major * 10 + minor
  uint32_t target = 0;   // 90 for sm_90
};

// The directives at the start of `text`, each 0 where it is missing or unreadable.
PtxHeader ReadPtxHeader(std::string_view text);

// The PTX that a device without machine code should compile for `image`, one text a translation
// unit: one for PTX text and for an ordinary fat binary. For several fat binaries back to back it
// is the first one's, which is the device-linked whole, or else one text for each of the others
// that has any. kNotFound: nothing usable, with what was found instead ("image holds only sm_90
// machine code and no PTX"). kInvalidArgument, kDataLoss, kResourceExhausted: as above.
absl::StatusOr<std::vector<std::string>> SelectPtx(std::span<const std::byte> image,
                                                   const Target& target);

}  // namespace consort::image

#endif  // CONSORT_DEVICE_IMAGE_IMAGE_H_
