// SPDX-License-Identifier: Apache-2.0
// tests/ptx/ptx_suite.cc: runs every row of the instruction table on the device of a driver
// library.
//
//   ptx_suite --driver LIB --record FILE [--dump FILE]     writes what the device computes
//   ptx_suite --driver LIB --record FILE --expect OLD      the same, of rows that OLD lacks; the
//                                                          others as OLD has them
//   ptx_suite --driver LIB --expect FILE[,FILE...]         compares with what another one did
//   ptx_suite --print DIR                                  writes the PTX of each module
//
// The same program is run on a GPU, where its results become golden/expected.txt and, of matrices,
// textures and surfaces, golden/expected_units.txt, and on the CPU device.
// A kernel that fails, or never ends, takes the context and the process with it. While recording,
// standard output says which module runs; --from N goes on with module N, and adds to FILE.
// --only TEXT takes the instances whose code has TEXT in it. --rows FILE takes rows that are not in
// the table yet instead of it: a line each, its code, a tab, its operands.
//
// FILE of --expect: a line that says where the results come from; then a line an instance: its
// code, a digest of all results, and the results of kSamples tuples, separated by tabs.
//
// Approximate results are compared with a reference in double and the ISA's bound, on every device.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/ptx/driver.h"
#include "tests/ptx/images.h"
#include "tests/ptx/instruction_rows.h"
#include "tests/ptx/kernel_text.h"
#include "tests/ptx/operand_values.h"

namespace consort::ptx_suite {
namespace {

using std::string;

// A module's instances: few enough that one is compiled quickly.
constexpr size_t kModuleInstances = 16;
// A few for each of them.
constexpr size_t kImagesMax = 4 * kModuleInstances;
// Results that are kept in full of an instance, to tell where it differs, and the steps in which
// they are spread over all of its results.
constexpr size_t kSamples = 11;
constexpr size_t kSampleSteps = 12;
// Differences that are shown of one instance.
constexpr int kShownMax = 3;

struct Options {
  string driver;
  string record;
  string dump;
  string expect;
  string print;
  string only;
  string from;
  string rows;
};

struct Expected {
  bool is_used = false;
  string line;  // of the file
  string digest;
  std::vector<uint64_t> samples;
};

string Hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof(text), "%llx", static_cast<unsigned long long>(value));
  return text;
}

// FNV-1a of the values, lowest byte first.
string Digest(std::span<const uint64_t> values) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const uint64_t value : values) {
    for (int shift = 0; shift < 64; shift += 8)
      hash = (hash ^ (value >> shift & 0xFF)) * 0x100000001B3;
  }
  return Hex(hash);
}

// Closer together at the beginning, where the combinations of edge values are.
size_t SampleAt(size_t index, size_t count) {
  return index * index * count / (kSampleSteps * kSampleSteps);
}

class Suite {
 public:
  explicit Suite(const Options& options) : options_(options) {}
  int Main();

 private:
  void ReadExpected(const string& path);
  std::vector<Instance> ReadRows();
  void RunGroup(std::span<const Instance> instances);
  void RunModule(std::span<const Instance> instances);
  void UploadImages(std::span<const Instance> instances);
  void Judge(const Instance& instance, std::span<uint64_t> results);
  void JudgeApproximation(const Instance& instance, std::span<const uint64_t> results);
  string OperandText(const Instance& instance, size_t tuple) const;
  void Fail(const Instance& instance, const string& what) {
    ++failures_;
    std::printf("FAIL  %s\n      %s\n", instance.name.c_str(), what.c_str());
  }

  const Options& options_;
  std::unique_ptr<Driver> driver_;
  std::map<string, Expected> expected_;
  std::deque<string> row_lines_;  // what rows_ points into
  std::deque<Row> rows_;          // of --rows
  std::ofstream record_;
  std::ofstream dump_;
  SourceValues values_;
  CUdeviceptr in_ = 0;
  CUdeviceptr out_ = 0;
  CUdeviceptr memory_ = 0;
  CUdeviceptr images_ = 0;              // the handles of a module's
  std::map<string, uint64_t> objects_;  // handles by the images' names
  int modules_ = 0;
  int first_module_ = 0;
  int passed_ = 0;
  int failures_ = 0;
};

void Suite::ReadExpected(const string& path) {
  std::ifstream file(path);
  string line;
  if (!std::getline(file, line)) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::exit(2);
  }
  std::printf("expected results: %s\n", line.c_str());
  while (std::getline(file, line)) {
    std::vector<string> parts;
    for (size_t begin = 0; begin <= line.size();) {
      const size_t end = std::min(line.find('\t', begin), line.size());
      parts.push_back(line.substr(begin, end - begin));
      begin = end + 1;
    }
    if (parts.size() < 2) continue;
    Expected& expected = expected_[parts[0]];
    expected.line = line;
    expected.digest = parts[1];
    for (size_t i = 2; i < parts.size(); ++i) {
      expected.samples.push_back(std::strtoull(parts[i].c_str(), nullptr, 16));
    }
  }
}

std::vector<Instance> Suite::ReadRows() {
  std::ifstream file(options_.rows);
  std::vector<Instance> instances;
  string line;
  while (std::getline(file, line)) {
    const std::string_view text = row_lines_.emplace_back(line);
    const size_t tab = text.find('\t');
    if (tab == string::npos) continue;
    const Row& row = rows_.emplace_back(Row{text.substr(0, tab), text.substr(tab + 1)});
    for (Instance& instance : InstancesOf(row)) instances.push_back(std::move(instance));
  }
  if (instances.empty()) {
    std::fprintf(stderr, "no rows in %s\n", options_.rows.c_str());
    std::exit(2);
  }
  return instances;
}

int Suite::Main() {
  std::stringstream files(options_.expect);
  for (string path; std::getline(files, path, ',');) ReadExpected(path);
  if (options_.print.empty()) {
    driver_ = std::make_unique<Driver>(options_.driver);
    std::printf("device: %s\n", driver_->description().c_str());
    // Room for the largest: four sources and a module's results of up to eight values each.
    constexpr size_t kTuplesMax = 4096;
    in_ = driver_->Allocate(kTuplesMax * 4 * 8 * sizeof(uint64_t));
    out_ = driver_->Allocate(kTuplesMax * kModuleInstances * 8 * sizeof(uint64_t));
    memory_ = driver_->Allocate(kTuplesMax * kThreadBytes);
    images_ = driver_->Allocate(kImagesMax * sizeof(uint64_t));
  }
  if (!options_.record.empty()) {
    first_module_ = std::atoi(options_.from.c_str());
    record_.open(options_.record, first_module_ > 0 ? std::ios::app : std::ios::trunc);
    if (first_module_ == 0)
      record_ << "# " << driver_->description() << "; made by tests/ptx/ptx_suite --record\n";
  }
  if (!options_.dump.empty()) dump_.open(options_.dump, std::ios::binary);
  std::vector<Instance> instances = options_.rows.empty() ? Instances() : ReadRows();
  std::stable_sort(instances.begin(), instances.end(), [](const Instance& a, const Instance& b) {
    return a.Signature() < b.Signature();
  });
  if (!options_.only.empty()) {
    std::erase_if(instances, [this](const Instance& instance) {
      return instance.name.find(options_.only) == string::npos;
    });
  }
  for (size_t begin = 0; begin < instances.size();) {
    size_t end = begin;
    while (end < instances.size() && instances[end].Signature() == instances[begin].Signature())
      ++end;
    RunGroup(std::span(instances).subspan(begin, end - begin));
    begin = end;
  }
  for (const auto& [code, expected] : expected_) {
    if (!options_.only.empty() || expected.is_used || record_.is_open()) continue;
    ++failures_;
    std::printf("FAIL  %s\n      has expected results, but no row\n", code.c_str());
  }
  std::printf("%zu instances: %d passed, %d failures\n", instances.size(), passed_, failures_);
  return failures_ == 0 ? 0 : 1;
}

void Suite::RunGroup(std::span<const Instance> instances) {
  values_ = MakeValues(instances.front());
  if (driver_ != nullptr) {
    std::vector<uint64_t> all;
    for (const std::vector<uint64_t>& each : values_)
      all.insert(all.end(), each.begin(), each.end());
    driver_->Upload(in_, all);
  }
  std::vector<Instance> together;
  auto run = [this, &together] {
    const int module = modules_++;
    if (!together.empty() && module >= first_module_) {
      if (record_.is_open()) std::printf("module %d of %s\n", module, together[0].name.c_str());
      std::fflush(stdout);
      RunModule(together);
    }
    together.clear();
  };
  for (const Instance& instance : instances) {
    const auto known = expected_.find(instance.name);
    if (record_.is_open() && known != expected_.end()) {
      if (first_module_ == 0) record_ << known->second.line << '\n';
      continue;
    }
    if (instance.EndsThreads() || together.size() == kModuleInstances) run();
    together.push_back(instance);
    if (instance.EndsThreads()) run();
  }
  run();
}

void Suite::RunModule(std::span<const Instance> instances) {
  const string text = KernelText(instances);
  if (!options_.print.empty()) {
    std::ofstream(options_.print + "/" + std::to_string(modules_) + ".ptx") << text;
    return;
  }
  string error;
  CUmodule module = driver_->Load(text, &error);
  if (module == nullptr) {
    if (instances.size() == 1) return Fail(instances.front(), "does not load: " + error);
    const size_t half = instances.size() / 2;
    RunModule(instances.first(half));
    RunModule(instances.subspan(half));
    return;
  }
  const uint32_t tuples = TupleCount(instances.front().sources);
  const uint32_t count = instances.front().result.count;
  std::vector<uint64_t> results(size_t{tuples} * count * instances.size(), 0xDEADDEADDEADDEAD);
  driver_->Upload(out_, results);
  UploadImages(instances);
  const CUresult result =
      driver_->Run(module, tuples / kBlockThreads, kBlockThreads, {in_, out_, memory_, images_});
  if (result != CUDA_SUCCESS) {
    std::printf("FAIL  error %d from the kernel of\n", result);
    for (const Instance& instance : instances) std::printf("      %s\n", instance.name.c_str());
    std::exit(1);
  }
  driver_->Download(results, out_);
  driver_->Unload(module);
  for (size_t i = 0; i < instances.size(); ++i) {
    Judge(instances[i], std::span(results).subspan(i * tuples * count, size_t{tuples} * count));
  }
}

void Suite::UploadImages(std::span<const Instance> instances) {
  std::vector<uint64_t> handles;
  for (const string& name : ImagesOf(instances)) {
    uint64_t& object = objects_[name];
    if (object == 0) object = driver_->MakeObject(Image::Named(name));
    handles.push_back(object);
  }
  if (!handles.empty()) driver_->Upload(images_, handles);
}

string Suite::OperandText(const Instance& instance, size_t tuple) const {
  string text;
  for (size_t i = 0; i < values_.size(); ++i) {
    const uint32_t count = instance.sources[i].count;
    for (uint32_t k = 0; k < count; ++k)
      text.append(" ").append(Hex(values_[i][tuple * count + k]));
  }
  return text;
}

void Suite::Judge(const Instance& instance, std::span<uint64_t> results) {
  if (instance.row->approximation != nullptr) return JudgeApproximation(instance, results);
  const uint32_t count = instance.result.count;
  for (size_t at = 0; at < results.size(); ++at) {
    results[at] = Canonical(instance.result.type, results[at]);
    if (instance.row->defined == nullptr) continue;
    uint64_t sources[4] = {};
    for (size_t i = 0; i < values_.size(); ++i) {
      const uint32_t bits = RegisterBits(instance.sources[i].type);
      sources[i] = values_[i][at / count] & (~uint64_t{0} >> (64 - bits));
    }
    if (!instance.row->defined(sources)) results[at] = 0;
  }
  const string digest = Digest(results);
  if (record_.is_open()) {
    record_ << instance.name << '\t' << digest;
    for (size_t i = 0; i < kSamples; ++i)
      record_ << '\t' << Hex(results[SampleAt(i, results.size())]);
    record_ << std::endl;  // what follows may end the process
  }
  if (dump_.is_open()) {
    const auto bytes =
        static_cast<uint32_t>(std::max<uint32_t>(RegisterBits(instance.result.type), 8) / 8);
    dump_ << instance.name << '\n' << results.size() << ' ' << bytes << '\n';
    for (const uint64_t value : results) dump_.write(reinterpret_cast<const char*>(&value), bytes);
    dump_ << '\n';
  }
  if (record_.is_open()) {
    ++passed_;
    return;
  }
  const auto found = expected_.find(instance.name);
  if (found == expected_.end()) return Fail(instance, "has no expected results: record them again");
  found->second.is_used = true;
  if (found->second.digest == digest) {
    ++passed_;
    return;
  }
  string differences = "differs";
  int shown = 0;
  for (size_t i = 0; i < found->second.samples.size(); ++i) {
    const size_t at = SampleAt(i, results.size());
    if (results[at] == found->second.samples[i] || shown++ >= kShownMax) continue;
    differences += "; of" + OperandText(instance, at / count) + " gives " + Hex(results[at]) +
                   ", not " + Hex(found->second.samples[i]);
  }
  if (shown == 0) differences += ", in none of the samples";
  Fail(instance, differences);
}

void Suite::JudgeApproximation(const Instance& instance, std::span<const uint64_t> results) {
  const Approximation& approximation = *instance.row->approximation;
  const string& type = instance.result.type;
  int shown = 0;
  double worst = 0;
  for (size_t tuple = 0; tuple < results.size(); ++tuple) {
    for (uint32_t part = 0; part < Parts(type); ++part) {
      double sources[4] = {};
      for (size_t i = 0; i < values_.size(); ++i) {
        sources[i] = Number(instance.sources[i].type, values_[i][tuple], part);
        if (approximation.flushes && std::fabs(sources[i]) < SmallestNormal(type)) {
          sources[i] = std::copysign(0.0, sources[i]);
        }
      }
      if (approximation.holds != nullptr && !approximation.holds(sources)) continue;
      const double exact = approximation.reference(sources);
      const double got = Number(type, results[tuple], part);
      bool good;
      if (std::isnan(exact) || std::isnan(got)) {
        good = std::isnan(exact) && std::isnan(got);
      } else if (approximation.flushes && got == 0 &&
                 std::fabs(exact) <= SmallestNormal(type) * 1.001) {
        good = true;
      } else {
        // Of an infinite reference nothing is left but that.
        double room = 0;
        if (std::isfinite(exact)) {
          room = approximation.absolute + approximation.relative * std::fabs(exact) +
                 approximation.ulps * Ulp(type, exact);
          // A result has to be rounded to a number that its type has.
          if (approximation.ulps == 0) room += Ulp(type, exact) / 2;
        }
        if (std::isinf(got)) {
          good = (got > 0) == (exact > 0) && std::fabs(exact) + room > Largest(type);
        } else {
          good = std::isfinite(exact) && std::fabs(got - exact) <= room;
        }
        if (std::isfinite(got) && std::isfinite(exact) && exact != 0) {
          worst = std::max(worst, std::fabs(got - exact) / room);
        }
      }
      if (good || shown++ >= kShownMax) continue;
      Fail(instance, "of" + OperandText(instance, tuple) + " gives " + Hex(results[tuple]) +
                         ", too far from " + std::to_string(exact));
    }
  }
  if (shown == 0) ++passed_;
  if (record_.is_open()) {
    std::printf("%-28s at most %.3f of the error allowed\n", instance.name.c_str(), worst);
  }
}

int Run(int argc, char** argv) {
  Options options;
  const std::map<string, string*> flags = {
      {"--driver", &options.driver}, {"--record", &options.record}, {"--dump", &options.dump},
      {"--expect", &options.expect}, {"--print", &options.print},   {"--only", &options.only},
      {"--from", &options.from},     {"--rows", &options.rows}};
  for (int i = 1; i < argc; i += 2) {
    const auto flag = flags.find(argv[i]);
    if (flag == flags.end() || i + 1 == argc) {
      std::fprintf(stderr, "what is %s? See the head of tests/ptx/ptx_suite.cc\n", argv[i]);
      return 2;
    }
    *flag->second = argv[i + 1];
  }
  return Suite(options).Main();
}

}  // namespace
}  // namespace consort::ptx_suite

int main(int argc, char** argv) { return consort::ptx_suite::Run(argc, argv); }
