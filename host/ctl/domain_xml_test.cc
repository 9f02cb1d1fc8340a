// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/domain_xml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace consort::host {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::string Domain(const std::string& more) {
  return "<domain type='kvm'><name>web-1</name><memory unit='KiB'>1048576</memory>"
         "<currentMemory unit='KiB'>1048576</currentMemory>" +
         more + "<devices><emulator>/usr/bin/qemu-system-x86_64</emulator></devices></domain>";
}

const Attachment kAttachment = {"research", 2, "/run/consort/vms/web-1.sock"};

std::string Attached(const std::string& xml) {
  const auto attached = AttachToDomain(xml, kAttachment);
  EXPECT_TRUE(attached.ok()) << attached.status();
  return attached.ok() ? *attached : "";
}

// The definition as this code writes it, so that spacing does not count.
std::string Plain(const std::string& xml) { return *DetachFromDomain(xml); }

TEST(DomainXml, AttachesDeviceMemoryAndMetadata) {
  const std::string xml = Attached(Domain(""));
  EXPECT_THAT(xml, HasSubstr("<source type=\"memfd\" />"));
  EXPECT_THAT(xml, HasSubstr("<access mode=\"shared\" />"));
  EXPECT_THAT(xml, HasSubstr("socket,id=consort,path=/run/consort/vms/web-1.sock\""));
  EXPECT_THAT(xml, HasSubstr("vhost-user-vsock-pci"));
  EXPECT_THAT(xml, HasSubstr("xmlns:qemu=\"http://libvirt.org/schemas/domain/qemu/1.0\""));
  EXPECT_THAT(CheckDomain(xml), IsEmpty());
  const auto found = FindAttachment(xml);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->tenant, "research");
  EXPECT_EQ(found->vgpus, 2);
  EXPECT_EQ(found->socket_path, "/run/consort/vms/web-1.sock");
}

TEST(DomainXml, SharesMemoryWithTheHostIfItIsTo) {
  const std::string plain = Domain("<devices><shmem name='other'/></devices>");
  Attachment attachment = kAttachment;
  attachment.shared_memory_mib = 256;
  attachment.memory_name = "consort-web-1";
  const auto xml = AttachToDomain(plain, attachment);
  ASSERT_TRUE(xml.ok()) << xml.status();
  EXPECT_THAT(*xml, HasSubstr("<shmem name=\"consort-web-1\">"));
  EXPECT_THAT(*xml, HasSubstr("<model type=\"ivshmem-plain\" />"));
  EXPECT_THAT(*xml, HasSubstr("<size unit=\"M\">256</size>"));
  EXPECT_EQ(FindAttachment(*xml)->shared_memory_mib, 256u);
  EXPECT_EQ(FindAttachment(*xml)->memory_name, "consort-web-1");
  EXPECT_EQ(*AttachToDomain(*xml, attachment), *xml);
  EXPECT_EQ(Plain(*xml), Plain(plain));
  // Without it again.
  const std::string without = Attached(*xml);
  EXPECT_EQ(FindAttachment(without)->shared_memory_mib, 0u);
  EXPECT_THAT(without, ::testing::Not(HasSubstr("consort-web-1\">")));
  EXPECT_THAT(without, HasSubstr("shmem name=\"other\""));
}

TEST(DomainXml, AttachingAgainChangesNothingAndDetachingUndoesIt) {
  for (const std::string& more :
       {std::string(), std::string("<memoryBacking><hugepages/></memoryBacking>"),
        std::string("<memoryBacking><source type='memfd'/></memoryBacking>"),
        std::string("<memoryBacking><source type='file'/><access mode='shared'/></memoryBacking>"),
        std::string("<metadata><other:x xmlns:other='urn:x'/></metadata>")}) {
    const std::string xml = Domain(more);
    const std::string once = Attached(xml);
    EXPECT_EQ(Attached(once), once) << more;
    EXPECT_EQ(*DetachFromDomain(once), Plain(xml)) << more;
    EXPECT_EQ(Plain(Plain(xml)), Plain(xml));
  }
}

TEST(DomainXml, AttachingWithOtherValuesReplacesThem) {
  const auto changed = AttachToDomain(Attached(Domain("")), {"other", 1, "/x,y.sock"});
  ASSERT_TRUE(changed.ok());
  EXPECT_THAT(*changed, Not(HasSubstr("research")));
  EXPECT_THAT(*changed, Not(HasSubstr("web-1.sock")));
  // QEMU's way to write a comma.
  EXPECT_THAT(*changed, HasSubstr("path=/x,,y.sock"));
  EXPECT_EQ(FindAttachment(*changed)->socket_path, "/x,y.sock");
}

TEST(DomainXml, KeepsAPersonsOwnArguments) {
  const std::string xml =
      "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><name>a</name>"
      "<qemu:commandline><qemu:arg value='-device'/><qemu:arg value='edu'/></qemu:commandline>"
      "</domain>";
  const std::string attached = Attached(xml);
  EXPECT_THAT(attached, HasSubstr("\"edu\""));
  EXPECT_EQ(*DetachFromDomain(attached), Plain(xml));
  EXPECT_THAT(Plain(xml), HasSubstr("\"edu\""));
}

TEST(DomainXml, RefusesWhatDoesNotGoTogetherAndSaysWhatToDo) {
  const auto message = [](const std::string& xml) {
    const auto attached = AttachToDomain(xml, kAttachment);
    EXPECT_TRUE(absl::IsFailedPrecondition(attached.status())) << xml;
    return std::string(attached.status().message());
  };
  EXPECT_THAT(message("<domain type='kvm'><devices><vsock/></devices></domain>"),
              HasSubstr("virsh edit"));
  EXPECT_THAT(message("<domain type='lxc'/>"), HasSubstr("lxc"));
  EXPECT_THAT(message(Domain("<memoryBacking><access mode='private'/></memoryBacking>")),
              HasSubstr("private"));
  EXPECT_THAT(message(Domain("<cpu><numa><cell id='0' memAccess='private'/></numa></cpu>")),
              HasSubstr("NUMA"));
  EXPECT_TRUE(absl::IsInvalidArgument(AttachToDomain("<domain", kAttachment).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(AttachToDomain("<network/>", kAttachment).status()));
}

TEST(DomainXml, FindsWhatWasBrokenSince) {
  EXPECT_THAT(CheckDomain(Domain("")), SizeIs(1));
  EXPECT_FALSE(FindAttachment(Domain("")).has_value());
  const auto without = [](std::string xml, const std::string& text) {
    const size_t at = xml.find(text);
    EXPECT_NE(at, std::string::npos) << text;
    return xml.erase(at, text.size());
  };
  const std::string xml = Attached(Domain(""));
  auto findings = CheckDomain(without(xml, "<access mode=\"shared\" />"));
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_THAT(findings[0].problem, HasSubstr("not shared"));
  findings = CheckDomain(
      without(xml, "<qemu:arg value=\"vhost-user-vsock-pci,id=consort-vsock,chardev=consort\" />"));
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_THAT(findings[0].problem, HasSubstr("device is missing"));
}

}  // namespace
}  // namespace consort::host
