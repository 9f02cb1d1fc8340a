// SPDX-License-Identifier: Apache-2.0
// Over libvirt's own test driver, which forgets QEMU's arguments: tests/e2e/libvirt_test.py has the
// rest, over its QEMU driver.
#include "host/ctl/vm_commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace consort::host {
namespace {

using ::testing::HasSubstr;

class VmCommandsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/ctl-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    paths_ = {folder_ + "/admin.sock", folder_ + "/vms.d", folder_ + "/vms", folder_ + "/apparmor"};
    auto domains = LibvirtDomains::Connect("test:///default");
    ASSERT_TRUE(domains.ok()) << domains.status();
    domains_ = *std::move(domains);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string File() const {
    std::ifstream in(folder_ + "/vms.d/test.toml");
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  std::string folder_;
  VmPaths paths_;
  std::unique_ptr<LibvirtDomains> domains_;
  std::ostringstream out_;
};

TEST_F(VmCommandsTest, PrintingChangesNothing) {
  ASSERT_TRUE(AttachVm(*domains_, paths_, {"test", "research", 1, true}, out_).ok());
  EXPECT_THAT(out_.str(), HasSubstr("vhost-user-vsock-pci"));
  EXPECT_THAT(out_.str(), HasSubstr("<name>test</name>"));
  EXPECT_FALSE(std::filesystem::exists(paths_.vm_files));
  EXPECT_TRUE(ListVms(*domains_)->empty());
}

TEST_F(VmCommandsTest, WithoutADaemonTheFileWaitsForItsStart) {
  ASSERT_TRUE(AttachVm(*domains_, paths_, {"test", "research", 2, false}, out_).ok());
  EXPECT_THAT(out_.str(), HasSubstr("when it starts"));
  EXPECT_THAT(File(), HasSubstr("tenant = \"research\"\nvgpus = 2\n"));
  const auto vms = ListVms(*domains_);
  ASSERT_EQ(vms->size(), 1u);
  EXPECT_EQ((*vms)[0].attachment.tenant, "research");
  EXPECT_TRUE((*vms)[0].running);
  ASSERT_TRUE(DetachVm(*domains_, paths_, "test", false, out_).ok());
  EXPECT_EQ(File(), "");
  EXPECT_TRUE(ListVms(*domains_)->empty());
  ASSERT_TRUE(DetachVm(*domains_, paths_, "test", false, out_).ok());
  EXPECT_THAT(out_.str(), HasSubstr("test has no vGPU\n"));
}

TEST_F(VmCommandsTest, RefusesNamesAndDomainsThatAreNotThere) {
  EXPECT_TRUE(absl::IsNotFound(AttachVm(*domains_, paths_, {"nobody", "t", 1, false}, out_)));
  EXPECT_TRUE(absl::IsInvalidArgument(AttachVm(*domains_, paths_, {"../x", "t", 1, false}, out_)));
  EXPECT_TRUE(
      absl::IsInvalidArgument(AttachVm(*domains_, paths_, {"test", "a\"b", 1, false}, out_)));
  EXPECT_FALSE(std::filesystem::exists(paths_.vm_files));
  EXPECT_TRUE(absl::IsUnavailable(LibvirtDomains::Connect("nonsense:///x").status()));
}

TEST_F(VmCommandsTest, CheckNamesWhatTheHostLacks) {
  ASSERT_TRUE(AttachVm(*domains_, paths_, {"test", "research", 1, false}, out_).ok());
  std::filesystem::create_directories(folder_ + "/apparmor/libvirt");
  std::ofstream(folder_ + "/apparmor/libvirt/TEMPLATE.qemu") << "\n";
  const auto findings = CheckVm(*domains_, paths_, "test");
  ASSERT_TRUE(findings.ok());
  std::string text;
  for (const Finding& finding : *findings) text += finding.problem + ": " + finding.remedy + "\n";
  EXPECT_THAT(text, HasSubstr("consortd cannot be asked"));
  EXPECT_THAT(text, HasSubstr(paths_.vm_sockets + "/*.sock rw,"));

  std::filesystem::create_directories(folder_ + "/apparmor/local/abstractions");
  std::ofstream(folder_ + "/apparmor/local/abstractions/libvirt-qemu")
      << "  " << paths_.vm_sockets << "/*.sock rw,\n";
  const auto fewer = CheckVm(*domains_, paths_, "test");
  ASSERT_TRUE(fewer.ok());
  EXPECT_EQ(fewer->size() + 1, findings->size());
  for (const Finding& finding : *fewer) {
    EXPECT_EQ(finding.problem.find("AppArmor"), std::string::npos);
  }
}

}  // namespace
}  // namespace consort::host
