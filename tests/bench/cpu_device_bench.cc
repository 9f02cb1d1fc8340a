// SPDX-License-Identifier: Apache-2.0
// tests/bench/cpu_device_bench.cc: the CPU device against plain C++ on the same cores.
//
//   cpu_device_bench [--driver=LIBRARY] [--runs=N] [--quick] [--only=WORD|load]
//                    [--benchmark_out=FILE]
//
// Runs each kernel of cpu_device_kernels.cu and cpu_device_matrices.cu through the driver API of
// LIBRARY (libconsort-cpu.so), and what cpu_device_reference.cc has for it on as many threads, in
// turns; compares the results, and prints medians, spread and ratio as a Markdown table for
// docs/PERFORMANCE.md: of elapsed time, and of the CPU time of all threads, which other programs on
// the machine disturb less. Then how long a large program takes to load, with nothing cached. FILE
// gets every value, as JSON.
//
// Exit status 0: everything ran and computed the same. Times are not judged.
#include <cuda.h>
#include <dlfcn.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/bench/cpu_device_reference.h"

namespace consort::bench {
namespace {

// What does not go as it must ends the program: there is nothing to measure then.
[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "cpu_device_bench: %s\n", what.c_str());
  std::exit(1);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.good()) Fail("cannot read " + path);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// The part of the driver API that this needs, and a context of the first device.
class Driver {
 public:
  explicit Driver(const std::string& library) {
    library_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) Fail(dlerror());
    Call<decltype(cuInit)>("cuInit", 0u);
    CUdevice device = 0;
    Call<decltype(cuDeviceGet)>("cuDeviceGet", &device, 0);
    CUcontext context = nullptr;
    Call<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain", &context, device);
    Call<decltype(cuCtxSetCurrent)>("cuCtxSetCurrent", context);
    launch_ = reinterpret_cast<decltype(launch_)>(Symbol("cuLaunchKernel"));
    synchronise_ = reinterpret_cast<decltype(synchronise_)>(Symbol("cuCtxSynchronize"));
  }

  CUmodule Load(const std::string& ptx) {
    CUmodule module = nullptr;
    Call<decltype(cuModuleLoadData)>("cuModuleLoadData", &module, ptx.c_str());
    return module;
  }
  void Unload(CUmodule module) { Call<decltype(cuModuleUnload)>("cuModuleUnload", module); }
  CUfunction Function(CUmodule module, const char* name) {
    CUfunction function = nullptr;
    Call<decltype(cuModuleGetFunction)>("cuModuleGetFunction", &function, module, name);
    return function;
  }
  template <typename T>
  CUdeviceptr Upload(const std::vector<T>& values) {
    CUdeviceptr to = 0;
    Call<decltype(cuMemAlloc_v2)>("cuMemAlloc_v2", &to, values.size() * sizeof(T));
    Call<decltype(cuMemcpyHtoD_v2)>("cuMemcpyHtoD_v2", to, values.data(),
                                    values.size() * sizeof(T));
    return to;
  }
  void Clear(CUdeviceptr at, size_t bytes) {
    Call<decltype(cuMemsetD8_v2)>("cuMemsetD8_v2", at, static_cast<unsigned char>(0), bytes);
  }
  template <typename T>
  std::vector<T> Download(CUdeviceptr from, size_t count) {
    std::vector<T> values(count);
    Call<decltype(cuMemcpyDtoH_v2)>("cuMemcpyDtoH_v2", values.data(), from, count * sizeof(T));
    return values;
  }
  void Free(CUdeviceptr at) { Call<decltype(cuMemFree_v2)>("cuMemFree_v2", at); }

  // Starts the kernel. Arguments of exactly the parameters' types.
  template <typename... Arguments>
  void Launch(CUfunction function, std::initializer_list<unsigned> grid,
              std::initializer_list<unsigned> block, Arguments... arguments) {
    void* pointers[] = {&arguments...};
    const unsigned* g = grid.begin();
    const unsigned* b = block.begin();
    Check("cuLaunchKernel", launch_(function, g[0], grid.size() > 1 ? g[1] : 1, 1, b[0],
                                    block.size() > 1 ? b[1] : 1, 1, 0, nullptr, pointers, nullptr));
  }
  void Wait() { Check("cuCtxSynchronize", synchronise_()); }

 private:
  void* Symbol(const char* name) {
    void* symbol = dlsym(library_, name);
    if (symbol == nullptr) Fail(std::string(name) + " is not in the driver");
    return symbol;
  }
  static void Check(const char* name, CUresult result) {
    if (result != CUDA_SUCCESS) Fail(std::string(name) + " gives " + std::to_string(result));
  }
  template <typename Type, typename... Arguments>
  void Call(const char* name, Arguments... arguments) {
    Check(name, reinterpret_cast<Type*>(Symbol(name))(arguments...));
  }

  void* library_ = nullptr;
  decltype(&cuLaunchKernel) launch_ = nullptr;
  decltype(&cuCtxSynchronize) synchronise_ = nullptr;
};

int Cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Calls `part(first, end)` for parts of [0, count), multiples of `step`, on a thread a core. As the
// device does, each takes the next part when it is done with one.
void Share(int count, int step, const std::function<void(int, int)>& part) {
  constexpr int kParts = 64;
  const int size = std::max(step, (count / kParts + step - 1) / step * step);
  std::atomic<int> next = 0;
  auto work = [&] {
    for (int first = next.fetch_add(size); first < count; first = next.fetch_add(size))
      part(first, std::min(count, first + size));
  };
  std::vector<std::thread> others;
  for (int i = 1; i < Cores(); ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

bool Near(double a, double b, double relative) {
  return std::abs(a - b) <= relative * std::max({1.0, std::abs(a), std::abs(b)});
}

bool AllNear(const std::vector<float>& a, const std::vector<float>& b, double relative) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!Near(a[i], b[i], relative)) return false;
  }
  return true;
}

// One line of the table.
struct Row {
  std::string work;                 // sizes, in words
  std::function<void()> device;     // returns when the device is done
  std::function<void()> reference;  // the same in C++
  std::function<bool()> same;       // whether both computed the same, after each ran once
  std::string name = {};
};

class Bench {
 public:
  Bench(Driver& driver, bool quick) : driver_(driver), quick_(quick) {
    module_ = driver.Load(ReadFile(CONSORT_BENCH_KERNELS));
    matrices_ = driver.Load(ReadFile(CONSORT_BENCH_MATRICES));
  }

  // Calls `use` with each row in turn; what a row needs is freed after.
  void ForEachRow(const std::string& only, const std::function<void(Row&)>& use) {
    const std::pair<const char*, Row (Bench::*)()> makes[] = {
        {"saxpy", &Bench::Saxpy},
        {"multiply_naive", &Bench::MultiplyNaive},
        {"multiply_naive, C++ by rows", &Bench::MultiplyNaiveByRow},
        {"multiply_tiled", &Bench::MultiplyTiled},
        {"matrix_f16", &Bench::MatrixHalf},
        {"matrix_bf16", &Bench::MatrixBfloat},
        {"matrix_tf32", &Bench::MatrixTf32},
        {"matrix_f64", &Bench::MatrixDouble},
        {"matrix_s8", &Bench::MatrixByte},
        {"reduce_tree_float", &Bench::ReduceFloat},
        {"reduce_tree_int", &Bench::ReduceInt},
        {"reduce_shallow", &Bench::ReduceShallow},
        {"reduce_shuffle", &Bench::ReduceShuffle},
        {"transpose_naive", &Bench::TransposeNaive},
        {"transpose_tiled", &Bench::TransposeTiled},
        {"black_scholes", &Bench::BlackScholes},
        {"black_scholes_fast", &Bench::BlackScholesFast},
        {"histogram", &Bench::Histogram},
    };
    for (const auto& [name, make] : makes) {
      if (std::strstr(name, only.c_str()) == nullptr) continue;
      Row row = (this->*make)();
      row.name = name;
      use(row);
      for (const CUdeviceptr at : allocated_) driver_.Free(at);
      allocated_.clear();
    }
  }

 private:
  using Floats = std::shared_ptr<std::vector<float>>;

  Floats Random(size_t count, float low, float high) {
    auto values = std::make_shared<std::vector<float>>(count);
    std::uniform_real_distribution<float> number(low, high);
    for (float& value : *values) value = number(random_);
    return values;
  }
  Floats Zeros(size_t count) { return std::make_shared<std::vector<float>>(count); }
  template <typename T>
  CUdeviceptr Upload(const std::vector<T>& values) {
    allocated_.push_back(driver_.Upload(values));
    return allocated_.back();
  }
  CUfunction Function(const char* name) { return driver_.Function(module_, name); }

  Row Saxpy() {
    const int count = quick_ ? 1 << 16 : 1 << 24;
    Floats x = Random(static_cast<size_t>(count), -1, 1);
    Floats y = Random(static_cast<size_t>(count), -1, 1);
    const CUdeviceptr dx = Upload(*x), dy = Upload(*y);
    const CUfunction function = Function("Saxpy");
    return {std::to_string(count) + " floats",
            [=, this] {
              driver_.Launch(function, {unsigned(count + 255) / 256}, {256}, count, 0.5f, dx, dy);
              driver_.Wait();
            },
            [=] {
              Share(count, 64, [&](int first, int end) {
                bench::Saxpy(first, end, 0.5f, x->data(), y->data());
              });
            },
            [=, this] { return AllNear(driver_.Download<float>(dy, y->size()), *y, 1e-6); }};
  }

  using Multiply = void (*)(int, int, int, const float*, const float*, float*);
  Row MultiplyRow(const char* kernel, unsigned block_y, Multiply reference, int step) {
    // No power of two, whose rows fall on the same lines of the cache.
    const int size = quick_ ? 96 : 800;
    const size_t count = static_cast<size_t>(size) * static_cast<size_t>(size);
    Floats a = Random(count, -1, 1), b = Random(count, -1, 1), c = Zeros(count);
    const CUdeviceptr da = Upload(*a), db = Upload(*b), dc = Upload(*c);
    const CUfunction function = Function(kernel);
    const unsigned grid = unsigned(size) / 32, grid_y = unsigned(size) / block_y;
    return {std::to_string(size) + " x " + std::to_string(size),
            [=, this] {
              driver_.Launch(function, {grid, grid_y}, {32, block_y}, size, da, db, dc);
              driver_.Wait();
            },
            [=] {
              Share(size, step, [&](int first, int end) {
                reference(first, end, size, a->data(), b->data(), c->data());
              });
            },
            [=, this] { return AllNear(driver_.Download<float>(dc, count), *c, 1e-4); }};
  }
  Row MultiplyNaive() { return MultiplyRow("MultiplyNaive", 8, &MultiplyByElement, 1); }
  Row MultiplyNaiveByRow() { return MultiplyRow("MultiplyNaive", 8, &MultiplyByRow, 1); }
  Row MultiplyTiled() { return MultiplyRow("MultiplyTiled", 32, &bench::MultiplyTiled, 32); }

  // Both make their sums in the same order, and agree in each bit.
  template <typename Element, typename Total, typename Make>
  Row MatrixRow(const char* kernel, Make make) {
    const int size = quick_ ? 128 : 512;
    const size_t count = static_cast<size_t>(size) * static_cast<size_t>(size);
    auto random = [&] {
      auto values = std::make_shared<std::vector<Element>>(count);
      for (Element& value : *values) value = make(static_cast<uint32_t>(random_()));
      return values;
    };
    const auto a = random(), b = random();
    auto c = std::make_shared<std::vector<Total>>(count);
    const CUdeviceptr da = Upload(*a), db = Upload(*b), dc = Upload(*c);
    const CUfunction function = driver_.Function(matrices_, kernel);
    const unsigned grid = unsigned(size) / 64;
    return {std::to_string(size) + " x " + std::to_string(size),
            [=, this] {
              driver_.Launch(function, {grid, grid}, {256}, size, da, db, dc);
              driver_.Wait();
            },
            [=] {
              Share(size, 32, [&](int first, int end) {
                MultiplyMatrices(first, end, size, a->data(), b->data(), c->data());
              });
            },
            [=, this] { return driver_.Download<Total>(dc, count) == *c; }};
  }
  // Numbers of both signs, of 2^-6 to 4, with all bits of the mantissa that the type has.
  Row MatrixHalf() {
    return MatrixRow<Half, float>("MatrixHalf", [](uint32_t random) {
      return Half{static_cast<uint16_t>((random & 0x9FFF) + 0x2400)};
    });
  }
  Row MatrixBfloat() {
    return MatrixRow<Bfloat, float>("MatrixBfloat", [](uint32_t random) {
      return Bfloat{static_cast<uint16_t>((random & 0x83FF) + 0x3C80)};
    });
  }
  Row MatrixTf32() {
    return MatrixRow<float, float>("MatrixTf32", [](uint32_t random) {
      return std::bit_cast<float>((random & 0x83FFE000) + 0x3C800000);
    });
  }
  Row MatrixDouble() {
    return MatrixRow<double, double>("MatrixDouble", [](uint32_t random) {
      return std::ldexp(static_cast<double>(random) + 0.5, -31) - 1;
    });
  }
  Row MatrixByte() {
    return MatrixRow<int8_t, int32_t>("MatrixByte",
                                      [](uint32_t random) { return static_cast<int8_t>(random); });
  }

  template <typename T>
  Row ReduceRow(const char* kernel, unsigned blocks_max) {
    const int count = quick_ ? 1 << 16 : 1 << 24;
    auto values = std::make_shared<std::vector<T>>(static_cast<size_t>(count));
    for (T& value : *values) value = static_cast<T>(random_() & 1023);
    const unsigned blocks = std::min(unsigned(count) / 256, blocks_max);
    const CUdeviceptr dv = Upload(*values), ds = Upload(std::vector<T>(blocks));
    const CUfunction function = Function(kernel);
    auto total = std::make_shared<double>(0);
    return {std::to_string(count) + (std::is_same_v<T, float> ? " floats" : " integers"),
            [=, this] {
              driver_.Launch(function, {blocks}, {256}, count, dv, ds);
              driver_.Wait();
            },
            [=] {
              std::mutex mutex;
              double sum = 0;
              Share(count, 64, [&](int first, int end) {
                const T part = Sum(first, end, values->data());
                const std::lock_guard<std::mutex> lock(mutex);
                sum += part;
              });
              *total = sum;
            },
            [=, this] {
              double sum = 0;
              for (const T part : driver_.Download<T>(ds, blocks)) sum += part;
              return Near(sum, *total, 1e-5);
            }};
  }
  // As many blocks as fill a GPU, whose threads take many elements each.
  Row ReduceFloat() { return ReduceRow<float>("ReduceTreeFloat", 1024); }
  Row ReduceInt() { return ReduceRow<uint32_t>("ReduceTreeInt", 1024); }
  Row ReduceShuffle() { return ReduceRow<float>("ReduceShuffle", 1024); }
  Row ReduceShallow() { return ReduceRow<float>("ReduceShallow", 1u << 30); }

  using Turn = void (*)(int, int, int, const float*, float*);
  Row TransposeRow(const char* kernel, Turn reference, int step) {
    const int size = quick_ ? 96 : 4000;
    const size_t count = static_cast<size_t>(size) * static_cast<size_t>(size);
    Floats in = Random(count, -1, 1), out = Zeros(count);
    const CUdeviceptr din = Upload(*in), dout = Upload(*out);
    const CUfunction function = Function(kernel);
    const unsigned grid = unsigned(size) / 32;
    return {std::to_string(size) + " x " + std::to_string(size),
            [=, this] {
              driver_.Launch(function, {grid, grid}, {32, 8}, size, din, dout);
              driver_.Wait();
            },
            [=] {
              Share(size, step, [&](int first, int end) {
                reference(first, end, size, in->data(), out->data());
              });
            },
            [=, this] { return driver_.Download<float>(dout, count) == *out; }};
  }
  Row TransposeNaive() { return TransposeRow("TransposeNaive", &Transpose, 1); }
  Row TransposeTiled() { return TransposeRow("TransposeTiled", &bench::TransposeTiled, 32); }

  Row BlackScholesRow(const char* kernel, double tolerance) {
    const int count = quick_ ? 1 << 14 : 1 << 22;
    const auto size = static_cast<size_t>(count);
    Floats prices = Random(size, 5, 30), strikes = Random(size, 1, 100),
           years = Random(size, 0.25, 10);
    Floats calls = Zeros(size), puts = Zeros(size);
    const CUdeviceptr dp = Upload(*prices), dk = Upload(*strikes), dy = Upload(*years);
    const CUdeviceptr dcalls = Upload(*calls), dputs = Upload(*puts);
    const CUfunction function = Function(kernel);
    return {std::to_string(count) + " options",
            [=, this] {
              driver_.Launch(function, {unsigned(count + 127) / 128}, {128}, count, dp, dk, dy,
                             0.02f, 0.3f, dcalls, dputs);
              driver_.Wait();
            },
            [=] {
              const Options options{prices->data(), strikes->data(), years->data(), calls->data(),
                                    puts->data()};
              Share(count, 64, [&](int first, int end) {
                bench::BlackScholes(first, end, options, 0.02f, 0.3f);
              });
            },
            [=, this] {
              return AllNear(driver_.Download<float>(dcalls, size), *calls, tolerance) &&
                     AllNear(driver_.Download<float>(dputs, size), *puts, tolerance);
            }};
  }
  Row BlackScholes() { return BlackScholesRow("BlackScholes", 1e-4); }
  Row BlackScholesFast() { return BlackScholesRow("BlackScholesFast", 1e-3); }

  Row Histogram() {
    const int count = quick_ ? 1 << 16 : 1 << 26;
    auto values = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(count));
    for (size_t i = 0; i < values->size(); i += 8) {
      const uint64_t eight = random_();
      std::memcpy(values->data() + i, &eight, 8);
    }
    auto counts = std::make_shared<std::vector<uint32_t>>(256);
    const CUdeviceptr dv = Upload(*values), dc = Upload(*counts);
    const CUfunction function = Function("Histogram");
    return {std::to_string(count) + " bytes",
            [=, this] {
              driver_.Clear(dc, 256 * sizeof(uint32_t));
              driver_.Launch(function, {240}, {256}, count / 4, dv, dc);
              driver_.Wait();
            },
            [=] {
              std::mutex mutex;
              std::fill(counts->begin(), counts->end(), 0);
              Share(count, 64, [&](int first, int end) {
                uint32_t part[256] = {};
                bench::Histogram(first, end, values->data(), part);
                const std::lock_guard<std::mutex> lock(mutex);
                for (size_t i = 0; i < 256; ++i) (*counts)[i] += part[i];
              });
            },
            [=, this] { return driver_.Download<uint32_t>(dc, 256) == *counts; }};
  }

  Driver& driver_;
  const bool quick_;
  CUmodule module_ = nullptr;
  CUmodule matrices_ = nullptr;
  std::mt19937_64 random_{20261121};
  std::vector<CUdeviceptr> allocated_;
};

// In milliseconds.
struct Times {
  double elapsed, cpu;
};

double Now(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

Times Measure(const std::function<void()>& work) {
  const Times start = {Now(CLOCK_MONOTONIC), Now(CLOCK_PROCESS_CPUTIME_ID)};
  work();
  return {Now(CLOCK_MONOTONIC) - start.elapsed, Now(CLOCK_PROCESS_CPUTIME_ID) - start.cpu};
}

// Median, least and most.
struct Spread {
  explicit Spread(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t half = values.size() / 2;
    median = values.size() % 2 != 0 ? values[half] : (values[half - 1] + values[half]) / 2;
    least = values.front();
    most = values.back();
  }
  double median, least, most;
};

std::string Cell(const Spread& spread) {
  char text[96];
  const int digits = spread.median < 10 ? 2 : spread.median < 1000 ? 1 : 0;
  std::snprintf(text, sizeof(text), "%.*f (%.*f to %.*f)", digits, spread.median, digits,
                spread.least, digits, spread.most);
  return text;
}

std::string List(const std::vector<double>& values) {
  std::string text = "[";
  for (const double value : values) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(value);
  }
  return text + "]";
}

struct Arguments {
  std::string driver, only, out;
  int runs = 7;
  bool quick = false;
};

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  auto value = [&](const std::string& argument, const char* name, std::string& into) {
    const std::string prefix = std::string(name) + "=";
    if (argument.compare(0, prefix.size(), prefix) != 0) return false;
    into = argument.substr(prefix.size());
    return true;
  };
  std::string runs, format;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick") {
      arguments.quick = true;
    } else if (!value(argument, "--driver", arguments.driver) &&
               !value(argument, "--only", arguments.only) && !value(argument, "--runs", runs) &&
               !value(argument, "--benchmark_out", arguments.out) &&
               !value(argument, "--benchmark_out_format", format)) {
      Fail("no such argument: " + argument);
    }
  }
  if (arguments.driver.empty()) arguments.driver = CONSORT_BENCH_DRIVER;
  if (!runs.empty()) arguments.runs = std::atoi(runs.c_str());
  if (arguments.runs < 1) Fail("--runs is a number from 1 on");
  return arguments;
}

// Loads the large program anew and launches each of its kernels once, which makes its code.
void MeasureLoading(Driver& driver, int runs, std::string* json) {
  const std::string ptx = ReadFile(CONSORT_BENCH_LARGE);
  std::vector<std::string> kernels;
  const std::string entry = ".entry ";
  for (size_t at = ptx.find(entry); at != std::string::npos; at = ptx.find(entry, at + 1)) {
    const size_t name = at + entry.size();
    kernels.push_back(ptx.substr(name, ptx.find('(', name) - name));
  }
  std::vector<double> loads, codes, loads_cpu, codes_cpu;
  for (int run = 0; run < runs; ++run) {
    CUmodule module = nullptr;
    const Times load = Measure([&] { module = driver.Load(ptx); });
    const Times code = Measure([&] {
      // Zeros for all parameters, five at most: what is launched ends at once.
      for (const std::string& name : kernels) {
        driver.Launch(driver.Function(module, name.c_str()), {1}, {64}, uint64_t{0}, uint64_t{0},
                      uint64_t{0}, uint64_t{0}, uint64_t{0});
      }
      driver.Wait();
    });
    driver.Unload(module);
    loads.push_back(load.elapsed);
    loads_cpu.push_back(load.cpu);
    codes.push_back(code.elapsed);
    codes_cpu.push_back(code.cpu);
  }
  std::printf(
      "\nA program of %td lines of PTX, %zu kernels, nothing cached: to load %s ms, CPU time %s "
      "ms; "
      "first launches of all kernels %s ms, CPU time %s ms.\n",
      std::count(ptx.begin(), ptx.end(), '\n'), kernels.size(), Cell(Spread(loads)).c_str(),
      Cell(Spread(loads_cpu)).c_str(), Cell(Spread(codes)).c_str(),
      Cell(Spread(codes_cpu)).c_str());
  *json += ",\n \"load_ms\": " + List(loads) + ",\n \"load_cpu_ms\": " + List(loads_cpu) +
           ",\n \"first_launches_ms\": " + List(codes) +
           ",\n \"first_launches_cpu_ms\": " + List(codes_cpu);
}

int Main(int argc, char** argv) {
  const Arguments arguments = Parse(argc, argv);
  // Loading is measured with nothing cached, and a device is as fast as the machine unless said.
  setenv("CONSORT_CPU_CACHE", "", 1);
  Driver driver(arguments.driver);
  Bench bench(driver, arguments.quick);
  std::printf(
      "%d cores, %d runs%s: milliseconds, median (least to most); ratio of medians (least to most "
      "of the pairs).\n\n",
      Cores(), arguments.runs, arguments.quick ? " (quick)" : "");
  std::printf(
      "| kernel | work | C++ -O3 | CPU device | CPU device / C++ | CPU time / C++'s |\n"
      "| --- | --- | --- | --- | --- | --- |\n");
  std::string json = "{\"rows\": [";
  bool all_same = true;
  bench.ForEachRow(arguments.only, [&](Row& row) {
    row.device();
    row.reference();
    if (!row.same()) {
      all_same = false;
      std::fprintf(stderr, "cpu_device_bench: %s: the device and C++ differ\n", row.name.c_str());
    }
    std::vector<double> ours, theirs, pairs, ours_cpu, theirs_cpu;
    for (int run = 0; run < arguments.runs; ++run) {
      // In turns, so that both see the same weather.
      const Times device = Measure(row.device), reference = Measure(row.reference);
      ours.push_back(device.elapsed);
      theirs.push_back(reference.elapsed);
      pairs.push_back(device.elapsed / reference.elapsed);
      ours_cpu.push_back(device.cpu);
      theirs_cpu.push_back(reference.cpu);
    }
    Spread ratio(pairs);
    ratio.median = Spread(ours).median / Spread(theirs).median;
    std::printf("| `%s` | %s | %s | %s | %s | %.2f |\n", row.name.c_str(), row.work.c_str(),
                Cell(Spread(theirs)).c_str(), Cell(Spread(ours)).c_str(), Cell(ratio).c_str(),
                Spread(ours_cpu).median / Spread(theirs_cpu).median);
    std::fflush(stdout);
    json += std::string(json.back() == '[' ? "" : ",") + "\n  {\"name\": \"" + row.name +
            "\", \"reference_ms\": " + List(theirs) + ", \"device_ms\": " + List(ours) +
            ", \"reference_cpu_ms\": " + List(theirs_cpu) +
            ", \"device_cpu_ms\": " + List(ours_cpu) + "}";
  });
  json += "]";
  if (arguments.only.empty() || arguments.only == "load")
    MeasureLoading(driver, arguments.quick ? 1 : arguments.runs, &json);
  json += "}\n";
  if (!arguments.out.empty()) {
    std::ofstream file(arguments.out);
    file << json;
    if (!file.good()) Fail("cannot write " + arguments.out);
  }
  return all_same ? 0 : 1;
}

}  // namespace
}  // namespace consort::bench

int main(int argc, char** argv) { return consort::bench::Main(argc, argv); }
