// SPDX-License-Identifier: Apache-2.0
// host/session/loaded_library.h: code that the driver has loaded, for one session or, where the
// image is the same and has no state, once for all sessions of a worker.
//
//   Modules of session A ─┐
//   Modules of session B ─┴─ SharedLibraries::Share(image) ──▶ LoadedLibrary ──▶ the driver's
//
// Loading code takes device memory, and it keeps everybody's calls waiting until the device has
// done all that it was given (docs/PERFORMANCE.md): so who comes second neither waits nor takes
// any. Unloading it keeps them waiting likewise, so what was used last stays when its last session
// ends, for the next one. What a session sets on its kernels stays its own (Modules).
#ifndef CONSORT_HOST_SESSION_LOADED_LIBRARY_H_
#define CONSORT_HOST_SESSION_LOADED_LIBRARY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/units.h"
#include "device/image/printing.h"
#include "gen/device/driver_table.h"

namespace consort::host {

// A library of the driver and what its image tells. Unloaded with its last holder: the device is
// done with it for each that lets go. Immutable once it is loaded, but for what the driver knows of
// its kernels. Thread safe from then on.
class LoadedLibrary {
 public:
  // What the driver says of a kernel, by CUfunction_attribute; INT32_MIN: nothing.
  using Attributes = std::vector<int32_t>;

  // `driver` is borrowed. `image`: of a library that is shared; else empty.
  explicit LoadedLibrary(const device::DriverTable& driver, std::vector<std::byte> image = {})
      : driver_(driver), image_(std::move(image)) {}
  ~LoadedLibrary();
  LoadedLibrary(const LoadedLibrary&) = delete;
  LoadedLibrary& operator=(const LoadedLibrary&) = delete;

  CUlibrary handle = nullptr;    // null: not loaded
  std::set<std::string> direct;  // names of kernels that reach memory by their arguments alone
  image::Printing printing;
  bool system_atomics = false;  // its code may have some

  bool shared() const { return !image_.empty(); }
  std::span<const std::byte> image() const { return image_; }

  // --- Of a library that is shared

  // As the driver said before anybody set one; `read` asks it.
  Attributes FirstAttributes(CUkernel kernel, const std::function<Attributes()>& read)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets the driver launch the kernel with so much dynamic shared memory; what others were let have
  // stays. Its errors.
  CUresult AllowDynamicShared(CUkernel kernel, CUdevice device, int32_t bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class SharedLibraries;

  const device::DriverTable& driver_;
  const std::vector<std::byte> image_;
  absl::Mutex loading_;  // held by who loads it
  absl::Mutex mutex_;
  std::map<CUkernel, Attributes> first_attributes_ ABSL_GUARDED_BY(mutex_);
  std::map<CUkernel, int32_t> dynamic_shared_ ABSL_GUARDED_BY(mutex_);  // that the driver allows
};

// Whether one copy of the image's code is as good as several: it has no variables, but for what
// compilers make that has no state (texts, empty tags), nor any that cannot be told.
bool HasNoState(std::span<const std::byte> image);

// The libraries that a worker's sessions share. Thread safe; a member of the worker's device.
class SharedLibraries {
 public:
  // `kept_max`: of images that stay loaded though no session has them, together.
  explicit SharedLibraries(Bytes kept_max) : kept_max_(kept_max) {}

  // The library of the image: the one that somebody holds, or else one that `load` loads; others
  // who want it wait for that. Null: what `load` said is in `result`; that is CUDA_SUCCESS where
  // the image has state, so that nothing of it is shared.
  std::shared_ptr<LoadedLibrary> Share(const device::DriverTable& driver,
                                       std::span<const std::byte> image,
                                       const std::function<CUresult(LoadedLibrary*)>& load,
                                       CUresult* result) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Null: nobody holds one.
  std::shared_ptr<LoadedLibrary> Find(size_t hash, std::span<const std::byte> image)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notes that it is used now.
  void Keep(const std::shared_ptr<LoadedLibrary>& library) ABSL_LOCKS_EXCLUDED(mutex_);

  const Bytes kept_max_;
  absl::Mutex mutex_;
  // Those that were used last, the latest first, of kept_max_ together.
  std::list<std::shared_ptr<LoadedLibrary>> kept_ ABSL_GUARDED_BY(mutex_);
  // By a hash of the image; the image itself decides.
  std::multimap<size_t, std::weak_ptr<LoadedLibrary>> libraries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_LOADED_LIBRARY_H_
