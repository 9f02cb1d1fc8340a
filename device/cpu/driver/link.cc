// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/driver/link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "device/cpu/ptx/parser.h"

namespace consort::cpu {

Link::Link(std::span<const CUjit_option> options, void** values)
    : options_(options.begin(), options.end()),
      values_(values),
      values_at_first_(values, values + options.size()) {
  WriteOptions();
}

CUresult Link::Add(CUjitInputType type, std::span<const std::byte> data, const char* name) {
  if (type < 0 || type >= CU_JIT_NUM_INPUT_TYPES || !linked_.empty()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::string input =
      name != nullptr ? std::string(name) : absl::StrCat("input ", inputs_.size() + 1);
  if (type != CU_JIT_INPUT_PTX && type != CU_JIT_INPUT_CUBIN && type != CU_JIT_INPUT_FATBINARY) {
    return Fail(CUDA_ERROR_NOT_SUPPORTED,
                absl::StrCat(input, ": inputs of type ", static_cast<int>(type),
                             " cannot be linked on this device"));
  }
  std::vector<std::string> texts;
  {
    const Stopwatch stopwatch(&wall_milliseconds_);
    std::string message;
    const CUresult result = SelectTexts(data, &texts, &message);
    if (result != CUDA_SUCCESS) return Fail(result, absl::StrCat(input, ": ", message));
    for (std::string& text : texts) {
      // Whether it is PTX at all is said here, as by a linker that compiles each input first.
      const auto parsed = ptx::ParsePtx(text);
      if (!parsed.ok()) {
        return Fail(CUDA_ERROR_INVALID_PTX, absl::StrCat(input, ", ", parsed.status().message()));
      }
      inputs_.push_back({input, std::move(text)});
    }
  }
  WriteOptions();
  return CUDA_SUCCESS;
}

CUresult Link::Complete(std::span<char>* linked) {
  if (linked_.empty()) {
    if (inputs_.empty()) return Fail(CUDA_ERROR_INVALID_VALUE, "nothing was added to link");
    LoadedProgram loaded;
    std::string message;
    CUresult result;
    {
      const Stopwatch stopwatch(&wall_milliseconds_);
      result = LinkProgram(inputs_, &loaded, &message);
    }
    if (result != CUDA_SUCCESS) return Fail(result, message);
    linked_ = std::move(loaded.ptx);
    linked_.push_back('\0');
  }
  WriteOptions();
  *linked = linked_;
  return CUDA_SUCCESS;
}

CUresult Link::Fail(CUresult result, std::string_view message) {
  LOG(ERROR) << "cannot link: " << message;
  absl::StrAppend(&errors_, "error   : ", absl::string_view(message.data(), message.size()), "\n");
  WriteOptions();
  return result;
}

void Link::WriteOptions() {
  std::vector<void*> values = values_at_first_;
  const JitLog log(static_cast<unsigned int>(options_.size()), options_.data(), values.data());
  log.Write(errors_);
  log.WriteWallTime(wall_milliseconds_);
  std::copy(values.begin(), values.end(), values_);
}

}  // namespace consort::cpu
