// SPDX-License-Identifier: Apache-2.0
#include "host/session/loaded_library.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/hash/hash.h"
#include "device/image/variables.h"

namespace consort::host {

bool HasNoState(std::span<const std::byte> image) {
  const absl::StatusOr<image::Variables> declared = image::VariablesOf(image);
  if (!declared.ok()) return false;
  return std::all_of(declared->begin(), declared->end(),
                     [](const auto& one) { return image::HasNoState(one.first, one.second); });
}

LoadedLibrary::~LoadedLibrary() {
  if (handle != nullptr) driver_.cuLibraryUnload(handle);
}

LoadedLibrary::Attributes LoadedLibrary::FirstAttributes(CUkernel kernel,
                                                         const std::function<Attributes()>& read) {
  absl::MutexLock lock(&mutex_);
  const auto known = first_attributes_.find(kernel);
  if (known != first_attributes_.end()) return known->second;
  return first_attributes_.emplace(kernel, read()).first->second;
}

CUresult LoadedLibrary::AllowDynamicShared(CUkernel kernel, CUdevice device, int32_t bytes) {
  absl::MutexLock lock(&mutex_);
  const auto allowed = dynamic_shared_.find(kernel);
  if (allowed != dynamic_shared_.end() && bytes >= 0 && bytes <= allowed->second) {
    return CUDA_SUCCESS;
  }
  const CUresult result = driver_.cuKernelSetAttribute(
      CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes, kernel, device);
  if (result == CUDA_SUCCESS) dynamic_shared_[kernel] = bytes;
  return result;
}

std::shared_ptr<LoadedLibrary> SharedLibraries::Find(size_t hash,
                                                     std::span<const std::byte> image) {
  const auto [begin, end] = libraries_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    std::shared_ptr<LoadedLibrary> found = it->second.lock();
    if (found != nullptr && std::ranges::equal(found->image(), image)) return found;
  }
  return nullptr;
}

std::shared_ptr<LoadedLibrary> SharedLibraries::Share(
    const device::DriverTable& driver, std::span<const std::byte> image,
    const std::function<CUresult(LoadedLibrary*)>& load, CUresult* result) {
  const size_t hash =
      absl::HashOf(std::string_view(reinterpret_cast<const char*>(image.data()), image.size()));
  std::shared_ptr<LoadedLibrary> library;
  {
    absl::MutexLock lock(&mutex_);
    library = Find(hash, image);
  }
  *result = CUDA_SUCCESS;
  if (library == nullptr) {
    if (!HasNoState(image)) return nullptr;
    auto added =
        std::make_shared<LoadedLibrary>(driver, std::vector<std::byte>(image.begin(), image.end()));
    absl::MutexLock lock(&mutex_);
    library = Find(hash, image);
    if (library == nullptr) {
      std::erase_if(libraries_, [](const auto& one) { return one.second.expired(); });
      libraries_.emplace(hash, added);
      library = std::move(added);
    }
  }
  absl::MutexLock lock(&library->loading_);
  if (library->handle == nullptr) *result = load(library.get());
  if (*result == CUDA_SUCCESS) {
    Keep(library);
    return library;
  }
  library->handle = nullptr;
  return nullptr;
}

void SharedLibraries::Keep(const std::shared_ptr<LoadedLibrary>& library) {
  // Unloaded, if nobody else has them, when the lock is not held any more.
  std::list<std::shared_ptr<LoadedLibrary>> gone;
  if (library->image().size() > kept_max_) return;
  absl::MutexLock lock(&mutex_);
  kept_.remove(library);
  kept_.push_front(library);
  Bytes kept = 0;
  auto it = kept_.begin();
  while (it != kept_.end() && (*it)->image().size() <= kept_max_ - kept) {
    kept += (*it++)->image().size();
  }
  gone.splice(gone.begin(), kept_, it, kept_.end());
}

}  // namespace consort::host
