// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/vm_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace consort::host {
namespace {

using ::testing::HasSubstr;

class VmFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/vms-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
  }
  static VmDefaults Defaults() {
    VmDefaults defaults;
    defaults.socket_folder = "/run/x";
    defaults.shared_memory = 64 * kMiB;
    return defaults;
  }
  std::string Error() const {
    return std::string(ReadVmFiles(folder_, Defaults()).status().message());
  }
  std::string folder_;
};

TEST_F(VmFilesTest, ReadsMachinesByName) {
  Write("web-2.toml", "tenant = \"research\"\nvgpus = 2\n");
  Write("web-1.toml", "");
  Write("web-3.toml.bak", "nonsense");
  const auto vms = ReadVmFiles(folder_, Defaults());
  ASSERT_TRUE(vms.ok()) << vms.status();
  ASSERT_EQ(vms->size(), 2u);
  EXPECT_EQ((*vms)[0].name, "web-1");
  EXPECT_EQ((*vms)[0].tenant, "");
  EXPECT_FALSE((*vms)[0].vgpus.has_value());
  EXPECT_EQ((*vms)[1].socket_path, "/run/x/web-2.sock");
  EXPECT_EQ((*vms)[1].tenant, "research");
  EXPECT_EQ((*vms)[1].vgpus, 2u);
}

TEST_F(VmFilesTest, SharedMemoryIsWhatTheFileSaysOrElseAllHave) {
  Write("a.toml", "shared_memory = \"1GiB\"\n");
  Write("b.toml", "shared_memory = \"0\"\n");
  Write("c.toml", "");
  const auto vms = ReadVmFiles(folder_, Defaults());
  ASSERT_TRUE(vms.ok()) << vms.status();
  EXPECT_EQ((*vms)[0].shared_memory, kGiB);
  EXPECT_EQ((*vms)[1].shared_memory, 0u);
  EXPECT_EQ((*vms)[2].shared_memory, 64 * kMiB);
  EXPECT_EQ((*vms)[2].memory_path, "/dev/shm/consort-c");
  for (const char* wrong : {"\"8MiB\"", "\"48MiB\"", "\"128GiB\"", "\"much\"", "64"}) {
    Write("a.toml", std::string("shared_memory = ") + wrong + "\n");
    EXPECT_THAT(Error(), HasSubstr("a.toml:1: shared_memory must be a power of two from 16MiB"));
  }
}

TEST_F(VmFilesTest, NoFolderIsNoMachine) {
  const auto vms = ReadVmFiles(folder_ + "/nothing", Defaults());
  ASSERT_TRUE(vms.ok()) << vms.status();
  EXPECT_TRUE(vms->empty());
}

TEST_F(VmFilesTest, SaysFileLineAndMistake) {
  Write("a.toml", "vgpus = 1\ntenand = \"x\"\n");
  EXPECT_THAT(Error(), HasSubstr("a.toml:2: unknown key tenand"));
  Write("a.toml", "\nvgpus = 0\n");
  EXPECT_THAT(Error(), HasSubstr("a.toml:2: vgpus must be from 1 to 64"));
  Write("a.toml", "vgpus = 65\n");
  EXPECT_THAT(Error(), HasSubstr("a.toml:1: vgpus"));
  Write("a.toml", "vgpus = 64\n");
  EXPECT_EQ(Error(), "");
  Write("a.toml", "tenant = 5\n");
  EXPECT_THAT(Error(), HasSubstr("a.toml:1: tenant"));
  Write("a.toml", "tenant = \"a\n");
  EXPECT_THAT(Error(), HasSubstr("a.toml:"));
}

TEST_F(VmFilesTest, RefusesNamesThatAreNoFileNames) {
  EXPECT_TRUE(IsVmName("web-1.example_2"));
  EXPECT_TRUE(IsVmName(std::string(kVmNameBytesMax, 'x')));
  EXPECT_FALSE(IsVmName(std::string(kVmNameBytesMax + 1, 'x')));
  for (const char* name : {"", "..", ".x", "a/b", "a b", "-a", "\xc3\xa4"}) {
    EXPECT_FALSE(IsVmName(name)) << name;
  }
  Write("a b.toml", "");
  EXPECT_THAT(Error(), HasSubstr("a b.toml"));
}

}  // namespace
}  // namespace consort::host
