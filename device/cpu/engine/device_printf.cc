// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/device_printf.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "device/cpu/engine/block_runner.h"

namespace consort::cpu {
namespace {

// A conversion specification is longer than this only if it is nonsense.
constexpr size_t kSpecBytesMax = 32;

// Text under construction in a fixed buffer.
struct Line {
  char text[kPrintfBytesMax];
  size_t bytes = 0;

  size_t room() const { return sizeof(text) - bytes; }
  void Put(char c) {
    if (room() > 0) text[bytes++] = c;
  }
  // Copies a string of the kernel, byte by byte, at most `count_max` bytes.
  void PutString(const char* from, size_t count_max) {
    for (size_t i = 0; i < count_max && room() > 0 && from[i] != '\0'; ++i) Put(from[i]);
  }
  void Write(const LaunchOutput& output, int descriptor) const {
    if (output.write != nullptr) {
      output.write(output.owner, descriptor, text, bytes);
    } else {
      std::fwrite(text, 1, bytes, descriptor == STDERR_FILENO ? stderr : stdout);
    }
  }
};

class Arguments {
 public:
  explicit Arguments(const uint8_t* at) : at_(at) {}

  template <typename T>
  T Take() {
    offset_ = (offset_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    T value;
    std::memcpy(&value, at_ + offset_, sizeof(T));
    offset_ += sizeof(T);
    ++count;
    return value;
  }

  int count = 0;

 private:
  const uint8_t* at_;
  size_t offset_ = 0;
};

// snprintf of one value by a specification that was checked before.
template <typename T>
void PutFormatted(Line& line, const char* spec, T value) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
  const int bytes = std::snprintf(line.text + line.bytes, line.room(), spec, value);
#pragma GCC diagnostic pop
  if (bytes > 0 && line.room() > 0) {
    line.bytes += std::min(static_cast<size_t>(bytes), line.room() - 1);
  }
}

// One specification, from the byte after '%'; returns the byte after it.
const char* Convert(const char* at, Line& line, Arguments& arguments) {
  char spec[kSpecBytesMax] = "%";
  size_t length = 1;
  auto keep = [&](char c) {
    if (length < kSpecBytesMax - 4) spec[length++] = c;
  };
  while (*at != '\0' && std::strchr("-+ #0123456789.*", *at) != nullptr) {
    if (*at == '*') {
      char number[12];
      std::snprintf(number, sizeof(number), "%d", arguments.Take<int>());
      for (const char* digit = number; *digit != '\0'; ++digit) keep(*digit);
    } else {
      keep(*at);
    }
    ++at;
  }
  int longs = 0;
  while (*at != '\0' && std::strchr("hlLqjzt", *at) != nullptr) {
    // long is 64 bits wide on the device, as here.
    if (std::strchr("lqjzt", *at) != nullptr) ++longs;
    ++at;
  }
  const char kind = *at;
  if (kind == '\0') return at;
  ++at;
  auto finish = [&](const char* suffix) {
    std::memcpy(spec + length, suffix, std::strlen(suffix) + 1);
  };
  if (std::strchr("diouxX", kind) != nullptr) {
    const char wide[] = {'l', 'l', kind, '\0'};
    finish(wide);
    const bool is_signed = kind == 'd' || kind == 'i';
    if (longs > 0) {
      PutFormatted(line, spec, arguments.Take<long long>());
    } else if (is_signed) {
      PutFormatted(line, spec, static_cast<long long>(arguments.Take<int>()));
    } else {
      PutFormatted(line, spec, static_cast<long long>(arguments.Take<unsigned>()));
    }
  } else if (std::strchr("eEfFgGaA", kind) != nullptr) {
    const char text[] = {kind, '\0'};
    finish(text);
    PutFormatted(line, spec, arguments.Take<double>());
  } else if (kind == 'c') {
    finish("c");
    PutFormatted(line, spec, arguments.Take<int>());
  } else if (kind == 's') {
    Line copy;
    const char* text = arguments.Take<const char*>();
    copy.PutString(text == nullptr ? "(null)" : text, sizeof(copy.text) - 1);
    copy.text[copy.bytes] = '\0';
    finish("s");
    PutFormatted(line, spec, static_cast<const char*>(copy.text));
  } else if (kind == 'p') {
    finish("p");
    PutFormatted(line, spec, arguments.Take<const void*>());
  } else if (kind == '%') {
    line.Put('%');
  }
  return at;
}

}  // namespace

int DevicePrintf(const LaunchOutput& output, const char* format, const uint8_t* arguments) {
  if (format == nullptr) return -1;
  Line line;
  Arguments values(arguments);
  while (*format != '\0' && line.room() > 0) {
    if (*format == '%') {
      format = Convert(format + 1, line, values);
    } else {
      line.Put(*format++);
    }
  }
  line.Write(output, STDOUT_FILENO);
  return values.count;
}

void PrintAssertFailure(const ThreadContext& context, const char* message, const char* file,
                        uint32_t line_number, const char* function) {
  Line line;
  line.PutString(file, kPrintfBytesMax / 4);
  PutFormatted(line, ":%u: ", line_number);
  line.PutString(function, kPrintfBytesMax / 4);
  line.PutString(": block: [", kPrintfBytesMax);
  for (int i = 0; i < 3; ++i)
    PutFormatted(line, i < 2 ? "%u," : "%u], thread: [", context.ctaid[i]);
  for (int i = 0; i < 3; ++i) PutFormatted(line, i < 2 ? "%u," : "%u] Assertion `", context.tid[i]);
  line.PutString(message, kPrintfBytesMax / 4);
  line.PutString("` failed.\n", kPrintfBytesMax);
  line.Write(context.runner->output(), STDERR_FILENO);
}

}  // namespace consort::cpu
