// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/vm_files.h"

#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "host/limits.h"
#include "host/memory/size_text.h"

namespace consort::host {
namespace {

bool IsAlnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

absl::Status Wrong(const std::string& path, const toml::source_region& where,
                   const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ":", where.begin.line, ": ", what));
}

absl::Status ReadVmFile(const std::string& path, VmOptions* vm) {
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    return Wrong(path, error.source(), std::string(error.description()));
  }
  for (const auto& [key, value] : table) {
    if (key == "tenant") {
      const auto tenant = value.value_exact<std::string>();
      if (!tenant.has_value() || !IsVmName(*tenant)) {
        return Wrong(path, value.source(),
                     "tenant must be a name in quotes: letters, digits, . _ -");
      }
      vm->tenant = *tenant;
    } else if (key == "vgpus") {
      const auto vgpus = value.value_exact<int64_t>();
      if (!vgpus.has_value() || *vgpus < 1 || *vgpus > kDevicesMax) {
        return Wrong(path, value.source(), absl::StrCat("vgpus must be from 1 to ", kDevicesMax));
      }
      vm->vgpus = static_cast<uint32_t>(*vgpus);
    } else if (key == "shared_memory") {
      const auto text = value.value_exact<std::string>();
      const std::optional<Bytes> size = text.has_value() ? ParseSize(*text) : std::nullopt;
      if (text != "0" && (!size.has_value() || !IsVmMemorySize(*size))) {
        return Wrong(
            path, value.source(),
            absl::StrCat("shared_memory must be ", kVmMemorySizes, ", in quotes, or \"0\""));
      }
      vm->shared_memory = size.value_or(0);
    } else {
      return Wrong(path, key.source(),
                   absl::StrCat("unknown key ", std::string(key.str()),
                                "; there are tenant, vgpus and shared_memory"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool IsVmName(std::string_view name) {
  return !name.empty() && name.size() <= kVmNameBytesMax && IsAlnum(name[0]) &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return IsAlnum(c) || c == '.' || c == '_' || c == '-'; });
}

std::string VmMemoryPath(const VmDefaults& defaults, std::string_view name) {
  return absl::StrCat(defaults.memory_folder, "/consort-", std::string(name));
}

absl::StatusOr<std::vector<VmOptions>> ReadVmFiles(const std::string& folder,
                                                   const VmDefaults& defaults) {
  std::vector<VmOptions> vms;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() != ".toml") continue;
    VmOptions vm;
    vm.name = it->path().stem();
    if (!IsVmName(vm.name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          it->path().string(), ": a machine's name has letters, digits, . _ - only, at most ",
          kVmNameBytesMax));
    }
    vm.socket_path = absl::StrCat(defaults.socket_folder, "/", vm.name, ".sock");
    vm.memory_path = VmMemoryPath(defaults, vm.name);
    vm.shared_memory = defaults.shared_memory;
    RETURN_IF_ERROR(ReadVmFile(it->path(), &vm));
    vms.push_back(std::move(vm));
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return absl::UnavailableError(absl::StrCat(folder, ": ", error.message()));
  }
  std::sort(vms.begin(), vms.end(),
            [](const VmOptions& a, const VmOptions& b) { return a.name < b.name; });
  return vms;
}

}  // namespace consort::host
