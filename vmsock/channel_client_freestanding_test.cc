// SPDX-License-Identifier: Apache-2.0
// The client side works as the guest library builds it: dlopened, without libstdc++ of its own.
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "vmsock/channel_test_support.h"
#include "vmsock/listen.h"

namespace consort {
namespace {

class FreestandingClient : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    library_ = dlopen(CONSORT_PROBE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
    probe_ = reinterpret_cast<decltype(probe_)>(dlsym(library_, "ProbeRoundTrip"));
    ASSERT_NE(probe_, nullptr) << dlerror();
  }
  void TearDown() override {
    if (library_ != nullptr) dlclose(library_);
  }
  void* library_ = nullptr;
  int64_t (*probe_)(const char* endpoint, uint32_t value, char* text, char* name) = nullptr;
};

TEST_P(FreestandingClient, MakesARoundTrip) {
  char directory[] = "/tmp/consort-probe-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const std::string path = std::string(directory) + "/socket";
  {
    absl::StatusOr<std::unique_ptr<Listener>> listener = Listener::ListenUnix({path, 0600});
    ASSERT_TRUE(listener.ok()) << listener.status();
    std::thread server([&] {
      absl::StatusOr<Accepted> accepted = (*listener)->Accept(kPatience);
      ASSERT_TRUE(accepted.ok()) << accepted.status();
      absl::StatusOr<wire::Hello> hello = ReadHello(accepted->socket.get(), kPatience);
      ASSERT_TRUE(hello.ok()) << hello.status();
      HostChannelOptions options;
      options.allow_rings = GetParam();
      absl::StatusOr<HostChannel> host =
          OpenHostChannel(std::move(accepted->socket), *hello, wire::Welcome(), options);
      ASSERT_TRUE(host.ok()) << host.status();
      Frame frame;
      ASSERT_EQ(ReceiveFrame(host->channel.get(), &frame), ChannelStatus::kOk);
      EXPECT_EQ(SendFrame(host->channel.get(), frame.header.value + 1, 16), ChannelStatus::kOk);
      host->channel->Release(frame);
      // Until the client is done.
      EXPECT_EQ(ReceiveFrame(host->channel.get(), &frame), ChannelStatus::kClosed);
    });
    char text[256] = {};
    char name[32] = {};
    EXPECT_EQ(probe_((*listener)->endpoint().c_str(), 41, text, name), 42) << text;
    EXPECT_STREQ(name, GetParam() ? "unix+rings" : "unix");
    server.join();
  }
  unlink((path + ".lock").c_str());
  rmdir(directory);
}

TEST_P(FreestandingClient, SaysWhatToDoWhenNobodyListens) {
  char text[256] = {};
  char name[32] = {};
  EXPECT_EQ(probe_("unix:/nonexistent/consort", 1, text, name), -1);
  EXPECT_THAT(text, ::testing::HasSubstr("is consortd running?"));
}

INSTANTIATE_TEST_SUITE_P(Channels, FreestandingClient, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Rings" : "Stream"; });

}  // namespace
}  // namespace consort
