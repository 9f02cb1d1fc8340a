// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/domain_xml.h"

#include <cstring>
#include <pugixml.hpp>
#include <sstream>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace consort::host {
namespace {

constexpr char kConsortNamespace[] = "urn:consort:vm:1";
constexpr char kQemuNamespace[] = "http://libvirt.org/schemas/domain/qemu/1.0";
constexpr char kDeviceArgument[] = "vhost-user-vsock-pci,id=consort-vsock,chardev=consort";
constexpr char kChardevPrefix[] = "socket,id=consort,path=";
constexpr char kMemoryPrefix[] = "consort-";
constexpr char kAdded[] = "added";

absl::StatusOr<pugi::xml_node> Parse(const std::string& xml, pugi::xml_document* document) {
  const pugi::xml_parse_result parsed = document->load_buffer(
      xml.data(), xml.size(), pugi::parse_default | pugi::parse_comments | pugi::parse_declaration);
  if (!parsed) {
    return absl::InvalidArgumentError(absl::StrCat("not well-formed XML: ", parsed.description()));
  }
  const pugi::xml_node domain = document->child("domain");
  if (!domain) return absl::InvalidArgumentError("no <domain> in it");
  return domain;
}

std::string Text(const pugi::xml_document& document) {
  std::ostringstream out;
  document.save(out, "  ", pugi::format_indent | pugi::format_no_declaration);
  return out.str();
}

pugi::xml_node ChildOrNew(pugi::xml_node parent, const char* name) {
  const pugi::xml_node child = parent.child(name);
  return child ? child : parent.append_child(name);
}

void SetAttribute(pugi::xml_node node, const char* name, const std::string& value) {
  pugi::xml_attribute attribute = node.attribute(name);
  if (!attribute) attribute = node.append_attribute(name);
  attribute.set_value(value.c_str());
}

void RemoveIfEmpty(pugi::xml_node node) {
  if (node && !node.first_child()) node.parent().remove_child(node);
}

// Our arguments, each with the option before it.
std::vector<pugi::xml_node> OurArguments(pugi::xml_node command_line) {
  std::vector<pugi::xml_node> ours;
  for (const pugi::xml_node argument : command_line.children("qemu:arg")) {
    const std::string_view value = argument.attribute("value").value();
    if (value != kDeviceArgument && !value.starts_with(kChardevPrefix)) continue;
    const pugi::xml_node option = argument.previous_sibling("qemu:arg");
    const std::string_view name = option.attribute("value").value();
    if (name == "-device" || name == "-chardev") ours.push_back(option);
    ours.push_back(argument);
  }
  return ours;
}

void AddArgument(pugi::xml_node command_line, const std::string& value) {
  SetAttribute(command_line.append_child("qemu:arg"), "value", value);
}

// The shared memory of our making; null: none.
pugi::xml_node OurMemory(pugi::xml_node domain) {
  for (const pugi::xml_node memory : domain.child("devices").children("shmem")) {
    const std::string_view name = memory.attribute("name").value();
    if (name.starts_with(kMemoryPrefix)) return memory;
  }
  return {};
}

// Takes the device out and leaves the rest.
void RemoveDevice(pugi::xml_node domain) {
  if (const pugi::xml_node memory = OurMemory(domain)) domain.child("devices").remove_child(memory);
  pugi::xml_node command_line = domain.child("qemu:commandline");
  for (const pugi::xml_node argument : OurArguments(command_line)) {
    command_line.remove_child(argument);
  }
  RemoveIfEmpty(command_line);
}

// How QEMU itself reads a value: a comma is written twice.
std::string Escaped(const std::string& value) {
  std::string out;
  for (const char c : value) {
    out += c;
    if (c == ',') out += c;
  }
  return out;
}

std::string Unescaped(std::string_view value) {
  std::string out;
  for (size_t i = 0; i < value.size(); ++i) {
    out += value[i];
    if (value[i] == ',' && i + 1 < value.size() && value[i + 1] == ',') ++i;
  }
  return out;
}

bool IsShared(pugi::xml_node domain) {
  const pugi::xml_node backing = domain.child("memoryBacking");
  const std::string_view source = backing.child("source").attribute("type").value();
  const std::string_view access = backing.child("access").attribute("mode").value();
  return (source == "memfd" || source == "file") && access == "shared";
}

}  // namespace

absl::StatusOr<std::string> AttachToDomain(const std::string& xml, const Attachment& attachment) {
  pugi::xml_document document;
  auto parsed = Parse(xml, &document);
  if (!parsed.ok()) return parsed.status();
  pugi::xml_node domain = *parsed;
  const std::string_view type = domain.attribute("type").value();
  if (type != "kvm" && type != "qemu" && type != "test") {
    return absl::FailedPreconditionError(
        absl::StrCat("a domain of type ", std::string(type),
                     "; Consort's device is for QEMU's (type kvm or qemu)"));
  }
  if (domain.child("devices").child("vsock")) {
    return absl::FailedPreconditionError(
        "the domain has a <vsock> device, and a guest can have only one. Remove it (virsh edit); "
        "Consort's device carries its other ports too, to UNIX sockets named "
        "SOCKET_PORT beside the VM's own");
  }
  for (const pugi::xml_node cell : domain.child("cpu").child("numa").children("cell")) {
    if (std::strcmp(cell.attribute("memAccess").value(), "private") == 0) {
      return absl::FailedPreconditionError(
          "a NUMA cell of the domain has memAccess='private'; consortd must map the guest's "
          "memory. Remove that attribute (virsh edit)");
    }
  }

  const pugi::xml_node old_metadata = domain.child("metadata").child("consort:vm");
  bool added_source = std::strcmp(old_metadata.attribute("source").value(), kAdded) == 0;
  bool added_access = std::strcmp(old_metadata.attribute("access").value(), kAdded) == 0;

  SetAttribute(domain, "xmlns:qemu", kQemuNamespace);
  pugi::xml_node backing = domain.child("memoryBacking");
  if (!backing) {
    // Its place in libvirt's schema is free; after the memory's size it is found by people.
    pugi::xml_node after = domain.child("currentMemory");
    if (!after) after = domain.child("memory");
    backing = after ? domain.insert_child_after("memoryBacking", after)
                    : domain.append_child("memoryBacking");
  }
  const std::string_view source = backing.child("source").attribute("type").value();
  if (source != "memfd" && source != "file") {
    added_source = true;
    SetAttribute(ChildOrNew(backing, "source"), "type", "memfd");
  }
  const std::string_view access = backing.child("access").attribute("mode").value();
  if (access != "shared") {
    if (access == "private") {
      return absl::FailedPreconditionError(
          "the domain's memory has <access mode='private'/>; consortd must map it. Remove that "
          "element (virsh edit)");
    }
    added_access = true;
    SetAttribute(ChildOrNew(backing, "access"), "mode", "shared");
  }

  pugi::xml_node metadata = ChildOrNew(domain, "metadata");
  metadata.remove_child("consort:vm");
  pugi::xml_node ours = metadata.append_child("consort:vm");
  SetAttribute(ours, "xmlns:consort", kConsortNamespace);
  SetAttribute(ours, "tenant", attachment.tenant);
  SetAttribute(ours, "vgpus", std::to_string(attachment.vgpus));
  if (added_source) SetAttribute(ours, "source", kAdded);
  if (added_access) SetAttribute(ours, "access", kAdded);

  RemoveDevice(domain);
  pugi::xml_node command_line = ChildOrNew(domain, "qemu:commandline");
  AddArgument(command_line, "-chardev");
  AddArgument(command_line, absl::StrCat(kChardevPrefix, Escaped(attachment.socket_path)));
  AddArgument(command_line, "-device");
  AddArgument(command_line, kDeviceArgument);
  if (attachment.shared_memory_mib != 0) {
    pugi::xml_node memory = ChildOrNew(domain, "devices").append_child("shmem");
    SetAttribute(memory, "name", attachment.memory_name);
    SetAttribute(memory.append_child("model"), "type", "ivshmem-plain");
    pugi::xml_node size = memory.append_child("size");
    SetAttribute(size, "unit", "M");
    size.text().set(std::to_string(attachment.shared_memory_mib).c_str());
  }
  return Text(document);
}

absl::StatusOr<std::string> DetachFromDomain(const std::string& xml) {
  pugi::xml_document document;
  auto parsed = Parse(xml, &document);
  if (!parsed.ok()) return parsed.status();
  pugi::xml_node domain = *parsed;
  RemoveDevice(domain);
  if (!domain.child("qemu:commandline") && !domain.child("qemu:capabilities") &&
      !domain.child("qemu:override") && !domain.child("qemu:deprecation")) {
    domain.remove_attribute("xmlns:qemu");
  }
  pugi::xml_node metadata = domain.child("metadata");
  const pugi::xml_node ours = metadata.child("consort:vm");
  pugi::xml_node backing = domain.child("memoryBacking");
  if (std::strcmp(ours.attribute("source").value(), kAdded) == 0) backing.remove_child("source");
  if (std::strcmp(ours.attribute("access").value(), kAdded) == 0) backing.remove_child("access");
  RemoveIfEmpty(backing);
  metadata.remove_child(ours);
  RemoveIfEmpty(metadata);
  return Text(document);
}

std::optional<Attachment> FindAttachment(const std::string& xml) {
  pugi::xml_document document;
  auto parsed = Parse(xml, &document);
  if (!parsed.ok()) return std::nullopt;
  const pugi::xml_node ours = parsed->child("metadata").child("consort:vm");
  if (!ours) return std::nullopt;
  Attachment found;
  found.tenant = ours.attribute("tenant").value();
  found.vgpus = ours.attribute("vgpus").as_int(1);
  if (const pugi::xml_node memory = OurMemory(*parsed)) {
    found.memory_name = memory.attribute("name").value();
    found.shared_memory_mib = memory.child("size").text().as_ullong();
  }
  for (const pugi::xml_node argument : OurArguments(parsed->child("qemu:commandline"))) {
    const std::string_view value = argument.attribute("value").value();
    if (value.starts_with(kChardevPrefix)) {
      found.socket_path = Unescaped(value.substr(std::strlen(kChardevPrefix)));
    }
  }
  return found;
}

bool WantsKvm(const std::string& xml) {
  pugi::xml_document document;
  const auto domain = Parse(xml, &document);
  return domain.ok() && std::strcmp(domain->attribute("type").value(), "kvm") == 0;
}

std::vector<Finding> CheckDomain(const std::string& xml) {
  std::vector<Finding> findings;
  pugi::xml_document document;
  auto parsed = Parse(xml, &document);
  if (!parsed.ok()) return {{std::string(parsed.status().message()), "repair the definition"}};
  const pugi::xml_node domain = *parsed;
  if (!domain.child("metadata").child("consort:vm")) {
    findings.push_back(
        {"the domain has no vGPU", "consortctl vm attach DOMAIN --tenant TENANT --vgpus N"});
    return findings;
  }
  // Two arguments and their options.
  if (OurArguments(domain.child("qemu:commandline")).size() != 4) {
    findings.push_back(
        {"the device is missing in <qemu:commandline>", "consortctl vm attach writes it again"});
  }
  if (!IsShared(domain)) {
    findings.push_back({"the guest's memory is not shared: QEMU would not start the device",
                        "consortctl vm attach sets <memoryBacking> to memfd, shared"});
  }
  if (domain.child("devices").child("vsock")) {
    findings.push_back({"the domain has a <vsock> device too, and a guest can have only one",
                        "remove it with virsh edit"});
  }
  for (const pugi::xml_node cell : domain.child("cpu").child("numa").children("cell")) {
    if (std::strcmp(cell.attribute("memAccess").value(), "private") == 0) {
      findings.push_back(
          {"a NUMA cell has memAccess='private'", "remove that attribute with virsh edit"});
    }
  }
  return findings;
}

}  // namespace consort::host
