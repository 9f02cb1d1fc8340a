// SPDX-License-Identifier: Apache-2.0
#include "guest/shared_pages.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "guest/mutex.h"

namespace consort::guest {
namespace {

// Copied and put in place together: long enough that a GiB takes 16,384 steps, short enough that
// the moment in which a write of another thread is lost is some microseconds.
constexpr uint64_t kPieceBytes = 64 * 1024;

struct SharedRange {
  uint64_t start;
  uint64_t bytes;
  int fd;
};

Mutex mutex;
std::vector<SharedRange>* ranges = nullptr;  // guarded by `mutex`; never freed
pthread_once_t start_once = PTHREAD_ONCE_INIT;

void* Pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// A line of /proc/self/maps.
struct Mapping {
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t offset = 0;
  unsigned device_major = 0;
  unsigned device_minor = 0;
  uint64_t inode = 0;
  char permissions[8] = {};
  const char* name = nullptr;
};

// Whether mappings of which `matches(const Mapping&)` holds cover all of the range.
template <class Matches>
bool AllMapped(uint64_t start, uint64_t bytes, Matches matches) {
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) return false;
  char* line = nullptr;
  size_t capacity = 0;
  uint64_t reached = start;
  // Lines are in order of address.
  while (reached < start + bytes && getline(&line, &capacity, maps) > 0) {
    Mapping mapping;
    int name = 0;
    if (sscanf(line, "%lx-%lx %7s %lx %x:%x %lu %n", &mapping.start, &mapping.end,
               mapping.permissions, &mapping.offset, &mapping.device_major, &mapping.device_minor,
               &mapping.inode, &name) != 7) {
      break;
    }
    if (mapping.end <= reached) continue;
    line[strcspn(line, "\n")] = '\0';
    mapping.name = line + name;
    if (mapping.start > reached || !matches(mapping)) break;
    reached = mapping.end;
  }
  free(line);
  fclose(maps);
  return reached >= start + bytes;
}

// The mapping's file. By its name, unless another file has that by now; else by the mapping itself,
// which takes a privilege (proc(5), /proc/pid/map_files).
int OpenMapped(const Mapping& mapping) {
  struct statx about;
  int file = open(mapping.name, O_RDWR | O_CLOEXEC);
  if (file >= 0 && statx(file, "", AT_EMPTY_PATH, STATX_INO, &about) == 0 &&
      about.stx_ino == mapping.inode && about.stx_dev_major == mapping.device_major &&
      about.stx_dev_minor == mapping.device_minor) {
    return file;
  }
  if (file >= 0) close(file);
  char name[64];
  snprintf(name, sizeof name, "/proc/self/map_files/%lx-%lx", mapping.start, mapping.end);
  return open(name, O_RDWR | O_CLOEXEC);
}

bool IsShared(const SharedRange& range) {
  return AllMapped(range.start, range.bytes, [](const Mapping& mapping) {
    return strcmp(mapping.permissions, "rw-s") == 0 && strncmp(mapping.name, "/memfd:", 7) == 0;
  });
}

void BeforeFork() { mutex.Lock(); }
void InParent() { mutex.Unlock(); }
void InChild() {
  for (const SharedRange& range : *ranges) {
    // Fails only where the memory is gone anyway.
    mmap(Pointer(range.start), range.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
         range.fd, 0);
  }
  mutex.Unlock();
}

void Start() {
  ranges = new std::vector<SharedRange>;
  pthread_atfork(BeforeFork, InParent, InChild);
}

void MakePrivate(uint64_t start, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kPieceBytes) {
    const uint64_t piece = bytes - at < kPieceBytes ? bytes - at : kPieceBytes;
    void* fresh = mmap(nullptr, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) return;  // the rest stays shared, which only a fork would notice
    memcpy(fresh, Pointer(start + at), piece);
    if (mremap(fresh, piece, piece, MREMAP_MAYMOVE | MREMAP_FIXED, Pointer(start + at)) ==
        MAP_FAILED) {
      munmap(fresh, piece);
      return;
    }
  }
}

}  // namespace

bool IsOrdinaryMemory(uint64_t start, uint64_t bytes) {
  return AllMapped(start, bytes, [](const Mapping& mapping) {
    return strcmp(mapping.permissions, "rw-p") == 0 && mapping.inode == 0 &&
           (*mapping.name == '\0' || strcmp(mapping.name, "[heap]") == 0 ||
            strncmp(mapping.name, "[anon:", 6) == 0);
  });
}

int OpenSharedFile(uint64_t start, uint64_t bytes, uint64_t* offset) {
  int file = -1;
  const bool mapped = AllMapped(start, bytes, [&](const Mapping& mapping) {
    if (strcmp(mapping.permissions, "rw-s") != 0 || mapping.end < start + bytes) return false;
    *offset = mapping.offset + (start - mapping.start);
    file = OpenMapped(mapping);
    return file >= 0;
  });
  return mapped ? file : -1;
}

bool HasThreads() {
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return true;
  int count = 0;
  while (const dirent* entry = readdir(tasks)) count += entry->d_name[0] != '.' ? 1 : 0;
  closedir(tasks);
  return count != 1;
}

bool ReplaceWithShared(uint64_t start, uint64_t bytes, int fd, void* view) {
  pthread_once(&start_once, Start);
  MutexLock lock(&mutex);
  for (uint64_t at = 0; at < bytes; at += kPieceBytes) {
    const uint64_t piece = bytes - at < kPieceBytes ? bytes - at : kPieceBytes;
    memcpy(static_cast<char*>(view) + at, Pointer(start + at), piece);
    if (mmap(Pointer(start + at), piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
             static_cast<off_t>(at)) == MAP_FAILED) {
      MakePrivate(start, at);
      close(fd);
      return false;
    }
  }
  ranges->push_back({start, bytes, fd});
  return true;
}

void ReplaceWithPrivate(uint64_t start) {
  pthread_once(&start_once, Start);
  MutexLock lock(&mutex);
  for (size_t i = 0; i < ranges->size(); ++i) {
    const SharedRange range = (*ranges)[i];
    if (range.start != start) continue;
    if (IsShared(range)) MakePrivate(range.start, range.bytes);
    close(range.fd);
    ranges->erase(ranges->begin() + i);
    return;
  }
}

}  // namespace consort::guest
