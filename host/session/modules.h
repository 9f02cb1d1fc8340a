// SPDX-License-Identifier: Apache-2.0
// host/session/modules.h: images, libraries, kernels and variables of one session.
//
//   ImageData... ─▶ image ─LibraryLoad─▶ library ─KernelGet─▶ kernel
//                                            └────GlobalGet─▶ variable
// Guests name all of them; a name is looked up whole (kind, generation and index), so a stale or
// foreign one is not found. Owned by the session loop; calls need the worker's context current.
// Spans in replies are valid until the next call.
#ifndef CONSORT_HOST_SESSION_MODULES_H_
#define CONSORT_HOST_SESSION_MODULES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/units.h"
#include "gen/device/driver_table.h"
#include "gen/wire/requests.h"
#include "host/session/device_time.h"
#include "host/session/image_store.h"
#include "host/session/jit_options.h"
#include "host/session/loaded_library.h"
#include "host/session/managed_variables.h"

namespace consort::host {

struct Kernel {
  CUkernel handle = nullptr;
  uint64_t library = 0;          // the guest's id
  uint64_t parameter_bytes = 0;  // of a packed parameter buffer
  bool prints = false;           // may do so
  bool direct = false;           // reaches memory by its arguments alone (kernel_reach.h)
  // The most dynamic shared memory that a launch may ask for, in bytes, where that is not left to
  // the driver, which may let others have more.
  uint32_t dynamic_shared_max = UINT32_MAX;
  std::shared_ptr<DeviceTime::Kernel> time;
  // Of a shared library: as this session has set them.
  LoadedLibrary::Attributes attributes;

  // CUDA takes a kernel for a function, cast. Source: CUDA driver API, cuLaunchKernelEx and
  // occupancy.
  CUfunction function() const { return reinterpret_cast<CUfunction>(handle); }
};

class Modules {
 public:
  // `capability` of the device: major * 10 + minor. `shared`: where to find what others have
  // loaded; null: everything is loaded anew. `kept` gets the images of what is loaded. All are
  // borrowed for this object's life.
  Modules(const device::DriverTable& driver, CUdevice device, uint32_t capability,
          SharedLibraries* shared, ImageStore* kept)
      : driver_(driver), device_(device), capability_(capability), shared_(shared), kept_(kept) {}
  // Lets go of all libraries: the device must be done with them.
  ~Modules();
  Modules(const Modules&) = delete;
  Modules& operator=(const Modules&) = delete;

  // False: no honest guest library sends this (pieces out of order, bounds); the session must end.
  bool AddImageData(const wire::ImageDataRequest& request);
  // Takes out an image that has arrived whole. CUDA_ERROR_INVALID_VALUE: there is none of that
  // name. CUDA_ERROR_INVALID_IMAGE: it has not.
  CUresult TakeImage(uint64_t id, std::vector<std::byte>* data);
  // `reach`: look at what its kernels can reach. `managed`: where its managed variables go.
  CUresult Load(uint32_t context, bool reach, const wire::LibraryLoadRequest& request,
                ManagedVariables* managed, wire::LibraryLoadReply* reply);
  // Takes the library's and its kernels' names away; the caller calls Unload with `removed` when
  // the device is done with it. CUDA_ERROR_INVALID_HANDLE.
  CUresult Remove(uint64_t id, uint64_t* removed);
  void Unload(uint64_t removed) { removed_.erase(removed); }
  // As both, for all libraries of a context: the device must be done with them.
  void RemoveContext(uint32_t context);
  // Notes where the managed variables of a library lie that was just loaded.
  void SetManaged(uint64_t id, uint64_t address, Bytes bytes);
  // Where they lie; 0: it has none, or is none.
  uint64_t ManagedOf(uint64_t id) const;

  CUresult GetKernel(const wire::KernelGetRequest& request, wire::KernelGetReply* reply);
  CUresult GetKernelNames(const wire::KernelNamesRequest& request, wire::KernelNamesReply* reply);
  CUresult SetAttribute(const wire::FunctionSetAttributeRequest& request,
                        wire::FunctionSetAttributeReply* reply);

  // Whether an image, or a part of one, is there that was not loaded yet.
  bool expects_load() const { return !images_.empty(); }

  // Whether there has been a kernel that may print.
  bool any_prints() const { return any_prints_; }

  // --- Variables

  struct Variable {
    uint64_t library = 0;
    std::string name;
    uint64_t address = 0;  // where the driver has it
    Bytes bytes = 0;
    bool told = false;  // the guest knows that address
  };
  // A library that was shared is the session's own from then on.
  CUresult GetGlobal(const wire::GlobalGetRequest& request, Variable* variable);
  // Likewise; `told` is left as it is.
  CUresult FindVariable(uint64_t library, const std::string& name, Variable* variable);
  // Whether a copy can stand for it, as far as the library's image says: see variable_copies.h.
  bool MayBeCopied(const Variable& variable);
  // The guest gets its address.
  void NoteTold(const Variable& variable);

  // --- Moving to another device

  // Where the images of all libraries are kept. kFailedPrecondition: one is not.
  struct KeptLibrary {
    uint64_t library = 0;
    KeptImage image;
  };
  absl::StatusOr<std::vector<KeptLibrary>> KeptLibraries() const;
  // All variables that the libraries have, but for managed ones, which go with their memory.
  // kFailedPrecondition: one that the driver does not find.
  absl::StatusOr<std::vector<Variable>> Variables();
  // An image that LibraryLoad names next, whole.
  void AddImage(uint64_t id, std::vector<std::byte> data);

  bool HasLibrary(uint64_t id) const { return libraries_.contains(id); }
  // The kernel, or null; until the next call that changes this object.
  const Kernel* FindKernel(uint64_t id) {
    Found& found = found_[id % found_.size()];
    if (found.kernel == nullptr || found.id != id) found = {id, Look(id)};
    return found.kernel;
  }
  // Whether [address, address + bytes) lies in one variable whose address the guest has.
  bool ContainsGlobal(uint64_t address, Bytes bytes) const;

 private:
  struct Image {
    uint64_t total = 0;
    std::vector<std::byte> data;
  };
  struct Library {
    std::shared_ptr<LoadedLibrary> loaded;
    // What `loaded` was while it was shared: it may be in use on the device.
    std::shared_ptr<LoadedLibrary> before;
    uint32_t context = 0;
    std::optional<KeptImage> image;
    uint64_t managed = 0;  // where its managed variables lie; 0: it has none
    Bytes managed_bytes = 0;
    ManagedVariables::Places managed_places;      // that the driver knows nothing of
    std::vector<uint64_t> kernels;                // names of kernels in it
    std::vector<uint64_t> globals;                // keys of globals_
    std::optional<std::set<std::string>> copied;  // MayBeCopied; nothing: not looked for yet
  };
  // Gives code to the driver.
  CUresult LoadCode(const void* code, CUlibrary* library);
  // As Load, of an image that is sound: as it is, and with its managed variables placed.
  CUresult LoadImage(std::span<const std::byte> image, LoadedLibrary* library);
  CUresult LoadPlaced(std::span<const std::byte> image, ManagedVariables* managed,
                      LoadedLibrary* library);
  // What the image tells.
  void Describe(std::span<const std::byte> image, bool reach, LoadedLibrary* library) const;
  // Has the library be the session's own, kernels and all, where it is shared.
  CUresult MakeOwn(Library* library);
  void Forget(const Library& library);
  const Kernel* Look(uint64_t id) const;
  LoadedLibrary::Attributes ReadAttributes(CUkernel kernel) const;

  const device::DriverTable& driver_;
  const CUdevice device_;
  const uint32_t capability_;
  SharedLibraries* const shared_;
  ImageStore* const kept_;
  std::map<uint64_t, Image> images_;
  Bytes image_bytes_ = 0;  // announced, of all images
  absl::flat_hash_map<uint64_t, Library> libraries_;
  struct Removed {
    std::shared_ptr<LoadedLibrary> loaded;
    std::shared_ptr<LoadedLibrary> before;
  };
  absl::flat_hash_map<uint64_t, Removed> removed_;
  uint64_t next_removed_ = 1;
  absl::flat_hash_map<uint64_t, Kernel> kernels_;
  // Kernels that were found last, by the lowest bits of their names, which guests count up.
  struct Found {
    uint64_t id = 0;
    const Kernel* kernel = nullptr;  // null: none
  };
  std::array<Found, 64> found_;  // emptied when kernels_ changes
  bool any_prints_ = false;
  std::map<uint64_t, Bytes> globals_;  // address to size

  // What replies point to.
  std::unique_ptr<JitOptions> jit_options_;
  std::string names_;
  LoadedLibrary::Attributes attributes_;
  std::vector<uint32_t> layout_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_MODULES_H_
