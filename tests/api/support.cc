// SPDX-License-Identifier: Apache-2.0
#include "tests/api/support.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <numeric>
#include <thread>

namespace consort::tests::api {
namespace {

constexpr int kCaseSecondsDefault =
    120;  // a context on a real GPU takes about a second; emulated guests are slower
constexpr std::chrono::seconds kWaitMax{30};
constexpr int kStackDepthMax = 10000;  // far more than any case pushes
constexpr int kChildSkipped = 77;      // what ctest and automake take for "skipped"
constexpr const char* kChildVariable = "CONSORT_TEST_CHILD";

bool IsSet(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && std::strcmp(value, "1") == 0;
}

int CaseSeconds() {
  const char* value = std::getenv("CONSORT_TEST_CASE_SECONDS");
  const int seconds = value != nullptr ? std::atoi(value) : 0;
  return seconds > 0 ? seconds : kCaseSecondsDefault;
}

void OnAlarm(int) {
  constexpr char kText[] =
      "\n[  BOUND   ] the case above exceeded CONSORT_TEST_CASE_SECONDS; giving up\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(124);
}

// Reads the child's output until it closes it, then reaps it.
ChildOutcome Collect(pid_t child, int read_end, int seconds) {
  ChildOutcome outcome;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  char chunk[4096];
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      outcome.timed_out = true;
      kill(child, SIGKILL);
      break;
    }
    pollfd poll_for = {read_end, POLLIN, 0};
    const int ready = poll(&poll_for, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) continue;
    const ssize_t got = read(read_end, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    outcome.output.append(chunk, static_cast<size_t>(got));
  }
  close(read_end);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  outcome.exited = WIFEXITED(status);
  outcome.status = outcome.exited ? WEXITSTATUS(status) : 0;
  outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return outcome;
}

}  // namespace

testing::AssertionResult IsResult(const char*, const char* call_text, CUresult expected,
                                  CUresult result) {
  if (expected == result) return testing::AssertionSuccess();
  return testing::AssertionFailure() << call_text << "\n  returned " << ResultName(result)
                                     << "\n  expected " << ResultName(expected);
}

testing::AssertionResult IsOneOf(const char* call_text, CUresult result,
                                 std::initializer_list<CUresult> allowed) {
  if (IsOracle()) std::printf("[ OBSERVED ] %s = %s\n", call_text, ResultName(result));
  if (std::find(allowed.begin(), allowed.end(), result) != allowed.end())
    return testing::AssertionSuccess();
  testing::AssertionResult failure = testing::AssertionFailure();
  failure << call_text << "\n  returned " << ResultName(result) << "\n  expected one of";
  for (CUresult one : allowed) failure << " " << ResultName(one);
  return failure;
}

void Require(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS)
    throw UnexpectedResult{std::string(what) + " returned " + ResultName(result)};
}

bool IsOracle() { return IsSet("CONSORT_TEST_ORACLE"); }
bool IsSubset() { return IsSet("CONSORT_TEST_SUBSET"); }
bool IsChild() { return IsSet(kChildVariable); }
bool IsIsolated() { return IsSet("CONSORT_TEST_ISOLATE"); }

void ArmWatchdog() {
  signal(SIGALRM, OnAlarm);
  alarm(static_cast<unsigned>(CaseSeconds()));
}

void DisarmWatchdog() { alarm(0); }

void RunGuarded(const std::function<void()>& body) {
  try {
    body();
  } catch (const MissingFunction& missing) {
    if (IsSubset()) GTEST_SKIP() << "the library does not export " << missing.name;
    FAIL() << "the library does not export " << missing.name;
  } catch (const UnexpectedResult& unexpected) {
    FAIL() << unexpected.text;
  }
}

void RunAlone(const std::string& suite, const std::string& name, const AloneOptions& options) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0) << std::strerror(errno);
  // Everything that allocates is done before fork: the child of a process with threads may only
  // call async-signal-safe functions until exec.
  const std::string filter = "--gtest_filter=" + suite + "." + name;
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string key = text.substr(0, text.find('='));
    const bool replaced = std::any_of(options.environment.begin(), options.environment.end(),
                                      [&](const auto& pair) { return pair.first == key; });
    if (!replaced && key != "GTEST_OUTPUT" && key != "GTEST_TOTAL_SHARDS" &&
        key != "GTEST_SHARD_INDEX") {
      environment.push_back(text);
    }
  }
  for (const auto& [key, value] : options.environment) environment.push_back(key + "=" + value);
  environment.push_back(std::string(kChildVariable) + "=1");
  std::vector<char*> environment_pointers;
  for (std::string& entry : environment) environment_pointers.push_back(entry.data());
  environment_pointers.push_back(nullptr);
  const char* const arguments[] = {"api_test", filter.c_str(), "--gtest_color=no", nullptr};

  const pid_t child = fork();
  ASSERT_GE(child, 0) << std::strerror(errno);
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execve("/proc/self/exe", const_cast<char* const*>(arguments), environment_pointers.data());
    _exit(126);
  }
  close(ends[1]);
  const ChildOutcome outcome = Collect(child, ends[0], CaseSeconds() + 10);
  if (IsOracle()) {
    // Show what the reference leaves open.
    for (size_t at = outcome.output.find("[ OBSERVED ]"); at != std::string::npos;
         at = outcome.output.find("[ OBSERVED ]", at + 1)) {
      std::printf("%s\n", outcome.output.substr(at, outcome.output.find('\n', at) - at).c_str());
    }
  }
  if (outcome.exited && outcome.status == kChildSkipped) {
    const size_t reason = outcome.output.find("Skipped\n");
    GTEST_SKIP() << (reason == std::string::npos
                         ? "in the child"
                         : outcome.output.substr(
                               reason + 8, outcome.output.find('\n', reason + 8) - reason - 8));
  }
  EXPECT_TRUE(outcome.exited && outcome.status == 0) << outcome;
}

void DriverTest::SetUp() {
  Require(Drv().cuInit(0), "cuInit");
  Require(Drv().cuDeviceGet(&device_, 0), "cuDeviceGet");
}

int DriverTest::Attribute(CUdevice_attribute attribute) const {
  int value = -1;
  Require(Drv().cuDeviceGetAttribute(&value, attribute, device_), "cuDeviceGetAttribute");
  return value;
}

CUcontext PrimaryContext() {
  // One reference for the whole process; released by its end.
  static CUcontext context = [] {
    CUdevice device = 0;
    CUcontext retained = nullptr;
    Require(Drv().cuDeviceGet(&device, 0), "cuDeviceGet");
    Require(Drv().cuDevicePrimaryCtxRetain(&retained, device), "cuDevicePrimaryCtxRetain");
    return retained;
  }();
  return context;
}

void PopAllContexts() {
  for (int depth = 0; depth < kStackDepthMax; ++depth) {
    CUcontext popped = nullptr;
    if (Drv().cuCtxPopCurrent_v2(&popped) != CUDA_SUCCESS) return;
  }
  throw UnexpectedResult{"the context stack does not become empty"};
}

void ContextTest::SetUp() {
  DriverTest::SetUp();
  context_ = PrimaryContext();
  PopAllContexts();
  Require(Drv().cuCtxSetCurrent(context_), "cuCtxSetCurrent");
}

void ContextTest::TearDown() {
  PopAllContexts();
  Require(Drv().cuCtxSetCurrent(context_), "cuCtxSetCurrent");
  EXPECT_OK(Drv().cuCtxSynchronize()) << "the case left an error behind";
}

size_t SettledFreeBytes() {
  constexpr std::chrono::milliseconds kWhile{50};
  constexpr int kReadingsMax = 200;
  size_t last = 0;
  for (int reading = 0; reading < kReadingsMax; ++reading) {
    size_t bytes = 0, total = 0;
    Require(Drv().cuMemGetInfo_v2(&bytes, &total), "cuMemGetInfo");
    if (reading > 0 && bytes == last) return bytes;
    last = bytes;
    std::this_thread::sleep_for(kWhile);
  }
  throw UnexpectedResult{"the device's free memory does not settle"};
}

DeviceBuffer::DeviceBuffer(size_t bytes) : bytes_(bytes) {
  Require(Drv().cuMemAlloc_v2(&address_, bytes), "cuMemAlloc");
}
DeviceBuffer::~DeviceBuffer() { Drv().cuMemFree_v2(address_); }
// Fills are asynchronous to the host, and small copies from pageable memory may be (CUDA Driver
// API, "API synchronization behavior"): without the wait they would race with work in non-blocking
// streams.
void DeviceBuffer::Fill(unsigned char value) const {
  Require(Drv().cuMemsetD8_v2(address_, value, bytes_), "cuMemsetD8");
  Require(Drv().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
}
void DeviceBuffer::WriteBytes(const void* data, size_t bytes) const {
  Require(Drv().cuMemcpyHtoD_v2(address_, data, bytes), "cuMemcpyHtoD");
  Require(Drv().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
}
void DeviceBuffer::ReadBytes(void* data, size_t bytes) const {
  Require(Drv().cuMemcpyDtoH_v2(data, address_, bytes), "cuMemcpyDtoH");
}

PinnedBuffer::PinnedBuffer(size_t bytes, unsigned flags) {
  Require(Drv().cuMemHostAlloc(&data_, bytes, flags), "cuMemHostAlloc");
}
PinnedBuffer::~PinnedBuffer() { Drv().cuMemFreeHost(data_); }

Stream::Stream(unsigned flags) { Require(Drv().cuStreamCreate(&stream_, flags), "cuStreamCreate"); }
Stream::~Stream() { Drv().cuStreamDestroy_v2(stream_); }

Event::Event(unsigned flags) { Require(Drv().cuEventCreate(&event_, flags), "cuEventCreate"); }
Event::~Event() { Drv().cuEventDestroy_v2(event_); }

Module::Module(const Image& image) {
  Require(Drv().cuModuleLoadData(&module_, image.data), "cuModuleLoadData");
}
Module::~Module() { Drv().cuModuleUnload(module_); }
CUfunction Module::Function(const char* name) const {
  CUfunction function = nullptr;
  Require(Drv().cuModuleGetFunction(&function, module_, name), "cuModuleGetFunction");
  return function;
}
CUdeviceptr Module::Global(const char* name) const {
  CUdeviceptr address = 0;
  size_t bytes = 0;
  Require(Drv().cuModuleGetGlobal_v2(&address, &bytes, module_, name), "cuModuleGetGlobal");
  return address;
}

CreatedContext::CreatedContext(CUdevice device, unsigned flags) {
  Require(Drv().cuCtxCreate_v2(&context_, flags, device), "cuCtxCreate_v2");
  CUcontext popped = nullptr;
  Require(Drv().cuCtxPopCurrent_v2(&popped), "cuCtxPopCurrent");
}
CreatedContext::~CreatedContext() { Destroy(); }
CUresult CreatedContext::Destroy() {
  if (context_ == nullptr) return CUDA_SUCCESS;
  return Drv().cuCtxDestroy_v2(std::exchange(context_, nullptr));
}

TemporaryFile::TemporaryFile(const Image& image) {
  const int file = mkstemp(path_.data());
  if (file < 0) throw UnexpectedResult{"mkstemp failed"};
  const ssize_t written = write(file, image.data, image.bytes);
  close(file);
  if (written != static_cast<ssize_t>(image.bytes)) throw UnexpectedResult{"write failed"};
}

TemporaryFile::~TemporaryFile() { unlink(path_.c_str()); }

StreamGate::StreamGate(CUstream stream) {
  Require(Drv().cuLaunchHostFunc(stream, Wait, this), "cuLaunchHostFunc");
}

StreamGate::~StreamGate() {
  Open();
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kWaitMax, [this] { return left_; });
}

void StreamGate::Open() {
  std::lock_guard lock(mutex_);
  open_ = true;
  changed_.notify_all();
}

bool StreamGate::timed_out() const {
  std::lock_guard lock(mutex_);
  return timed_out_;
}

void StreamGate::Wait(void* self) {
  StreamGate* gate = static_cast<StreamGate*>(self);
  std::unique_lock lock(gate->mutex_);
  gate->timed_out_ = !gate->changed_.wait_for(lock, kWaitMax, [gate] { return gate->open_; });
  gate->left_ = true;
  gate->changed_.notify_all();
}

void Signal::Set() {
  std::lock_guard lock(mutex_);
  set_ = true;
  changed_.notify_all();
}

bool Signal::Wait() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kWaitMax, [this] { return set_; });
}

void RunThreads(int count, const std::function<void(int)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(count));
  for (int index = 0; index < count; ++index) {
    threads.emplace_back([&, index] {
      try {
        body(index);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (first == nullptr) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first != nullptr) std::rethrow_exception(first);
}

ChildOutcome RunForked(const std::function<int()>& body, int seconds) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw UnexpectedResult{std::string("pipe2: ") + std::strerror(errno)};
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw UnexpectedResult{std::string("fork: ") + std::strerror(errno)};
  if (child == 0) {
    close(ends[0]);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    int status = 125;
    try {
      status = body();
    } catch (const MissingFunction& missing) {
      std::fprintf(stderr, "the library does not export %s\n", missing.name);
      status = kChildSkipped;
    } catch (const UnexpectedResult& unexpected) {
      std::fprintf(stderr, "%s\n", unexpected.text.c_str());
    }
    std::fflush(nullptr);
    _exit(status);
  }
  close(ends[1]);
  return Collect(child, ends[0], seconds);
}

std::ostream& operator<<(std::ostream& out, const ChildOutcome& outcome) {
  if (outcome.timed_out) out << "the child did not end in time; ";
  if (outcome.exited) {
    out << "the child ended with status " << outcome.status;
  } else {
    out << "the child was ended by signal " << outcome.signal;
  }
  return out << "; its output:\n" << outcome.output;
}

std::vector<unsigned> Iota(size_t count, unsigned first) {
  std::vector<unsigned> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

}  // namespace consort::tests::api
