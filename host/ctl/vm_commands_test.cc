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

TEST_F(VmCommandsTest, SyncMakesTheFilesThoseOfTheDomains) {
  ASSERT_TRUE(AttachVm(*domains_, paths_, {"test", "research", 2, false}, out_).ok());
  const std::string written = File();
  std::filesystem::remove(folder_ + "/vms.d/test.toml");
  std::ofstream(folder_ + "/vms.d/gone.toml") << written;
  std::ofstream(folder_ + "/vms.d/by-hand.toml") << "tenant = \"x\"\n";
  ASSERT_TRUE(SyncVms(*domains_, paths_, out_).ok());
  EXPECT_EQ(File(), written);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/vms.d/gone.toml"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/vms.d/by-hand.toml"));
  EXPECT_THAT(out_.str(), HasSubstr("gone: is gone, and its socket too\n"));
  // Once more: nothing is left to do or say.
  std::ostringstream silent;
  ASSERT_TRUE(SyncVms(*domains_, paths_, silent).ok());
  EXPECT_EQ(silent.str(), "");
}

TEST_F(VmCommandsTest, AMachineComesAndGoesWithItsDomain) {
  LibvirtDomains::EnableEvents();
  auto watched = LibvirtDomains::Connect("test:///default");
  ASSERT_TRUE(watched.ok());
  const LibvirtDomains& domains = **watched;
  // Each turn does what the one before has shown to have worked.
  int turn = 0;
  const absl::Status status = domains.Watch(
      [&] {
        ASSERT_TRUE(SyncVms(domains, paths_, out_).ok());
        if (turn == 0) {
          const auto xml = domains.Definition("test");
          const auto with = AttachToDomain(*xml, {"research", 1, paths_.vm_sockets + "/test.sock"});
          ASSERT_TRUE(with.ok()) << with.status();
          ASSERT_TRUE(domains.Define(*with).ok());
        } else if (turn == 1) {
          EXPECT_THAT(File(), HasSubstr("tenant = \"research\""));
          const auto without = DetachFromDomain(*domains.Definition("test"));
          ASSERT_TRUE(domains.Define(*without).ok());
        }
        ++turn;
      },
      [&] { return turn < 3; });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(turn, 3);
  EXPECT_EQ(File(), "");
}

TEST_F(VmCommandsTest, SharedMemoryIsInTheDomainAndInItsFile) {
  AttachOptions options = {"test", "research", 1, false, 256};
  ASSERT_TRUE(AttachVm(*domains_, paths_, options, out_).ok());
  EXPECT_THAT(File(), HasSubstr("shared_memory = \"256MiB\"\n"));
  EXPECT_THAT(*domains_->Definition("test"), HasSubstr("consort-test"));
  out_.str("");
  options.shared_memory_mib = 0;
  ASSERT_TRUE(AttachVm(*domains_, paths_, options, out_).ok());
  EXPECT_THAT(File(), ::testing::Not(HasSubstr("shared_memory")));
  EXPECT_THAT(out_.str(), HasSubstr("the change takes effect"));
}

TEST_F(VmCommandsTest, TheHookServesADomainFromItsStartToItsEnd) {
  const auto plain = domains_->Definition("test");
  const auto xml = AttachToDomain(*plain, {"research", 1, paths_.vm_sockets + "/test.sock"});
  ASSERT_TRUE(xml.ok()) << xml.status();
  ASSERT_TRUE(HookVm(paths_, "test", "prepare", *plain, out_).ok());
  EXPECT_FALSE(std::filesystem::exists(paths_.vm_files));  // not attached
  ASSERT_TRUE(HookVm(paths_, "test", "prepare", *xml, out_).ok());
  EXPECT_THAT(File(), HasSubstr("tenant = \"research\""));
  ASSERT_TRUE(HookVm(paths_, "test", "started", *xml, out_).ok());
  EXPECT_NE(File(), "");
  ASSERT_TRUE(HookVm(paths_, "test", "release", *xml, out_).ok());
  EXPECT_EQ(File(), "");
}

TEST_F(VmCommandsTest, CheckSaysThatThereIsNoKvm) {
  const auto lacks = CheckKvm("<domain type='kvm'/>", folder_ + "/kvm");
  ASSERT_TRUE(lacks.has_value());
  EXPECT_THAT(lacks->problem, HasSubstr("kvm: No such file"));
  EXPECT_THAT(lacks->remedy, HasSubstr("modprobe"));
  EXPECT_FALSE(CheckKvm("<domain type='qemu'/>", folder_ + "/kvm").has_value());
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ + "/kvm") << "";
  EXPECT_FALSE(CheckKvm("<domain type='kvm'/>", folder_ + "/kvm").has_value());
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
