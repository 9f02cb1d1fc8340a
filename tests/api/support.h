// SPDX-License-Identifier: Apache-2.0
// tests/api/support.h: what the cases share: how a case is declared, fixtures, owners of driver
// objects, child processes.
//
// A case is declared with API_TEST (runs in this process) or API_TEST_ALONE (runs in a process of
// its own, started by fork and exec, so that it sees a driver that nobody has initialized and may
// break it). Expectations are what the CUDA Driver API reference (13.0) says; the doxygen text of
// cuda.h is the same. Environment of the program:
//   CONSORT_TEST_LIBCUDA       library under test (driver.h)
//   CONSORT_TEST_ORACLE=1      that library is NVIDIA's: cases on which it is known to misbehave or
//   that are about what
//                              Consort chose are skipped; choices that the reference leaves open
//                              are printed
//   CONSORT_TEST_SUBSET=1      that library exports only some functions: a case that needs another
//   is skipped CONSORT_TEST_ISOLATE=1     every case runs in a process of its own: a case that
//   crashes the library fails alone CONSORT_TEST_CASE_SECONDS  bound on one case (default 120); a
//   case that exceeds it ends the program
#ifndef CONSORT_TESTS_API_SUPPORT_H_
#define CONSORT_TESTS_API_SUPPORT_H_

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/api/driver.h"
#include "tests/api/images.h"

namespace consort::tests::api {

// ---- Results ----

// Fails the case unless `result` is `expected`; prints both by name.
testing::AssertionResult IsResult(const char* expected_text, const char* call_text,
                                  CUresult expected, CUresult result);
// Fails the case unless `result` is one of `allowed`, which the reference leaves open. Printed when
// run as oracle.
testing::AssertionResult IsOneOf(const char* call_text, CUresult result,
                                 std::initializer_list<CUresult> allowed);

#define EXPECT_RESULT(expected, call) \
  EXPECT_PRED_FORMAT2(::consort::tests::api::IsResult, expected, call)
#define ASSERT_RESULT(expected, call) \
  ASSERT_PRED_FORMAT2(::consort::tests::api::IsResult, expected, call)
#define EXPECT_OK(call) EXPECT_RESULT(CUDA_SUCCESS, call)
#define ASSERT_OK(call) ASSERT_RESULT(CUDA_SUCCESS, call)
#define EXPECT_ONE_OF(call, ...) \
  EXPECT_TRUE(::consort::tests::api::IsOneOf(#call, call, {__VA_ARGS__}))

// For helpers that return a value: ends the case as failed unless `result` is CUDA_SUCCESS. Any
// thread of RunThreads.
struct UnexpectedResult {
  std::string text;
};
void Require(CUresult result, const char* what);

// ---- Cases ----

bool IsOracle();
bool IsSubset();
bool IsChild();
bool IsIsolated();

// Skips the case on NVIDIA's library. `reason` says why it cannot be asked there.
#define SKIP_ON_ORACLE(reason)                        \
  if (::consort::tests::api::IsOracle()) {            \
    GTEST_SKIP() << "only for Consort: " << (reason); \
  }                                                   \
  static_assert(true, "")

struct AloneOptions {
  // Set in the child's environment; an empty value is set, not removed.
  std::vector<std::pair<std::string, std::string>> environment;
};

// Runs the case `suite.name` of this program in a child process and passes on its outcome.
void RunAlone(const std::string& suite, const std::string& name, const AloneOptions& options);

// Turns MissingFunction into a skip (with CONSORT_TEST_SUBSET=1) or a failure, UnexpectedResult
// into a failure, and bounds the time of the case.
void RunGuarded(const std::function<void()>& body);
void ArmWatchdog();
void DisarmWatchdog();

template <typename Fixture>
class Guarded : public Fixture {
 protected:
  void SetUp() override {
    if (runs_elsewhere()) return;
    ArmWatchdog();
    RunGuarded([this] { Fixture::SetUp(); });
  }
  void TearDown() override {
    if (runs_elsewhere()) return;
    RunGuarded([this] { Fixture::TearDown(); });
    DisarmWatchdog();
  }
  void TestBody() override {
    if (runs_elsewhere()) {
      const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
      RunAlone(info->test_suite_name(), info->name(), alone());
      return;
    }
    RunGuarded([this] { Body(); });
  }
  virtual void Body() = 0;
  virtual bool is_alone() const { return false; }
  virtual AloneOptions alone() const { return {}; }

 private:
  bool runs_elsewhere() const { return (is_alone() || IsIsolated()) && !IsChild(); }
};

#define CONSORT_API_TEST(fixture, name, ...)                                       \
  class fixture##_##name final : public ::consort::tests::api::Guarded<fixture> {  \
    void Body() override;                                                          \
    __VA_ARGS__                                                                    \
  };                                                                               \
  [[maybe_unused]] const testing::TestInfo* const fixture##_##name##_info =        \
      testing::RegisterTest(#fixture, #name, nullptr, nullptr, __FILE__, __LINE__, \
                            []() -> fixture* { return new fixture##_##name; });    \
  void fixture##_##name::Body()

#define API_TEST(fixture, name) CONSORT_API_TEST(fixture, name, )
#define API_TEST_ALONE(fixture, name) \
  CONSORT_API_TEST(                   \
      fixture, name, bool is_alone() const override { return true; })
// The last arguments are {"NAME", "value"} pairs for the child's environment.
#define API_TEST_ALONE_WITH(fixture, name, ...)                            \
  CONSORT_API_TEST(                                                        \
      fixture, name,                                                       \
      bool is_alone() const override { return true; } AloneOptions alone() \
          const override { return {{__VA_ARGS__}}; })

// ---- Fixtures ----

// Promises nothing: the driver may not have been initialized.
class UninitializedTest : public testing::Test {};

// cuInit has been called; device 0 exists. The calling thread may have no current context.
class DriverTest : public testing::Test {
 protected:
  void SetUp() override;
  int Attribute(CUdevice_attribute attribute) const;
  CUdevice device() const { return device_; }

 private:
  CUdevice device_ = 0;
};

// The primary context of device 0 is current, and the only one on the calling thread's stack. It is
// retained once a process and kept. After the case no error may be pending.
class ContextTest : public DriverTest {
 protected:
  void SetUp() override;
  void TearDown() override;
  CUcontext context() const { return context_; }

 private:
  CUcontext context_ = nullptr;
};

// The primary context of device 0, retained once a process. Ends the case as failed if that does
// not work.
CUcontext PrimaryContext();
// Empties the calling thread's context stack.
void PopAllContexts();
// Bytes free on the current context's device, once it is the same for a while: what programs held
// that have ended may be given back a little after their end.
size_t SettledFreeBytes();

// ---- Owners. Each is thread compatible, frees in its destructor and ignores the result of that.
// ----

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  CUdeviceptr get() const { return address_; }
  operator CUdeviceptr() const { return address_; }  // NOLINT: the cases read better
  size_t bytes() const { return bytes_; }
  // Copies and fills of the whole buffer or of its first values; complete at return. They wait for
  // the legacy stream.
  template <typename T>
  void Write(const std::vector<T>& values) const {
    WriteBytes(values.data(), values.size() * sizeof(T));
  }
  template <typename T>
  std::vector<T> Read(size_t count) const {
    std::vector<T> values(count);
    ReadBytes(values.data(), count * sizeof(T));
    return values;
  }
  unsigned ReadWord() const { return Read<unsigned>(1)[0]; }
  void Fill(unsigned char value) const;

 private:
  void WriteBytes(const void* data, size_t bytes) const;
  void ReadBytes(void* data, size_t bytes) const;
  CUdeviceptr address_ = 0;
  size_t bytes_;
};

// Page-locked host memory of cuMemHostAlloc.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(size_t bytes, unsigned flags = 0);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  void* get() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

class Stream {
 public:
  explicit Stream(unsigned flags = CU_STREAM_NON_BLOCKING);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CUstream get() const { return stream_; }
  operator CUstream() const { return stream_; }  // NOLINT

 private:
  CUstream stream_ = nullptr;
};

class Event {
 public:
  explicit Event(unsigned flags = CU_EVENT_DEFAULT);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  CUevent get() const { return event_; }
  operator CUevent() const { return event_; }  // NOLINT

 private:
  CUevent event_ = nullptr;
};

class Module {
 public:
  explicit Module(const Image& image);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  CUmodule get() const { return module_; }
  operator CUmodule() const { return module_; }  // NOLINT
  CUfunction Function(const char* name) const;
  CUdeviceptr Global(const char* name) const;

 private:
  CUmodule module_ = nullptr;
};

// A context made by cuCtxCreate_v2; popped at once, so that nothing is current because of it.
class CreatedContext {
 public:
  explicit CreatedContext(CUdevice device, unsigned flags = 0);
  ~CreatedContext();
  CreatedContext(const CreatedContext&) = delete;
  CreatedContext& operator=(const CreatedContext&) = delete;
  CUcontext get() const { return context_; }
  operator CUcontext() const { return context_; }  // NOLINT
  // Destroys it now; the destructor does nothing any more.
  CUresult Destroy();

 private:
  CUcontext context_ = nullptr;
};

// A file with these bytes, removed at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const Image& image);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_ = "/tmp/api_test.XXXXXX";
};

// Launches with kernelParams: grid and block in one dimension.
template <typename... Params>
CUresult Launch(CUfunction function, unsigned grid, unsigned block, CUstream stream,
                Params... params) {
  void* pointers[] = {static_cast<void*>(&params)..., nullptr};
  return Drv().cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, pointers, nullptr);
}

// Keeps a stream busy until opened, with no assumption about time: enqueues a host function that
// waits. Functions that may wait for the device (module load, first launch of a kernel, allocation)
// must not be called while a gate is closed.
class StreamGate {
 public:
  explicit StreamGate(CUstream stream);
  // Opens, and waits until the host function has left.
  ~StreamGate();
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;
  void Open();
  // The host function gave up waiting (30 s): whatever the case proved by the gate is not proved.
  bool timed_out() const;

 private:
  static void CUDA_CB Wait(void* self);
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  bool left_ = false;
  bool timed_out_ = false;
};

// A flag that another thread sets; waiting is bounded.
class Signal {
 public:
  void Set();
  // False after 30 s without Set.
  [[nodiscard]] bool Wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

// Runs body(index) in `count` threads at once and waits for all. The first exception of a thread is
// rethrown here.
void RunThreads(int count, const std::function<void(int)>& body);

// ---- Processes ----

struct ChildOutcome {
  bool timed_out = false;
  bool exited = false;  // otherwise ended by `signal`
  int status = 0;
  int signal = 0;
  std::string output;  // of stdout and stderr
};

// Forks; the child runs `body` and leaves by _exit with what it returned. Waits for at most
// `seconds`, then kills.
ChildOutcome RunForked(const std::function<int()>& body, int seconds);
std::ostream& operator<<(std::ostream& out, const ChildOutcome& outcome);

std::vector<unsigned> Iota(size_t count, unsigned first = 0);

}  // namespace consort::tests::api

#endif  // CONSORT_TESTS_API_SUPPORT_H_
