// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/kernel_text.h"

#include "tests/ptx/operand_values.h"

namespace consort::ptx_suite {
namespace {

using std::string;
using std::to_string;

constexpr size_t kValueBytes = 8;
constexpr const char* kSourceNames[] = {"%a", "%b", "%c", "%e"};

string RegisterName(const string& name, const Operand& operand, uint32_t index) {
  return operand.count > 1 ? name + to_string(index) : name;
}

string Declaration(const string& name, const Operand& operand) {
  const uint32_t bits = RegisterBits(operand.type);
  const string kind = bits == 1 ? ".pred" : ".b" + to_string(bits);
  string text;
  for (uint32_t k = 0; k < operand.count; ++k) {
    text += ".reg " + kind + " " + RegisterName(name, operand, k) + ";\n";
  }
  return text;
}

// From the 64 bits in %io to the register.
string FromWide(const string& name, uint32_t bits) {
  switch (bits) {
    case 1:
      return "cvt.u32.u64 %narrow, %io;\nsetp.ne.u32 " + name + ", %narrow, 0;\n";
    case 64:
      return "mov.b64 " + name + ", %io;\n";
    default:
      return "cvt.u" + to_string(bits) + ".u64 " + name + ", %io;\n";
  }
}

string ToWide(const string& name, uint32_t bits) {
  switch (bits) {
    case 1:
      return "selp.b64 %io, 1, 0, " + name + ";\n";
    case 64:
      return "mov.b64 %io, " + name + ";\n";
    default:
      return "cvt.u64.u" + to_string(bits) + " %io, " + name + ";\n";
  }
}

// What instances may use besides their operands.
string Scratch(const Instance& instance) {
  string text = ".reg .b16 %h, %k;\n.reg .b32 %t, %u;\n.reg .b64 %x, %y;\n.reg .pred %p, %q;\n";
  if (instance.code.find("b128") != string::npos) text += ".reg .b128 %z, %w;\n";
  return text;
}

}  // namespace

string BlockText(const Instance& instance) {
  string text = "{\n.reg .b64 %g, %s, %rs;\n" + Scratch(instance);
  for (size_t i = 0; i < instance.sources.size(); ++i) {
    text += Declaration(kSourceNames[i], instance.sources[i]);
  }
  return text + Declaration("%d", instance.result) + instance.code + "\n}\n";
}

string KernelText(std::span<const Instance> instances) {
  const Instance& first = instances.front();
  const uint32_t tuples = TupleCount(first.sources);
  string body;
  bool uses_shared = false;
  size_t offset = 0;
  for (size_t i = 0; i < first.sources.size(); ++i) {
    const Operand& source = first.sources[i];
    body += Declaration(kSourceNames[i], source);
    body += "mad.wide.u32 %at, %tuple, " + to_string(source.count * kValueBytes) + ", %in;\n";
    for (uint32_t k = 0; k < source.count; ++k) {
      body += "ld.global.b64 %io, [%at+" + to_string(offset + k * kValueBytes) + "];\n";
      body += FromWide(RegisterName(kSourceNames[i], source, k), RegisterBits(source.type));
    }
    offset += tuples * source.count * kValueBytes;
  }
  const Operand& result = first.result;
  body += "mad.wide.u32 %at, %tuple, " + to_string(result.count * kValueBytes) + ", %out;\n";
  offset = 0;
  for (const Instance& instance : instances) {
    uses_shared |= instance.code.find("shared") != string::npos;
    body += "{\n" + Scratch(instance);
    body += Declaration("%d", result);
    body += instance.code + "\n";
    for (uint32_t k = 0; k < result.count; ++k) {
      body += ToWide(RegisterName("%d", result, k), RegisterBits(result.type));
      body += "st.global.b64 [%at+" + to_string(offset + k * kValueBytes) + "], %io;\n";
    }
    body += "}\n";
    offset += tuples * result.count * kValueBytes;
  }
  string text =
      ".version 8.4\n.target sm_90\n.address_size 64\n"
      ".visible .entry run(.param .u64 in, .param .u64 out, .param .u64 memory)\n{\n"
      ".reg .b32 %thread, %block, %tuple, %narrow;\n.reg .b64 %in, %out, %at, %io, %g, %s, %rs;\n"
      "ld.param.u64 %in, [in];\nld.param.u64 %out, [out];\nld.param.u64 %g, [memory];\n"
      "mov.u32 %thread, %tid.x;\nmov.u32 %block, %ctaid.x;\n"
      "mad.lo.u32 %tuple, %block, " +
      to_string(kBlockThreads) + ", %thread;\nmad.wide.u32 %g, %tuple, " + to_string(kThreadBytes) +
      ", %g;\n";
  if (uses_shared) {
    // %rs: lane by lane 16 bytes, in a part of 1 KiB of each warp.
    text += ".shared .align 128 .b8 cells[" + to_string(kBlockThreads * kThreadBytes) +
            "];\nmov.u64 %rs, cells;\nmad.wide.u32 %s, %thread, " + to_string(kThreadBytes) +
            ", %rs;\nand.b32 %narrow, %thread, 31;\nmad.wide.u32 %rs, %narrow, 16, %rs;\n"
            "and.b32 %narrow, %thread, -32;\nmad.wide.u32 %rs, %narrow, " +
            to_string(kThreadBytes) + ", %rs;\n";
  }
  return text + body + "ret;\n}\n";
}

}  // namespace consort::ptx_suite
