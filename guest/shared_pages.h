// SPDX-License-Identifier: Apache-2.0
// guest/shared_pages.h: makes memory that a program already has shared, in place, and private
// again: how registered memory comes within the device's reach.
//
//   private, anonymous ─ReplaceWithShared─▶ mapping of a memfd ─ReplaceWithPrivate─▶ as before
//
// The contents stay. Each piece is copied and then put in place in one step, so that other threads
// read right values all the while; what they write into a piece while it is copied is lost. In a
// forked child the pages are private copies, as memory of a process is. Any thread, one at a time.
#ifndef CONSORT_GUEST_SHARED_PAGES_H_
#define CONSORT_GUEST_SHARED_PAGES_H_

#include <cstdint>

namespace consort::guest {

inline constexpr uint64_t kPageBytes = 4096;

// Whether [start, start + bytes) is all ordinary memory of this process: private, anonymous,
// readable and writable, no stack. Source: proc(5), /proc/self/maps.
bool IsOrdinaryMemory(uint64_t start, uint64_t bytes);

// Opens the file that all of [start, start + bytes) is a shared, writable mapping of, and says
// where in it the range begins. -1: it is none, or the file cannot be opened any more. The caller
// closes it.
int OpenSharedFile(uint64_t start, uint64_t bytes, uint64_t* offset);

// Whether this process has a second thread, or might have.
bool HasThreads();

// Puts the memory `fd`, which is also mapped at `view`, in place of [start, start + bytes), whole
// pages. Keeps `fd`, which becomes this file's, until ReplaceWithPrivate. False: the process has no
// more mappings; everything is as before, and `fd` is closed.
bool ReplaceWithShared(uint64_t start, uint64_t bytes, int fd, void* view);

// Ends what ReplaceWithShared began at `start`. Pages that the program has replaced meanwhile are
// left alone.
void ReplaceWithPrivate(uint64_t start);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_SHARED_PAGES_H_
