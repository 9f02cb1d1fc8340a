// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/debug_bundle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

namespace consort::host {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Output(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
  std::string out;
  char bytes[4096];
  size_t got;
  while ((got = fread(bytes, 1, sizeof(bytes), pipe.get())) > 0) out.append(bytes, got);
  return out;
}

class DebugBundleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/debug_bundle";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ + "/etc/vms.d");
  }
  std::string folder_;
};

TEST_F(DebugBundleTest, TarReadsWhatWasWritten) {
  const std::string path = folder_ + "/x.tar";
  std::ofstream(path) << TarFile("a/one", "first\n", 86400) << TarFile("a/two", "", 86400)
                      << TarFile("a/three", std::string(512, 'x'), 86400) << TarEnd();
  EXPECT_EQ(Output("tar -tf " + path + " 2>&1"), "a/one\na/two\na/three\n");
  EXPECT_EQ(Output("tar -xOf " + path + " a/one 2>&1"), "first\n");
  EXPECT_EQ(Output("tar -xOf " + path + " a/three 2>&1"), std::string(512, 'x'));
  EXPECT_THAT(Output("TZ=UTC tar -tvf " + path), HasSubstr("1970-01-02 00:00 a/one"));
}

TEST_F(DebugBundleTest, HasTheConfigurationAndNamesWhatIsMissing) {
  std::ofstream(folder_ + "/etc/tenants.toml") << "# tenants\n";
  std::ofstream(folder_ + "/etc/vms.d/web-1.toml") << "tenant = \"a\"\n";
  std::ofstream(folder_ + "/etc/node.key") << "secret\n";
  BundleSources sources = {folder_ + "/none.sock", folder_ + "/etc", folder_ + "/none", "1.2"};
  const std::string path = folder_ + "/bundle.tar";
  const absl::Status written = WriteDebugBundle(sources, path, 86400);
  ASSERT_TRUE(written.ok()) << written;
  struct stat file;
  ASSERT_EQ(stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  const std::string names = Output("tar -tf " + path + " 2>&1");
  EXPECT_THAT(names, HasSubstr("consort-debug/configuration/tenants.toml\n"));
  EXPECT_THAT(names, HasSubstr("consort-debug/configuration/vms.d/web-1.toml\n"));
  EXPECT_THAT(names, HasSubstr("consort-debug/host/host.txt\n"));
  EXPECT_THAT(Output("tar -xOf " + path), Not(HasSubstr("secret")));
  const std::string missing = Output("tar -xOf " + path + " consort-debug/missing.txt");
  EXPECT_THAT(missing, HasSubstr("status.json: there is no " + folder_ + "/none.sock"));
  EXPECT_THAT(missing, HasSubstr("configuration/consortd.default: "));
  // It never writes over anything.
  EXPECT_EQ(WriteDebugBundle(sources, path, 0).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(absl::IsInternal(WriteDebugBundle(sources, folder_ + "/no/such/file", 0)));
}

}  // namespace
}  // namespace consort::host
