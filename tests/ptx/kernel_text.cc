// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/kernel_text.h"

#include <algorithm>
#include <string_view>

#include "tests/ptx/images.h"
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

// What codes may name at module scope.
struct Piece {
  std::string_view name;
  std::string_view text;
};

constexpr Piece kPieces[] = {
    {"constants",
     ".const .align 16 .b32 constants[72] = {"
     "0x03020100, 0x87868584, 0x7F800001, 0xFFFFFFFF, 0x00000001, 0x80000000, 0x3F800000, 19, "
     "0x13121110, 0x97969594, 0x0000FF00, 0xDEADBEEF, 0xFFFF0000, 0x7FFFFFFF, 0xC0490FDB, 23, "
     "0x23222120, 0xA7A6A5A4, 0x12345678, 0x9ABCDEF0, 0xF0E1D2C3, 0xB4A59687, 0x00010002, 29, "
     "0x33323130, 0xB7B6B5B4, 0x55555555, 0xAAAAAAAA, 0x0F0F0F0F, 0xF0F0F0F0, 0x33333333, 31, "
     "0x43424140, 0xC7C6C5C4, 0x11111111, 0x22222222, 0x44444444, 0x88888888, 0x66666666, 37, "
     "0x53525150, 0xD7D6D5D4, 0x01234567, 0x89ABCDEF, 0xFEDCBA98, 0x76543210, 0x00FF00FF, 41, "
     "0x63626160, 0xE7E6E5E4, 0x7F7F7F7F, 0x80808080, 0x7FFF8000, 0x8000FFFF, 0x00007FFF, 43, "
     "0x73727170, 0xF7F6F5F4, 0xCAFEF00D, 0x0BADCAFE, 0x10203040, 0x50607080, 0x90A0B0C0, 47, "
     "53, 59, 61, 67, 71, 73, 79, 83};\n"},
    {"places", ".shared .align 16 .b8 places[16];\n"},
    {"gates", ".shared .align 8 .b64 gates;\n"},
    {"turn_bytes",
     ".func (.param .align 16 .b8 r[32]) turn_bytes(.param .align 16 .b8 p[32], .param .b32 n)\n{\n"
     ".reg .b32 %v<5>;\nld.param.v4.b32 {%v0, %v1, %v2, %v3}, [p+16];\nld.param.b32 %v4, [n];\n"
     "add.u32 %v2, %v2, %v4;\nst.param.v4.b32 [r], {%v3, %v0, %v1, %v2};\n"
     "ld.param.v2.b32 {%v0, %v1}, [p];\nst.param.v2.b32 [r+16], {%v0, %v1};\n"
     "ld.param.v2.b32 {%v0, %v1}, [p+8];\nst.param.v2.b32 [r+24], {%v1, %v0};\nret;\n}\n"},
    {"add_registers",
     ".func (.reg .b32 r) add_registers(.reg .b32 a, .reg .b64 b, .reg .f32 c)\n{\n"
     ".reg .b32 %v<3>;\nmov.b64 {%v0, %v1}, b;\nmov.b32 %v2, c;\nadd.u32 r, a, %v0;\n"
     "mad.lo.u32 r, r, 3, %v1;\nmad.lo.u32 r, r, 3, %v2;\nret;\n}\n"},
    {"return_early",
     ".func (.param .b32 r) return_early(.param .b32 p)\n{\n.reg .b32 %v<2>;\n.reg .pred %q;\n"
     "ld.param.b32 %v0, [p];\nst.param.b32 [r], %v0;\nand.b32 %v1, %v0, 1;\n"
     "setp.eq.u32 %q, %v1, 0;\n@%q ret;\nnot.b32 %v0, %v0;\nst.param.b32 [r], %v0;\n"
     "ret.uni;\n}\n"},
    {"return_early_together",
     ".func (.param .b32 r) return_early_together(.param .b32 p)\n{\n.reg .b32 %v<2>;\n"
     ".reg .pred %q;\nld.param.b32 %v0, [p];\nst.param.b32 [r], %v0;\nmov.u32 %v1, %ctaid.x;\n"
     "and.b32 %v1, %v1, 1;\nsetp.eq.u32 %q, %v1, 0;\n@%q ret.uni;\nnot.b32 %v0, %v0;\n"
     "st.param.b32 [r], %v0;\nret;\n}\n"},
    // Calls itself up to 15 times, with something of each level's own in local memory.
    {"descend",
     ".func (.param .b32 r) descend(.param .b32 p)\n{\n.reg .b32 %v<4>;\n.reg .pred %q;\n"
     ".local .align 4 .b32 kept;\nld.param.b32 %v0, [p];\nst.local.b32 [kept], %v0;\n"
     "and.b32 %v1, %v0, 15;\nsetp.eq.u32 %q, %v1, 0;\nmov.b32 %v2, 1;\n@%q bra DONE;\n"
     "sub.u32 %v1, %v0, 1;\n{\n.param .b32 below;\n.param .b32 given;\n"
     "st.param.b32 [below], %v1;\ncall (given), descend, (below);\n"
     "ld.param.b32 %v2, [given];\n}\nld.local.b32 %v3, [kept];\n"
     "mad.lo.u32 %v2, %v2, 3, %v3;\nDONE:\nst.param.b32 [r], %v2;\nret;\n}\n"},
    {"twice",
     ".func (.param .b32 r) twice(.param .b32 p)\n{\n.reg .b32 %v0;\nld.param.b32 %v0, [p];\n"
     "add.u32 %v0, %v0, %v0;\nst.param.b32 [r], %v0;\nret;\n}\n"},
    {"thrice",
     ".func (.param .b32 r) thrice(.param .b32 p)\n{\n.reg .b32 %v0;\nld.param.b32 %v0, [p];\n"
     "mad.lo.u32 %v0, %v0, 3, 1;\nst.param.b32 [r], %v0;\nret;\n}\n"},
    {"operations", ".global .align 8 .u64 operations[2] = {twice, thrice};\n"},
    {"leave_if_odd",
     ".func leave_if_odd(.param .b32 p)\n{\n.reg .b32 %v0;\n.reg .pred %q;\n"
     "ld.param.b32 %v0, [p];\nand.b32 %v0, %v0, 1;\nsetp.ne.u32 %q, %v0, 0;\n@%q exit;\n"
     "ret;\n}\n"},
};

// A function that gives back its argument of the type in its name, echo_u16.
string EchoText(const string& type) {
  return ".func (.param ." + type + " r) echo_" + type + "(.param ." + type + " p)\n{\n.reg .b" +
         to_string(RegisterBits(type)) + " %v;\nld.param." + type + " %v, [p];\nst.param." + type +
         " [r], %v;\nret;\n}\n";
}

// What instances may use besides their operands.
string Scratch(const Instance& instance) {
  string text = ".reg .b16 %h, %k;\n.reg .b32 %t, %u;\n.reg .b64 %x, %y;\n.reg .pred %p, %q;\n";
  if (instance.code.find("b128") != string::npos) text += ".reg .b128 %z, %w;\n";
  return text;
}

// The registers of the images that an instance names.
string ImageRegisters(std::span<const string> images) {
  string text;
  for (size_t i = 0; i < images.size(); ++i) text += ".reg .b64 %o" + to_string(i) + ";\n";
  return text;
}

// Those parts of module scope that the instances name.
string ModuleText(std::span<const Instance> instances) {
  auto names = [&instances](const string& text) {
    return std::any_of(instances.begin(), instances.end(), [&text](const Instance& instance) {
      return instance.code.find(text) != string::npos;
    });
  };
  string text;
  for (const Piece& piece : kPieces) {
    const bool is_operation = piece.name == "twice" || piece.name == "thrice";
    if (names(string(piece.name)) || (is_operation && names("operations"))) text += piece.text;
  }
  for (const char* type : {"b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"}) {
    if (names(string("echo_") + type)) text += EchoText(type);
  }
  return text;
}

}  // namespace

string BlockText(const Instance& instance) {
  string text = "{\n.reg .b32 %narrow, %tuple;\n.reg .b64 %g, %s, %rs, %rw, %n, %l, %i;\n" +
                Scratch(instance);
  for (size_t i = 0; i < instance.sources.size(); ++i) {
    text += Declaration(kSourceNames[i], instance.sources[i]);
  }
  const std::vector<string> images = ImagesOf({&instance, 1});
  return text + ImageRegisters(images) + Declaration("%d", instance.result) +
         WithRegisters(instance.code, images) + "\n}\n";
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
  const std::vector<string> images = ImagesOf(instances);
  body += ImageRegisters(images);
  if (!images.empty()) body += "ld.param.u64 %at, [images];\n";
  for (size_t i = 0; i < images.size(); ++i) {
    body += "ld.global.b64 %o" + to_string(i) + ", [%at+" + to_string(i * kValueBytes) + "];\n";
  }
  const Operand& result = first.result;
  body += "mad.wide.u32 %at, %tuple, " + to_string(result.count * kValueBytes) + ", %out;\n";
  offset = 0;
  bool uses_local = false;
  bool uses_first = false;
  for (const Instance& instance : instances) {
    uses_shared |= instance.code.find("shared") != string::npos;
    uses_local |= instance.code.find("%l") != string::npos;
    uses_first |=
        instance.code.find("%i]") != string::npos || instance.code.find("%i+") != string::npos;
    body += "{\n" + Scratch(instance);
    body += Declaration("%d", result);
    body += WithRegisters(instance.code, images) + "\n";
    for (uint32_t k = 0; k < result.count; ++k) {
      body += ToWide(RegisterName("%d", result, k), RegisterBits(result.type));
      body += "st.global.b64 [%at+" + to_string(offset + k * kValueBytes) + "], %io;\n";
    }
    body += "}\n";
    offset += tuples * result.count * kValueBytes;
  }
  string text = ".version 8.6\n.target sm_90\n.address_size 64\n" + ModuleText(instances) +
                ".visible .entry run(.param .u64 in, .param .u64 out, .param .u64 memory" +
                (images.empty() ? "" : ", .param .u64 images") +
                ")\n{\n"
                ".reg .b32 %thread, %block, %tuple, %narrow;\n.reg .b64 %in, %out, %at, %io, %g, "
                "%s, %rs, %rw, %n, %l, %i;\n"
                "ld.param.u64 %in, [in];\nld.param.u64 %out, [out];\nld.param.u64 %g, [memory];\n"
                "mov.u32 %thread, %tid.x;\nmov.u32 %block, %ctaid.x;\n"
                "mad.lo.u32 %tuple, %block, " +
                to_string(kBlockThreads) + ", %thread;\nmad.wide.u32 %g, %tuple, " +
                to_string(kThreadBytes) + ", %g;\n";
  if (uses_shared) {
    text += ".shared .align 128 .b8 cells[" + to_string(kBlockThreads * kThreadBytes) +
            "];\nmov.u64 %rw, cells;\nmad.wide.u32 %s, %thread, " + to_string(kThreadBytes) +
            ", %rw;\nxor.b32 %narrow, %thread, 64;\nmad.wide.u32 %n, %narrow, " +
            to_string(kThreadBytes) +
            ", %rw;\nand.b32 %narrow, %thread, -32;\n"
            "mad.wide.u32 %rw, %narrow, " +
            to_string(kThreadBytes) +
            ", %rw;\nand.b32 %narrow, %thread, 31;\nmad.wide.u32 %rs, %narrow, 16, %rw;\n";
  }
  if (uses_local) {
    text += ".local .align 16 .b8 own[" + to_string(kThreadBytes) + "];\nmov.u64 %l, own;\n";
  }
  if (uses_first) {
    text += "mad.wide.u32 %i, %tuple, " + to_string(first.sources.front().count * kValueBytes) +
            ", %in;\n";
  }
  return text + body + "ret;\n}\n";
}

}  // namespace consort::ptx_suite
