// SPDX-License-Identifier: Apache-2.0
// host/session/vm_front_bench.cc: how many bytes a second the host's side moves between a virtual
// machine's rings and a device, in one process: a guest that costs little (fast_guest.h), the vsock
// device with and without its crew, a conduit, a session, the driver.
//
//   vm_front_bench [--device cpu|nvidia] [--threads N] [--share KIB] [--mib N] [--seconds S]
//                  [--deliver]
//
// For each kernel's shapes of buffers and each crew: copies of `--mib` to the device and back, for
// `--seconds` each, beside plain copies of the same pieces by the driver between pinned memory and
// the device. Frames are looked at as they come; at the end all of what the device has is read back
// and compared, by sums of each piece that tell its place too. `--share`: what a thread of the crew
// takes at a time. `--deliver`: the guest's thread copies what it gets, as its kernel does for a
// program.
//
// Then copies of `--mib` between the device and pinned memory that a machine shares with its host
// (consortd --vm-memory), which no CPU copies: kCopiesAtOnce of them, then a synchronisation; and
// the driver's own likewise.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "gen/wire/requests.h"
#include "host/control/control_socket.h"
#include "host/limits.h"
#include "host/session/session.h"
#include "host/session/vm_machine_test_support.h"
#include "vmsock/conduit.h"
#include "vmsock/copy_crew.h"
#include "vmsock/deadline.h"
#include "vmsock/limits.h"
#include "vmsock/listen.h"
#include "vmsock/vhost_user/fast_guest.h"
#include "vmsock/vm_memory.h"

namespace consort::host {
namespace {

constexpr uint32_t kGuestPort = 2000;
constexpr uint32_t kContext = 1;
constexpr uint64_t kStream = 1;
constexpr Bytes kPieceBytes = wire::kBulkBytesMax;
constexpr int kCopiesAtOnce = 8;
constexpr Nanos kPatience = 60 * kSecond;

struct Options {
  device::DriverKind kind = device::DriverKind::kCpu;
  uint32_t threads = CopyCrew::ThreadsFor(std::thread::hardware_concurrency());
  Bytes share = CopyCrewOptions{}.share;
  Bytes bytes = 64 * kMiB;
  Nanos time = kSecond;
  bool deliver = false;
};

// A process's driver, and what sessions want beside it.
struct Host {
  device::LoadedDriver driver;
  std::unique_ptr<WorkerDevice> device;
  Scheduler scheduler{nullptr};
  RateLimit rate;
  std::unique_ptr<MemoryBroker> broker;
  DeviceHealth health{[](const std::string& reason) { LOG(FATAL) << reason; }};
};

// One machine with one program.
class Front {
 public:
  Front(Host* host, CopyCrew* crew, const vhost_user::GuestKernel& kernel, Bytes bytes);
  ~Front();
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;

  // What FastGuest::SumOf says of each piece.
  std::vector<uint64_t> CopyToDevice();
  void CopyToHost();
  // Copies to the device, back, and compares.
  void Check();
  // The same, and one after the other, between the device and memory that the machine shares with
  // its host, which AllocateShared has made.
  void AllocateShared();
  void CopySharedToDevice() { CopyRows(address_, shared_address_); }
  void CopySharedToHost() { CopyRows(shared_address_, address_); }
  void CheckShared();
  uint64_t address() const { return address_; }
  // From now on what comes is copied to memory of a program.
  void Deliver() { delivered_.resize(bytes_); }

 private:
  // The frame but for as many bytes at its end.
  template <class Request>
  std::vector<std::byte> Head(const Request& request, uint32_t call, size_t left_out = 0);
  template <class Request>
  void Send(const Request& request, uint32_t call) {
    guest_->Send(Head(request, call));
  }
  void Await(uint32_t call) {
    while (replied_ != call) guest_->Step();
  }
  void Synchronize();
  void CopyRows(uint64_t to, uint64_t from);
  // What has come of the stream.
  void Take(std::span<const std::byte> bytes);
  void TakeHead();

  const Bytes bytes_;
  TestMachine machine_;
  std::unique_ptr<vhost_user::FastGuest> guest_;
  // What consortd and the worker have of the machine's memory, and say to each other about it.
  UniqueFd vm_memory_;
  std::unique_ptr<ControlSocket> consortd_;
  std::unique_ptr<ControlSocket> worker_;
  std::unique_ptr<Session> session_;
  std::thread session_thread_;
  uint64_t address_ = 0;
  uint64_t shared_address_ = 0;
  uint32_t next_call_ = 1;
  uint64_t next_transfer_ = 1;

  // Of the frame that is coming: its beginning, and how much of it is to come, bytes first that are
  // kept, then bulk data.
  std::vector<std::byte> head_;
  size_t head_bytes_ = sizeof(wire::Welcome);
  uint64_t bulk_left_ = 0;
  bool welcomed_ = false;
  uint32_t replied_ = 0;
  std::vector<std::byte> reply_;
  uint64_t transferred_ = 0;  // of this transfer
  // Where bulk data is copied for a comparison; none: looked at alone.
  std::vector<std::byte>* keep_ = nullptr;
  std::vector<std::byte> delivered_;  // of this transfer; empty: looked at alone
};

Front::Front(Host* host, CopyCrew* crew, const vhost_user::GuestKernel& kernel, Bytes bytes)
    : bytes_(bytes), machine_(crew) {
  guest_ = std::make_unique<vhost_user::FastGuest>(
      machine_.frontend(),
      vhost_user::FastGuest::Options{.cid = TestMachine::kCid,
                                     .guest_port = kGuestPort,
                                     .host_port = wire::kVsockPort,
                                     .buf_alloc = kVsockBufferBytes},
      kernel, [this](std::span<const std::byte> got) { Take(got); });
  machine_.frontend()->StartQueues();
  guest_->Connect();

  wire::Hello hello;
  hello.description_hash = wire::kDescriptionHash;
  hello.purpose = wire::kPurposeSession;
  SetText(hello.application, "vm_front_bench");
  guest_->Send(std::as_bytes(std::span(&hello, 1)));
  UniqueFd host_end = machine_.TakeHostEnd();
  const auto read = ReadHello(host_end.get(), kPatience);
  CHECK(read.ok()) << read.status();
  static uint64_t sessions = 0;
  OpenSession open;
  open.session = 1 + sessions;
  open.hello = *read;
  SetText(open.tenant, "bench");
  SetText(open.channel, kVhostUserDoor);
  open.window_base = kWindowBase + sessions++ % kWindowSlots * kWindowSlotBytes;
  open.window_bytes = kWindowSlotBytes;
  open.shared_host_bytes = kWindowSharedHostBytes;
  auto sockets = ControlSocket::MakePair();
  CHECK(sockets.ok()) << sockets.status();
  consortd_ = std::make_unique<ControlSocket>(std::move(sockets->first));
  worker_ = std::make_unique<ControlSocket>(std::move(sockets->second));
  vm_memory_.Reset(memfd_create("vm-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  PCHECK(ftruncate(vm_memory_.get(), static_cast<off_t>(kVmMemoryUnit + bytes)) == 0);
  CHECK_EQ(host->device->MakeCurrent(), CUDA_SUCCESS);
  session_ = std::make_unique<Session>(*host->device, &host->health, &host->scheduler, &host->rate,
                                       host->broker.get(), open, std::move(host_end));
  session_->LendVmMemoryBy(worker_.get());
  session_->UseVmMemory(UniqueFd(fcntl(vm_memory_.get(), F_DUPFD_CLOEXEC, 0)));
  session_thread_ = std::thread([this, host] {
    CHECK_EQ(host->device->MakeCurrent(), CUDA_SUCCESS);
    SessionEnded ended;
    CHECK(session_->Run(&ended)) << "its work did not end";
    session_->Release();
    session_.reset();
  });
  while (!welcomed_) guest_->Step();

  wire::MemAllocRequest request;
  request.bytes = bytes;
  const uint32_t call = next_call_++;
  Send(request, call);
  Await(call);
  wire::MemAllocReply reply;
  wire::Decoder decoder(reply_);
  CHECK(reply.Decode(decoder));
  address_ = reply.address;
}

Front::~Front() {
  guest_->Shutdown();
  session_thread_.join();
}

template <class Request>
std::vector<std::byte> Front::Head(const Request& request, uint32_t call, size_t left_out) {
  const auto body_bytes = static_cast<uint32_t>(request.BodyBytes() + left_out);
  const wire::FrameHeader header{wire::FrameBytes(body_bytes),
                                 static_cast<uint16_t>(Request::kOpcode), 0, call, kContext};
  std::vector<std::byte> frame(sizeof(header) + request.BodyBytes());
  std::memcpy(frame.data(), &header, sizeof(header));
  wire::Encoder encoder(frame.data() + sizeof(header), request.BodyBytes());
  request.Encode(encoder);
  return frame;
}

void Front::Take(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (bulk_left_ > 0) {
      const auto some = bytes.first(std::min<uint64_t>(bulk_left_, bytes.size()));
      if (keep_ != nullptr) keep_->insert(keep_->end(), some.begin(), some.end());
      if (!delivered_.empty()) {
        std::memcpy(delivered_.data() + transferred_ - bulk_left_, some.data(), some.size());
      }
      bulk_left_ -= some.size();
      bytes = bytes.subspan(some.size());
      continue;
    }
    const auto some = bytes.first(std::min(head_bytes_ - head_.size(), bytes.size()));
    head_.insert(head_.end(), some.begin(), some.end());
    bytes = bytes.subspan(some.size());
    if (head_.size() == head_bytes_) TakeHead();
  }
}

// The whole of a reply, or what goes before bulk data, in steps.
void Front::TakeHead() {
  if (!welcomed_) {
    wire::Welcome welcome;
    std::memcpy(&welcome, head_.data(), sizeof(welcome));
    CHECK_EQ(welcome.status, wire::kWelcomeOk) << welcome.text;
    welcomed_ = true;
  } else {
    wire::FrameHeader header;
    std::memcpy(&header, head_.data(), sizeof(header));
    CHECK(wire::FrameHeaderValid(header));
    const bool reply = (header.flags & wire::kFrameReply) != 0;
    // Of TransferData: its numbers and the count of its bytes.
    const size_t wanted = reply ? header.bytes : sizeof(header) + 24;
    if (head_.size() < wanted) {
      head_bytes_ = wanted;
      return;
    }
    if (reply) {
      CHECK_EQ(header.value, uint32_t{CUDA_SUCCESS});
      reply_.assign(head_.begin() + sizeof(header), head_.end());
      replied_ = header.call;
    } else {
      CHECK_EQ(header.opcode, static_cast<uint16_t>(wire::Opcode::kTransferData));
      uint64_t numbers[3];
      std::memcpy(numbers, head_.data() + sizeof(header), sizeof(numbers));
      CHECK_EQ(numbers[0], next_transfer_ - 1);
      CHECK_EQ(numbers[1], transferred_);
      bulk_left_ = header.bytes - wanted;
      CHECK_EQ(numbers[2], bulk_left_);
      transferred_ += bulk_left_;
    }
  }
  head_.clear();
  head_bytes_ = sizeof(wire::FrameHeader);
}

void Front::Synchronize() {
  wire::StreamSynchronizeRequest request;
  request.stream = kStream;
  const uint32_t call = next_call_++;
  Send(request, call);
  Await(call);
}

std::vector<uint64_t> Front::CopyToDevice() {
  std::vector<uint64_t> sums;
  for (uint64_t at = 0; at < bytes_; at += kPieceBytes) {
    wire::CopyToDeviceRequest request;
    request.stream = kStream;
    request.dst = address_ + at;
    request.dst_pitch = request.width = kPieceBytes;
    request.rows = 1;
    // All but the data, which comes from where it lies.
    std::vector<std::byte> head = Head(request, 0, kPieceBytes);
    const uint64_t count = kPieceBytes;
    std::memcpy(head.data() + head.size() - sizeof(count), &count, sizeof(count));
    guest_->Send(head);
    sums.push_back(guest_->SendPieces(kPieceBytes));
  }
  Synchronize();
  return sums;
}

void Front::CopyToHost() {
  wire::CopyToHostRequest request;
  request.stream = kStream;
  request.src = address_;
  request.src_pitch = request.width = bytes_;
  request.rows = 1;
  request.transfer = next_transfer_++;
  transferred_ = 0;
  Send(request, 0);
  Synchronize();
  CHECK_EQ(transferred_, bytes_);
}

void Front::Check() {
  const std::vector<uint64_t> sums = CopyToDevice();
  std::vector<std::byte> back;
  back.reserve(bytes_);
  keep_ = &back;
  CopyToHost();
  keep_ = nullptr;
  CHECK_EQ(back.size(), bytes_);
  for (size_t i = 0; i < sums.size(); ++i) {
    CHECK_EQ(guest_->SumOf(std::span(back).subspan(i * kPieceBytes, kPieceBytes)), sums[i])
        << "piece " << i << " is not what was sent";
  }
}

void Front::AllocateShared() {
  wire::HostAllocRequest request;
  request.bytes = bytes_;
  const uint32_t call = next_call_++;
  Send(request, call);
  ControlPacket packet;
  VmMemoryWanted wanted;
  CHECK(consortd_->Receive(/*wait=*/true, &packet).ok());
  CHECK(packet.As(&wanted));
  VmMemoryLent lent;
  lent.session = wanted.session;
  lent.number = wanted.number;
  lent.offset = kVmMemoryUnit;
  lent.bytes = wanted.bytes;
  session_->TakeVmMemory(lent);
  Await(call);
  wire::HostAllocReply reply;
  wire::Decoder decoder(reply_);
  CHECK(reply.Decode(decoder));
  CHECK_EQ(reply.offset, kVmMemoryUnit);
  shared_address_ = reply.address;
}

void Front::CopyRows(uint64_t to, uint64_t from) {
  wire::CopyRowsRequest request;
  request.stream = kStream;
  request.dst = to;
  request.src = from;
  request.dst_pitch = request.src_pitch = request.width = bytes_;
  request.rows = 1;
  for (int i = 0; i < kCopiesAtOnce; ++i) Send(request, 0);
  Synchronize();
}

void Front::CheckShared() {
  // As the guest has it.
  void* const mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, vm_memory_.get(),
                            static_cast<off_t>(kVmMemoryUnit));
  PCHECK(mapped != MAP_FAILED);
  auto* const words = static_cast<uint64_t*>(mapped);
  const uint64_t count = bytes_ / sizeof(uint64_t);
  for (uint64_t i = 0; i < count; ++i) words[i] = ~i;
  CopySharedToDevice();
  std::memset(mapped, 0, bytes_);
  CopySharedToHost();
  for (uint64_t i = 0; i < count; ++i) CHECK_EQ(words[i], ~i) << "word " << i;
  munmap(mapped, bytes_);
}

// GB/s of `copy`, which copies options.bytes so many times, after one time that does not count.
double Rate(const Options& options, const std::function<void()>& copy, int times = 1) {
  copy();
  const Nanos begin = MonotonicNow();
  uint64_t bytes = 0;
  Nanos taken = 0;
  do {
    copy();
    bytes += static_cast<uint64_t>(times) * options.bytes;
    taken = MonotonicNow() - begin;
  } while (taken < options.time);
  return static_cast<double>(bytes) / static_cast<double>(taken);
}

// Copies of the driver alone, in pieces, of pinned memory of so many bytes, used in turn; all of it
// so many times, then a synchronisation.
class PlainCopies {
 public:
  PlainCopies(const Host& host, uint64_t address, Bytes bytes, Bytes piece_bytes,
              Bytes pinned_bytes, int times)
      : table_(host.device->driver()),
        address_(address),
        bytes_(bytes),
        piece_bytes_(piece_bytes),
        pinned_bytes_(pinned_bytes),
        times_(times) {
    CHECK_EQ(host.device->MakeCurrent(), CUDA_SUCCESS);
    CHECK_EQ(table_.cuMemHostAlloc(&pinned_, pinned_bytes_, 0), CUDA_SUCCESS);
    std::memset(pinned_, 1, pinned_bytes_);
  }
  ~PlainCopies() { table_.cuMemFreeHost(pinned_); }
  PlainCopies(const PlainCopies&) = delete;
  PlainCopies& operator=(const PlainCopies&) = delete;

  void ToDevice() {
    Run([this](uint64_t at, std::byte* pinned) {
      return table_.cuMemcpyHtoDAsync_v2(address_ + at, pinned, piece_bytes_, nullptr);
    });
  }
  void ToHost() {
    Run([this](uint64_t at, std::byte* pinned) {
      return table_.cuMemcpyDtoHAsync_v2(pinned, address_ + at, piece_bytes_, nullptr);
    });
  }

 private:
  template <class Copy>
  void Run(const Copy& copy) {
    for (int i = 0; i < times_; ++i) {
      for (uint64_t at = 0; at < bytes_; at += piece_bytes_) {
        CHECK_EQ(copy(at, static_cast<std::byte*>(pinned_) + at % pinned_bytes_), CUDA_SUCCESS);
      }
    }
    CHECK_EQ(table_.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }

  const device::DriverTable& table_;
  const uint64_t address_;
  const Bytes bytes_;
  const Bytes piece_bytes_;
  const Bytes pinned_bytes_;
  const int times_;
  void* pinned_ = nullptr;
};

struct Rates {
  double to_device = 0;
  double to_host = 0;
};

void PrintRow(const std::string& what, const std::string& crew, const Rates& rates) {
  printf("| %s | %s | %.2f | %.2f |\n", what.c_str(), crew.c_str(), rates.to_device, rates.to_host);
  fflush(stdout);
}

void Measure(Host* host, const Options& options) {
  const auto plain = [&](const Front& front, Bytes piece_bytes, Bytes pinned_bytes, int times) {
    PlainCopies copies(*host, front.address(), options.bytes, piece_bytes, pinned_bytes, times);
    return Rates{Rate(
                     options, [&] { copies.ToDevice(); }, times),
                 Rate(
                     options, [&] { copies.ToHost(); }, times)};
  };
  Rates pieces, whole, shared;
  {
    Front front(host, nullptr, vhost_user::GuestKernels().front(), options.bytes);
    // As large as a conduit's, so that caches see the same.
    pieces = plain(front, kPieceBytes, kConduitRequestBytes, 1);
    whole = plain(front, options.bytes, options.bytes, kCopiesAtOnce);
    front.AllocateShared();
    shared.to_device = Rate(
        options, [&] { front.CopySharedToDevice(); }, kCopiesAtOnce);
    shared.to_host = Rate(
        options, [&] { front.CopySharedToHost(); }, kCopiesAtOnce);
    front.CheckShared();
  }
  std::vector<uint32_t> crews = {0};
  if (options.threads > 0) crews.push_back(options.threads);
  printf("vm_front_bench: %s, %" PRIu64 " MiB in pieces of %" PRIu64 " KiB, GB/s\n",
         host->driver.library.c_str(), options.bytes / kMiB, kPieceBytes / kKiB);
  printf("| kernel, its buffers | crew | to the device | to the host |\n|---|---|---|---|\n");
  PrintRow("the driver alone, pinned memory", "", pieces);
  for (const vhost_user::GuestKernel& kernel : vhost_user::GuestKernels()) {
    for (const uint32_t threads : crews) {
      CopyCrew crew({.threads = threads, .share = options.share});
      Front front(host, &crew, kernel, options.bytes);
      if (options.deliver) front.Deliver();
      Rates rates;
      rates.to_device = Rate(options, [&] { front.CopyToDevice(); });
      rates.to_host = Rate(options, [&] { front.CopyToHost(); });
      front.Check();
      PrintRow(kernel.name + ", pieces of " + std::to_string(kernel.piece_bytes / kKiB) + " KiB",
               std::to_string(threads), rates);
    }
  }
  PrintRow("the driver alone, pinned memory, all at once", "", whole);
  PrintRow("memory that the machine shares, all at once", "", shared);
}

int Usage() {
  fprintf(stderr,
          "usage: vm_front_bench [--device cpu|nvidia] [--threads N] [--share KIB] [--mib N] "
          "[--seconds S] [--deliver]\n");
  return 2;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with("--benchmark_")) continue;  // ./dev bench gives these to all
    if (word == "--deliver") {
      options.deliver = true;
      continue;
    }
    if (i + 1 == argc) return Usage();
    const char* const value = argv[++i];
    const double number = atof(value);
    if (word == "--device") {
      const auto kind = device::ParseDriverKind(value);
      if (!kind.ok()) return Usage();
      options.kind = *kind;
    } else if (word == "--threads" && number >= 0 && number <= kCopyCrewThreadsMax) {
      options.threads = static_cast<uint32_t>(number);
    } else if (word == "--share" && number >= 1 && number <= 1024) {
      options.share = static_cast<Bytes>(number) * kKiB;
    } else if (word == "--mib" && number >= 1 && number <= 16384) {
      options.bytes = static_cast<Bytes>(number) * kMiB;
    } else if (word == "--seconds" && number >= 0 && number <= 600) {
      options.time = static_cast<Nanos>(number * kSecond);
    } else {
      return Usage();
    }
  }
  FLAGS_minloglevel = google::GLOG_WARNING;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  auto driver = device::LoadDriver(options.kind, self.parent_path().parent_path() / "lib");
  if (!driver.ok()) {
    fprintf(stderr, "vm_front_bench: %s\n", std::string(driver.status().message()).c_str());
    return 1;
  }
  Host host;
  host.driver = *std::move(driver);
  auto device = WorkerDevice::Open(host.driver, 0);
  CHECK(device.ok()) << device.status();
  host.device = *std::move(device);
  MemoryRules rules;
  rules.capacity = host.device->snapshot().total_bytes;
  host.broker = std::make_unique<MemoryBroker>(host.device->driver(), rules, nullptr, nullptr);
  Measure(&host, options);
  return 0;
}

}  // namespace
}  // namespace consort::host

int main(int argc, char** argv) { return consort::host::Main(argc, argv); }
