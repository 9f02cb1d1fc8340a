// SPDX-License-Identifier: Apache-2.0
// base/file_io.h: whole pieces of files, where read(2) and write(2) may do less or be interrupted.
// Source: pread(2), pwrite(2). Any thread; the file's own position stays.
#ifndef CONSORT_BASE_FILE_IO_H_
#define CONSORT_BASE_FILE_IO_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace consort {

// Writes all of `bytes` from `offset` (in bytes) on. False: errno says why, and some may be there.
bool WriteAt(int file, std::span<const std::byte> bytes, uint64_t offset);

// Reads from `offset` (in bytes) on: how many there were, fewer than were asked for at the file's
// end. -1: errno says why.
ssize_t ReadAt(int file, std::span<std::byte> bytes, uint64_t offset);

}  // namespace consort

#endif  // CONSORT_BASE_FILE_IO_H_
