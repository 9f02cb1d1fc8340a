// SPDX-License-Identifier: Apache-2.0
#include "host/session/vm_session_test_support.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "host/control/control_socket.h"
#include "host/limits.h"
#include "host/session/session_test_support.h"
#include "vmsock/limits.h"
#include "vmsock/listen.h"

namespace consort::host {
namespace {

constexpr uint32_t kGuestPort = 2000;
constexpr uint32_t kContext = 1;
constexpr uint64_t kStream = 1;

// A test that waits so long has failed.
constexpr Nanos kVmPatience = 60 * kSecond;

uint64_t NextVmWindow() {
  // Apart from those of SessionPeer, which begins at the first.
  static std::atomic<uint64_t> next{kWindowSlots / 2};
  return kWindowBase + (next++ % kWindowSlots) * kWindowSlotBytes;
}

}  // namespace

VmSessionPeer::VmSessionPeer(const std::string& door, CopyCrew* crew) : machine_(crew) {
  guest_ = std::make_unique<vhost_user::FakeGuest>(machine_.frontend(), TestMachine::kCid);
  machine_.frontend()->StartQueues();
  stream_ = std::make_unique<vhost_user::GuestStream>(guest_.get(), kGuestPort, wire::kVsockPort,
                                                      kVsockBufferBytes);
  CHECK(stream_->Connect());

  wire::Hello hello;
  hello.description_hash = wire::kDescriptionHash;
  hello.purpose = wire::kPurposeSession;
  SetText(hello.application, "vm_session_test");
  CHECK(stream_->SendAll(std::as_bytes(std::span(&hello, 1))));
  // As consortd: it reads the Hello, a worker has the rest.
  host_end_ = machine_.TakeHostEnd();
  const auto read = ReadHello(host_end_.get(), kVmPatience);
  CHECK(read.ok()) << read.status();
  OpenSession open;
  static std::atomic<uint64_t> next_session{1000};
  open.session = next_session++;
  open.hello = *read;
  SetText(open.tenant, "test");
  SetText(open.channel, door);
  open.window_base = NextVmWindow();
  open.window_bytes = kWindowSlotBytes;
  session_thread_ = std::thread([this, open] {
    DeviceHealth health([](const std::string&) {});
    Session session(CpuDevice(), &health, NoScheduler(), NoRate(), NoBroker(), open,
                    std::move(host_end_));
    SessionEnded ended;
    CHECK(session.Run(&ended)) << "its work did not end";
    counts_ = {session.copied_bytes(), ended.bytes_to_device, ended.bytes_to_host};
    session.Release();
  });
  FillTo(sizeof(wire::Welcome));
  wire::Welcome welcome;
  std::memcpy(&welcome, received_.data(), sizeof(welcome));
  CHECK_EQ(welcome.status, wire::kWelcomeOk) << welcome.text;
  taken_ = sizeof(welcome);
}

VmSessionPeer::~VmSessionPeer() { End(); }

VmSessionCounts VmSessionPeer::End() {
  if (session_thread_.joinable()) {
    stream_->Shutdown(vhost_user::kShutdownBoth);
    session_thread_.join();
  }
  return counts_;
}

template <class Request>
void VmSessionPeer::Append(const Request& request, uint32_t call, std::vector<std::byte>* frames) {
  const wire::FrameHeader header{wire::FrameBytes(request.BodyBytes()),
                                 static_cast<uint16_t>(Request::kOpcode), 0, call, kContext};
  const size_t begin = frames->size();
  frames->resize(begin + header.bytes);
  std::memcpy(frames->data() + begin, &header, sizeof(header));
  wire::Encoder encoder(frames->data() + begin + sizeof(header), request.BodyBytes());
  request.Encode(encoder);
}

void VmSessionPeer::FillTo(size_t bytes) {
  while (received_.size() - taken_ < bytes) {
    const std::vector<std::byte> some = stream_->ReceiveSome();
    CHECK(!some.empty()) << "the session has ended";
    if (taken_ == received_.size()) {
      received_.clear();
      taken_ = 0;
    }
    received_.insert(received_.end(), some.begin(), some.end());
  }
}

std::vector<std::byte> VmSessionPeer::Await(uint32_t call) {
  while (true) {
    wire::FrameHeader header;
    FillTo(sizeof(header));
    std::memcpy(&header, received_.data() + taken_, sizeof(header));
    CHECK(wire::FrameHeaderValid(header));
    FillTo(header.bytes);
    const auto body =
        std::span(received_).subspan(taken_ + sizeof(header), header.bytes - sizeof(header));
    taken_ += header.bytes;
    if ((header.flags & wire::kFrameReply) != 0) {
      CHECK_EQ(header.call, call);
      CHECK_EQ(header.value, uint32_t{CUDA_SUCCESS});
      return {body.begin(), body.end()};
    }
    CHECK_EQ(header.opcode, static_cast<uint16_t>(wire::Opcode::kTransferData));
    wire::TransferDataEvent event;
    wire::Decoder decoder(body);
    CHECK(event.Decode(decoder) && event.offset + event.data.size() <= transfer_.size());
    std::copy(event.data.begin(), event.data.end(),
              transfer_.begin() + static_cast<ptrdiff_t>(event.offset));
  }
}

uint64_t VmSessionPeer::Allocate(Bytes bytes) {
  wire::MemAllocRequest request;
  request.bytes = bytes;
  const uint32_t call = next_call_++;
  Send(request, call);
  const std::vector<std::byte> body = Await(call);
  wire::MemAllocReply reply;
  wire::Decoder decoder(body);
  CHECK(reply.Decode(decoder));
  return reply.address;
}

void VmSessionPeer::Synchronize() {
  wire::StreamSynchronizeRequest request;
  request.stream = kStream;
  const uint32_t call = next_call_++;
  Send(request, call);
  Await(call);
}

std::vector<std::byte> VmSessionPeer::EncodeCopy(uint64_t address,
                                                 std::span<const std::byte> data) const {
  std::vector<std::byte> frames;
  for (size_t at = 0; at < data.size(); at += wire::kBulkBytesMax) {
    wire::CopyToDeviceRequest request;
    request.stream = kStream;
    request.dst = address + at;
    request.data = data.subspan(at, std::min<size_t>(data.size() - at, wire::kBulkBytesMax));
    request.dst_pitch = request.width = request.data.size();
    request.rows = 1;
    Append(request, 0, &frames);
  }
  return frames;
}

void VmSessionPeer::SendEncodedCopy(std::span<const std::byte> frames) {
  CHECK(stream_->SendAll(frames)) << "the device takes no more";
  Synchronize();
}

void VmSessionPeer::CopyToDevice(uint64_t address, std::span<const std::byte> data) {
  SendEncodedCopy(EncodeCopy(address, data));
}

std::vector<std::byte> VmSessionPeer::CopyToHost(uint64_t address, Bytes bytes) {
  transfer_.assign(bytes, std::byte{0});
  wire::CopyToHostRequest request;
  request.stream = kStream;
  request.src = address;
  request.src_pitch = request.width = bytes;
  request.rows = 1;
  request.transfer = next_transfer_++;
  Send(request, 0);
  Synchronize();
  return std::move(transfer_);
}

}  // namespace consort::host
