// SPDX-License-Identifier: Apache-2.0
// guest/image.h: how far a module image extends. A program hands the driver a bare pointer to one
// of four things; to send it we need its end. Contents are the program's own memory and are trusted
// as far as the program's own driver would trust them; what the bytes mean is the host's business.
//
//   B1 43 62 46   __fatBinC_Wrapper: u32 magic, u32 version, void* fat binary, void* list. Version
//   2
//                 (-rdc=true): list is a null-terminated array of more fat binaries.
//   50 ED 55 BA   fat binary: u32 magic, u16 version, u16 header bytes, u64 payload bytes
//   7F 45 4C 46   cubin, an ELF64 file: ends with its last section or table
//   text          PTX, ends with a NUL
//
// The flat form is the fat binaries back to back, the ELF file, or the text with its NUL.
// Source: docs/ARCHITECTURE.md, module images.
#ifndef CONSORT_GUEST_IMAGE_H_
#define CONSORT_GUEST_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace consort::guest {

// The flat form of the image at `code`; empty if it is none of the above. Any thread.
std::vector<std::byte> FlattenImage(const void* code);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_IMAGE_H_
