// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/driver/load.h"

#include <elf.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "device/cpu/driver/limits.h"
#include "device/cpu/driver/state.h"
#include "device/cpu/driver/thread_state.h"
#include "device/image/image.h"

namespace consort::cpu {
namespace {

// The wrapper that nvcc puts around a fat binary in a program: u32 magic, u32 version, pointer to
// the fat binary, and for version 2 a pointer to a null-terminated list of those that it was linked
// from.
constexpr uint32_t kWrapperMagic = 0x466243B1;
constexpr uint32_t kWrapperVersionLinked = 2;

struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const void* data;
  const void* const* list;
};

constexpr size_t kFatHeaderBytes = 16;
constexpr uint32_t kPtxVersionMax = 90;  // PTX ISA 9.0
constexpr uint32_t kCapability = kCapabilityMajor * 10 + kCapabilityMinor;

uint32_t Magic(const void* image) {
  uint32_t magic = 0;
  // Byte by byte, as the image may be a text shorter than that.
  for (size_t i = 0; i < sizeof(magic); ++i) {
    const uint8_t byte = static_cast<const uint8_t*>(image)[i];
    if (byte == 0) break;
    magic |= uint32_t{byte} << (8 * i);
  }
  return magic;
}

std::span<const std::byte> Span(const void* data, size_t bytes) {
  return {static_cast<const std::byte*>(data), bytes};
}

std::span<const std::byte> FatBinaryAt(const void* data) {
  uint16_t header_bytes = 0;
  uint64_t payload_bytes = 0;
  std::memcpy(&header_bytes, static_cast<const std::byte*>(data) + 6, sizeof(header_bytes));
  std::memcpy(&payload_bytes, static_cast<const std::byte*>(data) + 8, sizeof(payload_bytes));
  return Span(data, std::max<size_t>(kFatHeaderBytes, header_bytes + payload_bytes));
}

// The image at `data`, as far as it says itself that it goes; `flat` holds it where it lies in
// pieces. kInvalidArgument: a wrapper that is none.
absl::StatusOr<std::span<const std::byte>> ImageAt(const void* data, std::vector<std::byte>* flat) {
  const uint32_t magic = Magic(data);
  if (magic == kWrapperMagic) {
    Wrapper wrapper;
    std::memcpy(&wrapper, data, sizeof(wrapper));
    if (wrapper.data == nullptr || Magic(wrapper.data) != image::kFatBinaryMagic) {
      return absl::InvalidArgumentError("wrapper holds no fat binary");
    }
    const std::span<const std::byte> first = FatBinaryAt(wrapper.data);
    flat->assign(first.begin(), first.end());
    if (wrapper.version == kWrapperVersionLinked && wrapper.list != nullptr) {
      for (const void* const* part = wrapper.list; *part != nullptr; ++part) {
        if (Magic(*part) != image::kFatBinaryMagic) {
          return absl::InvalidArgumentError("wrapper lists something that is no fat binary");
        }
        const std::span<const std::byte> bytes = FatBinaryAt(*part);
        flat->insert(flat->end(), bytes.begin(), bytes.end());
      }
    }
    return *flat;
  }
  if (magic == image::kFatBinaryMagic) return FatBinaryAt(data);
  // Machine code cannot run here; its header says for which architecture it is.
  if (std::memcmp(&magic, ELFMAG, SELFMAG) == 0) return Span(data, sizeof(Elf64_Ehdr));
  return Span(data, std::strlen(static_cast<const char*>(data)));
}

CUresult Fail(const JitLog& log, CUresult result, std::string_view message) {
  LOG(ERROR) << "cannot load a module: " << message;
  log.Write(message);
  return result;
}

std::string Text(const absl::Status& status) { return std::string(status.message()); }

}  // namespace

CUresult JitLog::Check() const {
  if (option_count_ == 0) return CUDA_SUCCESS;
  if (options_ == nullptr || values_ == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned int i = 0; i < option_count_; ++i) {
    if (options_[i] < 0 || options_[i] >= CU_JIT_NUM_OPTIONS) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

void JitLog::Write(std::string_view error) const {
  WriteBuffer(CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, error);
  WriteBuffer(CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, "");
}

void JitLog::WriteWallTime(float milliseconds) const {
  void** const value = Value(CU_JIT_WALL_TIME);
  if (value != nullptr) std::memcpy(value, &milliseconds, sizeof(milliseconds));
}

void** JitLog::Value(CUjit_option option) const {
  for (unsigned int i = 0; i < option_count_; ++i) {
    if (options_[i] == option) return &values_[i];
  }
  return nullptr;
}

void JitLog::WriteBuffer(CUjit_option buffer, CUjit_option bytes, std::string_view text) const {
  void** const buffer_value = Value(buffer);
  void** const bytes_value = Value(bytes);
  if (buffer_value == nullptr || *buffer_value == nullptr || bytes_value == nullptr) return;
  // The size travels in the pointer's low 32 bits. Source: CUDA driver API, CUjit_option.
  const size_t room = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(*bytes_value));
  size_t written = 0;
  if (room > 0) {
    written = std::min(text.size(), room - 1);
    std::memcpy(*buffer_value, text.data(), written);
    static_cast<char*>(*buffer_value)[written] = '\0';
  }
  *bytes_value = reinterpret_cast<void*>(written);
}

CUresult SelectTexts(std::span<const std::byte> image, std::vector<std::string>* texts,
                     std::string* message) {
  absl::StatusOr<std::vector<std::string>> selected =
      image::SelectPtx(image, {.capability = kCapability, .prefer_portable = true});
  if (!selected.ok()) {
    *message = Text(selected.status());
    return selected.status().code() == absl::StatusCode::kNotFound ? CUDA_ERROR_NO_BINARY_FOR_GPU
                                                                   : CUDA_ERROR_INVALID_IMAGE;
  }
  for (const std::string& text : *selected) {
    const image::PtxHeader header = image::ReadPtxHeader(text);
    if (header.version > kPtxVersionMax) {
      *message = absl::StrCat("PTX version ", header.version / 10, ".", header.version % 10,
                              " is newer than ", kPtxVersionMax / 10, ".", kPtxVersionMax % 10);
      return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    }
    if (header.target > kCapability) {
      *message = absl::StrCat("PTX target sm_", header.target, " is above sm_", kCapability);
      return CUDA_ERROR_INVALID_PTX;
    }
  }
  *texts = *std::move(selected);
  return CUDA_SUCCESS;
}

CUresult LinkProgram(std::span<const ptx::LinkInput> inputs, LoadedProgram* loaded,
                     std::string* message) {
  std::string joined;
  if (inputs.size() == 1) {
    joined = inputs.front().text;
  } else {
    absl::StatusOr<std::string> linked = ptx::LinkPtx(inputs);
    if (!linked.ok()) {
      *message = Text(linked.status());
      return absl::IsAlreadyExists(linked.status()) || absl::IsFailedPrecondition(linked.status())
                 ? CUDA_ERROR_INVALID_SOURCE
                 : CUDA_ERROR_INVALID_PTX;
    }
    joined = *std::move(linked);
  }
  LoadOptions options = GetState()->load_options;
  options.managed = ThisThread().managed;
  absl::StatusOr<std::unique_ptr<Program>> program = Program::Load(joined, options);
  if (!program.ok()) {
    *message = Text(program.status());
    return inputs.size() > 1 && absl::IsOutOfRange(program.status()) ? CUDA_ERROR_INVALID_SOURCE
                                                                     : CUDA_ERROR_INVALID_PTX;
  }
  loaded->ptx = std::move(joined);
  loaded->program = *std::move(program);
  return CUDA_SUCCESS;
}

CUresult LoadProgram(const void* image, const JitLog& log, LoadedProgram* loaded) {
  std::vector<std::byte> flat;
  const absl::StatusOr<std::span<const std::byte>> bytes = ImageAt(image, &flat);
  if (!bytes.ok()) return Fail(log, CUDA_ERROR_INVALID_IMAGE, Text(bytes.status()));
  std::vector<std::string> texts;
  std::string message;
  CUresult result = SelectTexts(*bytes, &texts, &message);
  if (result != CUDA_SUCCESS) return Fail(log, result, message);
  std::vector<ptx::LinkInput> inputs;
  for (std::string& text : texts) {
    inputs.push_back({absl::StrCat("unit ", inputs.size() + 1), std::move(text)});
  }
  float milliseconds = 0;
  {
    const Stopwatch stopwatch(&milliseconds);
    result = LinkProgram(inputs, loaded, &message);
  }
  log.WriteWallTime(milliseconds);
  if (result != CUDA_SUCCESS) return Fail(log, result, message);
  log.Write("");
  return CUDA_SUCCESS;
}

}  // namespace consort::cpu
