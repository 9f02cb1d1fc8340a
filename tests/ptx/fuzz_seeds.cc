// SPDX-License-Identifier: Apache-2.0
// tests/ptx/fuzz_seeds.cc: writes inputs for the fuzzers of PTX and of fat binaries.
//
//   fuzz_seeds DIR FILE...            what is in the files, in new folders of DIR
//   fuzz_seeds --table DIR FILE...    and one kernel an instruction of the table
//
// A file is PTX text, or anything with fat binaries in it: a program, a library, an object. Of a
// text each kernel becomes an input, with the module's variables and functions but without the
// other kernels: small inputs are tried more often. Folders are called as the fuzzers that read
// them: DIR/ptx_jit_fuzz, and DIR/image_fuzz for fat binaries as they are.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "device/image/image.h"
#include "tests/ptx/instruction_rows.h"
#include "tests/ptx/kernel_text.h"

namespace consort::ptx_suite {
namespace {

using std::string;
using std::string_view;

// Larger inputs are not worth their time: the fuzzers run thousands of small ones in it.
constexpr size_t kSeedBytesMax = 64 * 1024;

// What stands at module scope, one piece each: a kernel ends with its `}`, all else with its line.
struct ModulePiece {
  string text;
  bool is_kernel = false;
};

std::vector<ModulePiece> Pieces(string_view text) {
  std::vector<ModulePiece> pieces;
  ModulePiece body;
  bool in_body = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    const string_view line = text.substr(0, end);
    text.remove_prefix(end);
    const bool is_header = line.find(".entry") != string_view::npos;
    if (is_header) {
      in_body = true;
      body.is_kernel = true;
    }
    body.text += line;
    if (in_body && !line.starts_with("}")) continue;
    pieces.push_back(std::move(body));
    body = ModulePiece();
    in_body = false;
  }
  return pieces;
}

// Inputs of one fuzzer, each once.
class SeedFolder {
 public:
  explicit SeedFolder(const string& path) : path_(path) {
    std::filesystem::create_directories(path);
  }
  void Add(string_view text) {
    if (text.size() > kSeedBytesMax) {
      ++too_large_;
      return;
    }
    if (!known_.emplace(text).second) return;
    std::ofstream file(path_ + "/seed_" + std::to_string(known_.size()), std::ios::binary);
    file << text;
    good_ &= static_cast<bool>(file.flush());
  }
  // False: something could not be written.
  bool Report() const {
    std::printf("%s: %zu inputs, %zu left out as larger than %zu KiB\n", path_.c_str(),
                known_.size(), too_large_, kSeedBytesMax / 1024);
    return good_;
  }

 private:
  string path_;
  std::set<string, std::less<>> known_;
  size_t too_large_ = 0;
  bool good_ = true;
};

void AddKernels(string_view text, SeedFolder& folder) {
  const std::vector<ModulePiece> pieces = Pieces(text);
  for (size_t kernel = 0; kernel < pieces.size(); ++kernel) {
    if (!pieces[kernel].is_kernel) continue;
    string seed;
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (!pieces[i].is_kernel || i == kernel) seed += pieces[i].text;
    }
    folder.Add(seed);
  }
}

// What starts with the magic number of a fat binary and is not one is passed over.
void AddImages(std::span<const std::byte> bytes, SeedFolder& ptx, SeedFolder& images) {
  for (size_t at = 0; at + sizeof(uint32_t) <= bytes.size();) {
    uint32_t word;
    std::memcpy(&word, &bytes[at], sizeof(word));
    const auto size = word == image::kFatBinaryMagic ? image::ImageBytes(bytes.subspan(at)) : 0;
    if (!size.ok() || *size == 0) {
      ++at;
      continue;
    }
    const auto found = bytes.subspan(at, *size);
    images.Add({reinterpret_cast<const char*>(found.data()), found.size()});
    if (const auto texts = image::SelectPtx(found, {}); texts.ok()) {
      for (const string& text : *texts) AddKernels(text, ptx);
    }
    at += *size;
  }
}

int Main(std::span<char*> arguments) {
  const bool with_table = arguments.size() > 1 && string_view(arguments[1]) == "--table";
  arguments = arguments.subspan(std::min<size_t>(arguments.size(), with_table ? 2 : 1));
  if (arguments.empty() || arguments[0][0] == '-') {
    std::fprintf(stderr, "usage: fuzz_seeds [--table] DIR FILE...\n");
    return 2;
  }
  const string folder = arguments[0];
  SeedFolder ptx(folder + "/ptx_jit_fuzz");
  SeedFolder images(folder + "/image_fuzz");
  const Row* last = nullptr;
  for (const Instance& instance : with_table ? Instances() : std::vector<Instance>()) {
    if (instance.row == last) continue;
    last = instance.row;
    ptx.Add(KernelText({&instance, 1}));
  }
  for (const char* path : arguments.subspan(1)) {
    std::error_code why;  // a folder is no file, either
    const auto size = std::filesystem::file_size(path, why);
    string text(why ? 0 : size, '\0');
    if (why || !std::ifstream(path, std::ios::binary).read(text.data(), std::ssize(text))) {
      if (!why) why = std::error_code(errno, std::generic_category());
      std::fprintf(stderr, "fuzz_seeds: cannot read %s: %s\n", path, why.message().c_str());
      return 1;
    }
    const auto bytes = std::as_bytes(std::span(text));
    if (image::Classify(bytes) == image::ImageKind::kPtx) {
      AddKernels(text, ptx);
    } else {
      AddImages(bytes, ptx, images);
    }
  }
  const bool good = ptx.Report();
  return images.Report() && good ? 0 : 1;
}

}  // namespace
}  // namespace consort::ptx_suite

int main(int count, char** arguments) {
  return consort::ptx_suite::Main({arguments, static_cast<size_t>(count)});
}
