// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/driver/options.h"

#include <array>
#include <cctype>
#include <charconv>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace consort::cpu {
namespace {

constexpr char kDevices[] = "CONSORT_CPU_DEVICES";
constexpr char kMemory[] = "CONSORT_CPU_MEMORY";
constexpr char kSanitize[] = "CONSORT_CPU_SANITIZE";
constexpr char kKernelLimit[] = "CONSORT_CPU_KERNEL_LIMIT";

absl::Status Bad(const char* variable, std::string_view value) {
  return absl::InvalidArgumentError(
      absl::StrCat(variable, " does not understand \"", std::string(value), "\""));
}

template <typename Number>
bool ParseNumber(std::string_view text, Number* number, std::string_view* rest) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  *rest = text.substr(static_cast<size_t>(end - text.data()));
  return error == std::errc();
}

// "8GiB"; a number alone is bytes.
bool ParseBytes(std::string_view text, Bytes* bytes) {
  uint64_t count = 0;
  std::string_view unit;
  if (!ParseNumber(text, &count, &unit)) return false;
  Bytes scale = 0;
  if (unit.empty()) scale = 1;
  if (unit == "KiB") scale = kKiB;
  if (unit == "MiB") scale = kMiB;
  if (unit == "GiB") scale = kGiB;
  if (unit == "TiB") scale = kTiB;
  return scale != 0 && !__builtin_mul_overflow(count, scale, bytes);
}

bool ParseMemory(std::string_view text, Bytes* memory) {
  if (!ParseBytes(text, memory) || *memory < kGranularity) return false;
  *memory = *memory / kGranularity * kGranularity;
  return true;
}

// "5us"; at most `max`.
bool ParseDuration(std::string_view text, Nanos max, Nanos* nanos) {
  uint32_t count = 0;
  std::string_view unit;
  if (!ParseNumber(text, &count, &unit)) return false;
  Nanos scale = 0;
  if (unit == "ns") scale = 1;
  if (unit == "us") scale = kMicrosecond;
  if (unit == "ms") scale = kMillisecond;
  if (unit == "s") scale = kSecond;
  *nanos = count * scale;
  return scale != 0 && *nanos <= max;
}

bool ParseUuid(std::string_view text, std::array<unsigned char, 16>* uuid) {
  std::string digits;
  for (const char letter : text) {
    if (letter != '-') digits += letter;
  }
  if (digits.size() != 2 * uuid->size()) return false;
  for (size_t i = 0; i < uuid->size(); ++i) {
    const char* const end = digits.data() + 2 * i + 2;
    const auto [stop, error] = std::from_chars(end - 2, end, (*uuid)[i], 16);
    if (error != std::errc() || stop != end) return false;
  }
  return true;
}

// One KEY=VALUE of a device.
bool ParseKey(std::string_view key, std::string_view value, DeviceOptions* device,
              std::optional<Bytes>* memory, uint32_t* count) {
  std::string_view rest;
  if (key == "name") {
    device->name = std::string(value);
    return !value.empty() && value.size() <= kDeviceNameBytesMax;
  }
  if (key == "uuid") return ParseUuid(value, &device->uuid.emplace());
  if (key == "memory") return ParseMemory(value, &memory->emplace());
  if (key == "speed") {
    return ParseNumber(value, &device->pace.speed, &rest) && rest.empty() &&
           device->pace.speed >= kDeviceSpeedMin && device->pace.speed <= 1;
  }
  if (key == "cores") {
    return ParseNumber(value, &device->cores, &rest) && rest.empty() && device->cores > 0 &&
           device->cores <= kDeviceCoresMax;
  }
  if (key == "copy") {
    return ParseBytes(value, &device->pace.copy_bytes_per_second) &&
           device->pace.copy_bytes_per_second > 0;
  }
  if (key == "launch") return ParseDuration(value, kLaunchLatencyMax, &device->pace.launch);
  if (key == "host_atomics") {
    device->host_atomics = value == "yes";
    return value == "yes" || value == "no";
  }
  if (key == "links") {
    return ParseNumber(value, &device->links, &rest) && rest.empty() &&
           device->links <= kDeviceLinksMax;
  }
  if (key == "count") {
    return ParseNumber(value, count, &rest) && rest.empty() && *count > 0 &&
           *count <= kDeviceCountMax;
  }
  return false;
}

// Devices of a list, with their memory where the list gives it.
struct ListedDevice {
  DeviceOptions options;
  std::optional<Bytes> memory;
};

// Cuts the first word, which may hold "quoted text", off `text`; empty: there is none.
std::string NextWord(std::string_view* text) {
  while (!text->empty() && std::isspace(static_cast<unsigned char>(text->front()))) {
    text->remove_prefix(1);
  }
  std::string word;
  bool quoted = false;
  while (!text->empty() && (quoted || !std::isspace(static_cast<unsigned char>(text->front())))) {
    if (text->front() == '"') {
      quoted = !quoted;
    } else {
      word += text->front();
    }
    text->remove_prefix(1);
  }
  return word;
}

absl::Status ParseDevice(std::string_view line, std::vector<ListedDevice>* devices) {
  ListedDevice device;
  uint32_t count = 1;
  std::string_view left = line;
  std::string word = NextWord(&left);
  if (word.empty()) return absl::OkStatus();
  for (; !word.empty(); word = NextWord(&left)) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || !ParseKey(word.substr(0, equals), word.substr(equals + 1),
                                                 &device.options, &device.memory, &count)) {
      return Bad(kDevices, word);
    }
  }
  for (; count > 0; --count) {
    if (devices->size() == kDeviceCountMax) return Bad(kDevices, line);
    devices->push_back(device);
    device.options.uuid.reset();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ListedDevice>> ParseList(std::string_view text) {
  std::vector<ListedDevice> devices;
  bool quoted = false, comment = false;
  std::string line;
  for (const char letter : std::string(text) + "\n") {
    if (letter == '"' && !comment) quoted = !quoted;
    if (letter == '#' && !quoted) comment = true;
    if (letter == '\n' || (letter == ';' && !quoted && !comment)) {
      if (quoted) return Bad(kDevices, line);
      RETURN_IF_ERROR(ParseDevice(line, &devices));
      line.clear();
      comment = false;
    } else if (!comment) {
      line += letter;
    }
  }
  std::set<std::array<unsigned char, 16>> uuids;
  for (const ListedDevice& device : devices) {
    if (device.options.uuid.has_value() && !uuids.insert(*device.options.uuid).second) {
      return Bad(kDevices, "the same uuid twice");
    }
  }
  return devices;
}

}  // namespace

absl::StatusOr<Options> ParseOptions(std::string_view devices, std::string_view memory) {
  std::vector<ListedDevice> listed(1);
  if (devices.find('=') != std::string_view::npos) {
    ASSIGN_OR_RETURN(listed, ParseList(devices));
  } else if (!devices.empty()) {
    int count = 0;
    std::string_view rest;
    if (!ParseNumber(devices, &count, &rest) || !rest.empty() || count < 0 ||
        count > kDeviceCountMax) {
      return Bad(kDevices, devices);
    }
    listed.resize(static_cast<size_t>(count));
  }
  Bytes bytes = kDeviceMemoryDefault;
  Options options;
  for (ListedDevice& device : listed) {
    if (!memory.empty()) {
      const size_t comma = memory.find(',');
      if (!ParseMemory(memory.substr(0, comma), &bytes)) {
        return Bad(kMemory, memory.substr(0, comma));
      }
      memory = comma == std::string_view::npos ? std::string_view() : memory.substr(comma + 1);
    }
    device.options.memory = device.memory.value_or(bytes);
    options.devices.push_back(std::move(device.options));
  }
  return options;
}

absl::StatusOr<GuardOptions> ParseGuards(std::string_view sanitize, std::string_view kernel_limit) {
  GuardOptions guards;
  if (!sanitize.empty() && sanitize != "memory") return Bad(kSanitize, sanitize);
  guards.checks_memory = !sanitize.empty();
  if (!kernel_limit.empty() &&
      (!ParseDuration(kernel_limit, kKernelLimitMax, &guards.kernel_limit) ||
       guards.kernel_limit == 0)) {
    return Bad(kKernelLimit, kernel_limit);
  }
  return guards;
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
