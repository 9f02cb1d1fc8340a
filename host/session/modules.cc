// SPDX-License-Identifier: Apache-2.0
#include "host/session/modules.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "device/driver/driver_loader.h"
#include "device/image/image.h"
#include "device/image/system_atomics.h"
#include "device/image/variables.h"
#include "host/limits.h"
#include "host/session/kernel_reach.h"
#include "vmsock/deadline.h"

namespace consort::host {
namespace {

std::span<const std::byte> AsBytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// A name as a C string; empty optional if it is none.
std::optional<std::string> NameText(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() > kNameBytesMax) return std::nullopt;
  std::string name(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (name.find('\0') != std::string::npos) return std::nullopt;
  return name;
}

// __fatBinC_Wrapper_t, version 2: what a driver takes for relocatable device code. Layout as in
// guest/image.h.
struct Wrapper {
  uint32_t magic = 0x466243B1;
  uint32_t version = 2;
  const void* linked = nullptr;
  const void* const* parts = nullptr;  // ended by a null
};
static_assert(sizeof(Wrapper) == 24);

// A guest's image in a form that a driver may be given. A driver gets a bare pointer and trusts the
// lengths in the image; and it takes bytes that begin like a Wrapper for one and follows the
// pointers in it. So only an image that states its own extent truly gets through.
class DriverImage {
 public:
  // Borrows `bytes`. Nothing: no image, or one that claims more than there is.
  static std::optional<DriverImage> Check(std::span<const std::byte> bytes) {
    absl::StatusOr<DriverImage> checked = CheckAll(bytes);
    if (checked.ok()) return *std::move(checked);
    VLOG(1) << "module image of " << bytes.size() << " bytes refused: " << checked.status();
    return std::nullopt;
  }

  // For the driver; valid while this object is and does not move.
  const void* get() {
    if (parts_.empty()) return first_;
    if (parts_.back() != nullptr) parts_.push_back(nullptr);
    wrapper_.linked = first_;
    wrapper_.parts = parts_.data();
    return &wrapper_;
  }

 private:
  static absl::StatusOr<DriverImage> CheckAll(std::span<const std::byte> bytes) {
    DriverImage checked;
    checked.first_ = bytes.data();
    while (true) {
      ASSIGN_OR_RETURN(const size_t extent, image::ImageBytes(bytes));
      if (image::Classify(bytes) != image::ImageKind::kFatBinary || extent == bytes.size()) break;
      bytes = bytes.subspan(extent);
      if (checked.parts_.size() == image::kFatBinariesMax) {
        return absl::InvalidArgumentError("too many fat binaries in one image");
      }
      checked.parts_.push_back(bytes.data());
    }
    return checked;
  }

  const void* first_ = nullptr;
  std::vector<const void*> parts_;  // the fat binaries after the first
  Wrapper wrapper_;
};

}  // namespace

Modules::~Modules() = default;

bool Modules::AddImageData(const wire::ImageDataRequest& request) {
  auto it = images_.find(request.image);
  if (request.offset == 0) {
    if (it != images_.end() || images_.size() >= kImagesPerSession) return false;
    if (request.total == 0 || request.total > kImageBytesMax ||
        request.total > kImageBytesPerSession - image_bytes_) {
      return false;
    }
    image_bytes_ += request.total;
    it = images_.emplace(request.image, Image{request.total, {}}).first;
  }
  if (it == images_.end()) return false;
  Image& image = it->second;
  if (request.total != image.total || request.offset != image.data.size() ||
      request.data.size() > image.total - image.data.size()) {
    return false;
  }
  // Grows as data comes, so that a guest which only announces has nothing of it.
  image.data.insert(image.data.end(), request.data.begin(), request.data.end());
  return true;
}

CUresult Modules::TakeImage(uint64_t id, std::vector<std::byte>* data) {
  const auto found = images_.find(id);
  if (found == images_.end()) return CUDA_ERROR_INVALID_VALUE;
  Image image = std::move(found->second);
  image_bytes_ -= image.total;
  images_.erase(found);
  if (image.data.size() != image.total) return CUDA_ERROR_INVALID_IMAGE;
  *data = std::move(image.data);
  return CUDA_SUCCESS;
}

CUresult Modules::LoadCode(const void* code, CUlibrary* library) {
  CUresult result =
      driver_.cuLibraryLoadData(library, code, jit_options_->options(), jit_options_->values(),
                                jit_options_->count(), nullptr, nullptr, 0);
  // The driver compiles when the library's module is first asked for; and only then it writes the
  // logs, into memory that must be there still.
  if (result == CUDA_SUCCESS && jit_options_->has_logs()) {
    CUmodule module = nullptr;
    result = driver_.cuLibraryGetModule(&module, *library);
    if (result != CUDA_SUCCESS) driver_.cuLibraryUnload(std::exchange(*library, nullptr));
  }
  return result;
}

CUresult Modules::LoadImage(std::span<const std::byte> image, LoadedLibrary* library) {
  std::optional<DriverImage> checked = DriverImage::Check(image);
  return checked.has_value() ? LoadCode(checked->get(), &library->handle)
                             : CUDA_ERROR_INVALID_IMAGE;
}

CUresult Modules::LoadPlaced(std::span<const std::byte> image, ManagedVariables* managed,
                             LoadedLibrary* library) {
  const std::optional<std::string> placed = managed->PlaceIn(image, capability_);
  if (!placed.has_value()) return CUDA_ERROR_NOT_FOUND;
  CUmodule module = nullptr;
  CUresult result = LoadCode(placed->c_str(), &library->handle);
  if (result == CUDA_SUCCESS) result = driver_.cuLibraryGetModule(&module, library->handle);
  if (result == CUDA_SUCCESS) return result;
  LOG(WARNING) << "managed variables stay the driver's, which does not take them as placed: "
               << device::ResultName(driver_, result);
  managed->Drop();
  if (library->handle != nullptr) {
    driver_.cuLibraryUnload(std::exchange(library->handle, nullptr));
  }
  return result;
}

void Modules::Describe(std::span<const std::byte> image, bool reach, LoadedLibrary* library) const {
  if (reach) library->direct = DirectKernels(image);
  library->printing = image::FindPrinting(
      image, {.capability = capability_, .machine_code = true, .prefer_portable = false});
  library->system_atomics = image::MayHaveSystemAtomics(image, capability_);
}

CUresult Modules::Load(uint32_t context, bool reach, const wire::LibraryLoadRequest& request,
                       ManagedVariables* managed, wire::LibraryLoadReply* reply) {
  std::vector<std::byte> image;
  if (const CUresult taken = TakeImage(request.image, &image); taken != CUDA_SUCCESS) return taken;
  if (!DriverImage::Check(image).has_value()) return CUDA_ERROR_INVALID_IMAGE;
  if (libraries_.contains(request.library)) return CUDA_ERROR_INVALID_HANDLE;
  if (libraries_.size() >= kHandlesPerKind) return CUDA_ERROR_OUT_OF_MEMORY;

  jit_options_ = std::make_unique<JitOptions>(request.jit_options);
  jit_options_->AddLogs(request.info_log_bytes, request.error_log_bytes);
  Library library;
  library.context = context;
  const Nanos began = MonotonicNow();
  CUresult result = CUDA_SUCCESS;
  if (shared_ != nullptr && jit_options_->count() == 0) {
    const auto load = [&](LoadedLibrary* loaded) {
      const CUresult code = LoadImage(loaded->image(), loaded);
      if (code == CUDA_SUCCESS) Describe(loaded->image(), reach, loaded);
      return code;
    };
    library.loaded = shared_->Share(driver_, image, load, &result);
  }
  if (result == CUDA_SUCCESS && library.loaded == nullptr) {
    library.loaded = std::make_shared<LoadedLibrary>(driver_);
    result = LoadPlaced(image, managed, library.loaded.get());
    if (result == CUDA_SUCCESS) {
      library.managed_places = managed->TakePlaces();
    } else {
      result = LoadImage(image, library.loaded.get());
    }
    if (result == CUDA_SUCCESS) Describe(image, reach, library.loaded.get());
  }
  if (result == CUDA_SUCCESS && request.at_once != 0) {
    CUmodule module = nullptr;
    result = driver_.cuLibraryGetModule(&module, library.loaded->handle);
  }
  reply->wall_milliseconds =
      static_cast<float>(MonotonicNow() - began) / static_cast<float>(kMillisecond);
  reply->info_log = jit_options_->info_log();
  reply->error_log = jit_options_->error_log();
  if (result != CUDA_SUCCESS) return result;
  library.image = kept_->Keep(image);
  libraries_.emplace(request.library, std::move(library));
  return result;
}

CUresult Modules::MakeOwn(Library* library) {
  if (!library->loaded->shared()) return CUDA_SUCCESS;
  auto own = std::make_shared<LoadedLibrary>(driver_);
  jit_options_ = std::make_unique<JitOptions>(std::span<const std::byte>());
  CUresult result = LoadImage(library->loaded->image(), own.get());
  if (result != CUDA_SUCCESS) return result;
  std::vector<CUkernel> handles;
  for (const uint64_t id : library->kernels) {
    const Kernel& kernel = kernels_.at(id);
    const char* name = nullptr;
    CUkernel handle = nullptr;
    result = driver_.cuKernelGetName(&name, kernel.handle);
    if (result == CUDA_SUCCESS) result = driver_.cuLibraryGetKernel(&handle, own->handle, name);
    const auto read = [&] { return ReadAttributes(kernel.handle); };
    const LoadedLibrary::Attributes first = library->loaded->FirstAttributes(kernel.handle, read);
    for (size_t i = 0; i < first.size() && result == CUDA_SUCCESS; ++i) {
      if (kernel.attributes[i] == first[i]) continue;
      result = driver_.cuKernelSetAttribute(static_cast<CUfunction_attribute>(i),
                                            kernel.attributes[i], handle, device_);
    }
    if (result != CUDA_SUCCESS) return result;
    handles.push_back(handle);
  }
  own->direct = library->loaded->direct;
  own->printing = library->loaded->printing;
  own->system_atomics = library->loaded->system_atomics;
  for (size_t i = 0; i < handles.size(); ++i) {
    Kernel& kernel = kernels_.at(library->kernels[i]);
    kernel.handle = handles[i];
    kernel.attributes.clear();
    kernel.dynamic_shared_max = UINT32_MAX;
  }
  library->before = std::exchange(library->loaded, std::move(own));
  return CUDA_SUCCESS;
}

void Modules::Forget(const Library& library) {
  if (library.image.has_value()) kept_->Drop(*library.image);
  found_.fill({});
  for (const uint64_t kernel : library.kernels) kernels_.erase(kernel);
  for (const uint64_t global : library.globals) globals_.erase(global);
}

CUresult Modules::Remove(uint64_t id, uint64_t* removed) {
  const auto it = libraries_.find(id);
  if (it == libraries_.end()) return CUDA_ERROR_INVALID_HANDLE;
  *removed = next_removed_++;
  removed_[*removed] = {it->second.loaded, it->second.before};
  Forget(it->second);
  libraries_.erase(it);
  return CUDA_SUCCESS;
}

void Modules::RemoveContext(uint32_t context) {
  for (auto it = libraries_.begin(); it != libraries_.end();) {
    if (it->second.context == context) {
      Forget(it->second);
      libraries_.erase(it++);
    } else {
      ++it;
    }
  }
}

void Modules::SetManaged(uint64_t id, uint64_t address, Bytes bytes) {
  const auto found = libraries_.find(id);
  if (found == libraries_.end()) return;
  found->second.managed = address;
  found->second.managed_bytes = bytes;
}

uint64_t Modules::ManagedOf(uint64_t id) const {
  const auto found = libraries_.find(id);
  return found == libraries_.end() ? 0 : found->second.managed;
}

LoadedLibrary::Attributes Modules::ReadAttributes(CUkernel kernel) const {
  LoadedLibrary::Attributes attributes(CU_FUNC_ATTRIBUTE_MAX, std::numeric_limits<int32_t>::min());
  for (int attribute = 0; attribute < CU_FUNC_ATTRIBUTE_MAX; ++attribute) {
    int value = 0;
    if (driver_.cuKernelGetAttribute(&value, static_cast<CUfunction_attribute>(attribute), kernel,
                                     device_) == CUDA_SUCCESS) {
      attributes[static_cast<size_t>(attribute)] = value;
    }
  }
  return attributes;
}

CUresult Modules::GetKernel(const wire::KernelGetRequest& request, wire::KernelGetReply* reply) {
  const auto library = libraries_.find(request.library);
  if (library == libraries_.end()) return CUDA_ERROR_INVALID_HANDLE;
  LoadedLibrary& loaded = *library->second.loaded;
  const std::optional<std::string> name = NameText(request.name);
  if (!name.has_value()) return CUDA_ERROR_NOT_FOUND;
  if (kernels_.contains(request.kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (kernels_.size() >= kHandlesPerKind) return CUDA_ERROR_OUT_OF_MEMORY;
  Kernel kernel;
  const CUresult result = driver_.cuLibraryGetKernel(&kernel.handle, loaded.handle, name->c_str());
  if (result != CUDA_SUCCESS) return result;
  kernel.library = request.library;
  kernel.prints = loaded.printing.May(*name);
  any_prints_ |= kernel.prints;
  kernel.direct = loaded.direct.contains(*name);
  kernel.time = std::make_shared<DeviceTime::Kernel>();
  layout_.clear();
  size_t offset = 0;
  size_t bytes = 0;
  // The driver refuses the first index past the last parameter.
  for (size_t index = 0;
       driver_.cuKernelGetParamInfo(kernel.handle, index, &offset, &bytes) == CUDA_SUCCESS;
       ++index) {
    layout_.push_back(static_cast<uint32_t>(offset));
    layout_.push_back(static_cast<uint32_t>(bytes));
    kernel.parameter_bytes = std::max<uint64_t>(kernel.parameter_bytes, offset + bytes);
  }
  const auto read = [&] { return ReadAttributes(kernel.handle); };
  attributes_ = loaded.shared() ? loaded.FirstAttributes(kernel.handle, read) : read();
  if (loaded.shared()) {
    kernel.attributes = attributes_;
    const int32_t allowed = attributes_[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];
    if (allowed >= 0) kernel.dynamic_shared_max = static_cast<uint32_t>(allowed);
  }
  reply->attributes = std::as_bytes(std::span(attributes_));
  reply->layout = std::as_bytes(std::span(layout_));
  reply->prints = kernel.prints ? 1 : 0;
  if (loaded.system_atomics) reply->system_atomics = library->second.managed != 0 ? 2 : 1;
  library->second.kernels.push_back(request.kernel);
  found_.fill({});
  kernels_.emplace(request.kernel, std::move(kernel));
  return CUDA_SUCCESS;
}

CUresult Modules::GetKernelNames(const wire::KernelNamesRequest& request,
                                 wire::KernelNamesReply* reply) {
  const auto library = libraries_.find(request.library);
  if (library == libraries_.end()) return CUDA_ERROR_INVALID_HANDLE;
  unsigned int count = 0;
  CUresult result = driver_.cuLibraryGetKernelCount(&count, library->second.loaded->handle);
  if (result != CUDA_SUCCESS) return result;
  std::vector<CUkernel> kernels(count);
  if (count != 0) {
    result =
        driver_.cuLibraryEnumerateKernels(kernels.data(), count, library->second.loaded->handle);
    if (result != CUDA_SUCCESS) return result;
  }
  names_.clear();
  for (const CUkernel kernel : kernels) {
    const char* name = nullptr;
    result = driver_.cuKernelGetName(&name, kernel);
    if (result != CUDA_SUCCESS) return result;
    names_.append(name);
    names_.push_back('\0');
    if (names_.size() > wire::kBulkBytesMax) {
      LOG(WARNING) << "names of " << count << " kernels do not fit one reply";
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  reply->names = AsBytes(names_);
  return CUDA_SUCCESS;
}

CUresult Modules::GetGlobal(const wire::GlobalGetRequest& request, Variable* variable) {
  if (!libraries_.contains(request.library)) return CUDA_ERROR_INVALID_HANDLE;
  const std::optional<std::string> name = NameText(request.name);
  if (!name.has_value()) return CUDA_ERROR_NOT_FOUND;
  const CUresult result = FindVariable(request.library, *name, variable);
  if (result == CUDA_SUCCESS) variable->told = globals_.contains(variable->address);
  return result;
}

void Modules::NoteTold(const Variable& variable) {
  if (globals_.emplace(variable.address, variable.bytes).second) {
    libraries_.at(variable.library).globals.push_back(variable.address);
  }
}

bool Modules::MayBeCopied(const Variable& variable) {
  Library& library = libraries_.at(variable.library);
  if (!library.copied.has_value()) {
    library.copied.emplace();
    std::optional<std::vector<std::byte>> image;
    if (library.image.has_value()) image = ReadKeptImage(kept_->fd(), *library.image);
    if (!image.has_value()) return false;
    const absl::StatusOr<image::Variables> declared = image::VariablesOf(*image);
    if (!declared.ok()) return false;
    for (const auto& [name, one] : *declared) {
      if ((one.constant || one.alone) && !one.managed) library.copied->insert(name);
    }
  }
  return library.copied->contains(variable.name);
}

CUresult Modules::FindVariable(uint64_t library, const std::string& name, Variable* variable) {
  const auto found = libraries_.find(library);
  if (found == libraries_.end()) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult own = MakeOwn(&found->second); own != CUDA_SUCCESS) return own;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  const auto placed = found->second.managed_places.find(name);
  if (placed != found->second.managed_places.end()) {
    address = placed->second.address;
    bytes = placed->second.bytes;
  } else if (const CUresult result = driver_.cuLibraryGetGlobal(
                 &address, &bytes, found->second.loaded->handle, name.c_str());
             result != CUDA_SUCCESS) {
    return result;
  }
  variable->library = library;
  variable->name = name;
  variable->address = address;
  variable->bytes = bytes;
  return CUDA_SUCCESS;
}

absl::StatusOr<std::vector<Modules::KeptLibrary>> Modules::KeptLibraries() const {
  std::vector<KeptLibrary> kept;
  for (const auto& [id, library] : libraries_) {
    if (!library.image.has_value()) {
      return absl::FailedPreconditionError(
          "a module whose image is not kept, as they are too many");
    }
    kept.push_back({id, *library.image});
  }
  return kept;
}

absl::StatusOr<std::vector<Modules::Variable>> Modules::Variables() {
  std::vector<Variable> variables;
  ASSIGN_OR_RETURN(const std::vector<KeptLibrary> libraries, KeptLibraries());
  for (const KeptLibrary& library : libraries) {
    if (libraries_.at(library.library).loaded->shared()) continue;  // has no state
    const auto image = ReadKeptImage(kept_->fd(), library.image);
    if (!image.has_value()) return absl::FailedPreconditionError("a module's image is lost");
    ASSIGN_OR_RETURN(const image::Variables declared, image::VariablesOf(*image));
    for (const auto& [name, one] : declared) {
      Variable variable;
      const CUresult result = FindVariable(library.library, name, &variable);
      if (result == CUDA_SUCCESS) {
        const Library& owner = libraries_.at(library.library);
        if (variable.address - owner.managed < owner.managed_bytes) continue;
        variable.told = globals_.contains(variable.address);
        if (variable.bytes != 0) variables.push_back(std::move(variable));
        continue;
      }
      // Texts that a compiler has made, and tags, which have no state.
      if (result == CUDA_ERROR_NOT_FOUND &&
          (name.starts_with('$') || name.starts_with("__unnamed_") || one.bytes == 1)) {
        continue;
      }
      return absl::FailedPreconditionError(absl::StrCat("the module variable ", name,
                                                        ", which the driver does not find (",
                                                        device::ResultName(driver_, result), ")"));
    }
  }
  return variables;
}

void Modules::AddImage(uint64_t id, std::vector<std::byte> data) {
  image_bytes_ += data.size();
  images_[id] = Image{data.size(), std::move(data)};
}

CUresult Modules::SetAttribute(const wire::FunctionSetAttributeRequest& request,
                               wire::FunctionSetAttributeReply* reply) {
  const auto found = kernels_.find(request.kernel);
  if (found == kernels_.end()) return CUDA_ERROR_INVALID_HANDLE;
  Kernel& kernel = found->second;
  Library& library = libraries_.at(kernel.library);
  const auto attribute = static_cast<CUfunction_attribute>(request.attribute);
  const bool dynamic_shared = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  // A hint, which programs with the same code are taken to give alike.
  const bool carveout = attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
  CUresult result = CUDA_SUCCESS;
  if (!dynamic_shared && !carveout) result = MakeOwn(&library);
  if (result != CUDA_SUCCESS) return result;
  if (library.loaded->shared() && dynamic_shared) {
    result = library.loaded->AllowDynamicShared(kernel.handle, device_, request.value);
  } else {
    result = driver_.cuKernelSetAttribute(attribute, request.value, kernel.handle, device_);
  }
  if (result != CUDA_SUCCESS) return result;
  if (library.loaded->shared()) {
    kernel.attributes[static_cast<size_t>(attribute)] = request.value;
    if (dynamic_shared) kernel.dynamic_shared_max = static_cast<uint32_t>(request.value);
    attributes_ = kernel.attributes;
  } else {
    attributes_ = ReadAttributes(kernel.handle);
  }
  reply->attributes = std::as_bytes(std::span(attributes_));
  return CUDA_SUCCESS;
}

const Kernel* Modules::Look(uint64_t id) const {
  const auto it = kernels_.find(id);
  return it == kernels_.end() ? nullptr : &it->second;
}

bool Modules::ContainsGlobal(uint64_t address, Bytes bytes) const {
  auto it = globals_.upper_bound(address);
  if (it == globals_.begin()) return false;
  --it;
  return bytes <= it->second && address - it->first <= it->second - bytes;
}

}  // namespace consort::host
