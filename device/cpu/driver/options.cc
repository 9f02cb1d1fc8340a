// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/driver/options.h"

#include <charconv>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "device/cpu/driver/limits.h"

namespace consort::cpu {
namespace {

absl::Status Bad(const char* variable, std::string_view value) {
  return absl::InvalidArgumentError(
      absl::StrCat(variable, " does not understand \"", std::string(value), "\""));
}

absl::StatusOr<Bytes> ParseBytes(std::string_view text) {
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc()) return Bad("CONSORT_CPU_MEMORY", text);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  Bytes scale = 0;
  if (unit.empty()) scale = 1;
  if (unit == "KiB") scale = kKiB;
  if (unit == "MiB") scale = kMiB;
  if (unit == "GiB") scale = kGiB;
  if (unit == "TiB") scale = kTiB;
  Bytes bytes = 0;
  if (scale == 0 || __builtin_mul_overflow(count, scale, &bytes) || bytes < kGranularity) {
    return Bad("CONSORT_CPU_MEMORY", text);
  }
  return bytes / kGranularity * kGranularity;
}

}  // namespace

absl::StatusOr<Options> ParseOptions(std::string_view devices, std::string_view memory) {
  int count = 1;
  if (!devices.empty()) {
    const auto [end, error] =
        std::from_chars(devices.data(), devices.data() + devices.size(), count);
    if (error != std::errc() || end != devices.data() + devices.size() || count < 0 ||
        count > kDeviceCountMax) {
      return Bad("CONSORT_CPU_DEVICES", devices);
    }
  }
  Bytes bytes = kDeviceMemoryDefault;
  Options options;
  for (int i = 0; i < count; ++i) {
    if (!memory.empty()) {
      const size_t comma = memory.find(',');
      ASSIGN_OR_RETURN(bytes, ParseBytes(memory.substr(0, comma)));
      memory = comma == std::string_view::npos ? std::string_view() : memory.substr(comma + 1);
    }
    options.device_memory.push_back(bytes);
  }
  return options;
}

std::string CacheDirectory(const CacheEnvironment& environment) {
  auto is_absolute = [](const char* path) { return path != nullptr && path[0] == '/'; };
  if (environment.directory != nullptr) {
    return is_absolute(environment.directory) ? environment.directory : "";
  }
  if (is_absolute(environment.xdg_cache_home)) {
    return absl::StrCat(environment.xdg_cache_home, "/consort");
  }
  if (is_absolute(environment.home)) return absl::StrCat(environment.home, "/.cache/consort");
  return "";
}

}  // namespace consort::cpu
