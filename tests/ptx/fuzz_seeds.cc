// SPDX-License-Identifier: Apache-2.0
// tests/ptx/fuzz_seeds.cc: writes inputs for ptx_jit_fuzz.
//
//   fuzz_seeds DIR [FILE.ptx ...]
//
// One kernel an instruction of the table; and each kernel of the files, which nvcc made, with the
// module's variables and functions but without the other kernels: small inputs are tried more
// often.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/ptx/instruction_rows.h"
#include "tests/ptx/kernel_text.h"

namespace consort::ptx_suite {
namespace {

using std::string;
using std::string_view;

bool Write(const string& path, string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  return static_cast<bool>(file.flush());
}

// What stands at module scope, one piece each: a kernel ends with its `}`, all else with its line.
struct Piece {
  string text;
  bool is_kernel = false;
};

std::vector<Piece> Pieces(string_view text) {
  std::vector<Piece> pieces;
  Piece body;
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
    body = Piece();
    in_body = false;
  }
  return pieces;
}

int Main(std::span<char*> arguments) {
  if (arguments.size() < 2) {
    std::fprintf(stderr, "usage: fuzz_seeds DIR [FILE.ptx ...]\n");
    return 2;
  }
  const string folder = string(arguments[1]) + "/";
  size_t count = 0;
  auto write = [&](string_view text) {
    return Write(folder + "seed_" + std::to_string(count++) + ".ptx", text);
  };
  bool good = true;
  const Row* last = nullptr;
  for (const Instance& instance : Instances()) {
    if (instance.row == last) continue;
    last = instance.row;
    good &= write(KernelText({&instance, 1}));
  }
  for (const char* path : arguments.subspan(2)) {
    std::ifstream file(path, std::ios::binary);
    const string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    good &= file.good() || file.eof();
    const std::vector<Piece> pieces = Pieces(text);
    for (size_t kernel = 0; kernel < pieces.size(); ++kernel) {
      if (!pieces[kernel].is_kernel) continue;
      string seed;
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (!pieces[i].is_kernel || i == kernel) seed += pieces[i].text;
      }
      good &= write(seed);
    }
  }
  std::printf("%zu inputs\n", count);
  return good && count > 0 ? 0 : 1;
}

}  // namespace
}  // namespace consort::ptx_suite

int main(int count, char** arguments) {
  return consort::ptx_suite::Main({arguments, static_cast<size_t>(count)});
}
