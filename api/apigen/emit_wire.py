# SPDX-License-Identifier: Apache-2.0
"""gen/wire/: opcodes and the flat form of every request, reply and event."""

import itertools
import re

from description import FIELD_KINDS

BANNER = "// Generated from api/cuda/*.toml by api/apigen; do not edit (./dev gen).\n"


def opcodes(description):
    entries = sorted([*description.requests.values(), *description.events.values()], key=lambda e: e.opcode)
    lines = [BANNER, "#ifndef CONSORT_GEN_WIRE_OPCODES_H_\n#define CONSORT_GEN_WIRE_OPCODES_H_\n",
             "#include <cstdint>\n", "namespace consort::wire {\n",
             "// Identifies the wire form; sides with different hashes refuse each other in the handshake.",
             f"inline constexpr uint64_t kDescriptionHash = {description.hash():#018x}u;\n",
             "enum class Opcode : uint16_t {"]
    lines += [f"  k{e.name} = {e.opcode}," for e in entries]
    lines += ["};\n", "// The request's or event's name, or null for a number that is none.",
              "constexpr const char* OpcodeName(uint16_t opcode) {", "  switch (opcode) {"]
    lines += [f"    case {e.opcode}: return \"{e.name}\";" for e in entries]
    lines += ["    default: return nullptr;", "  }", "}\n",
              f"inline constexpr uint16_t kOpcodesMax = {max(e.opcode for e in entries) + 1};\n",
              "}  // namespace consort::wire\n", "#endif  // CONSORT_GEN_WIRE_OPCODES_H_"]
    return "\n".join(lines) + "\n"


def range_bytes(call, param, prefix):
    """The byte length of the range that `param` begins, as a C++ expression that cannot wrap. Parameters are
    variables of their name behind `prefix`."""
    names = "|".join(p.name for p in call.params)
    expression = re.sub(rf"\b({names})\b", rf"Saturating({prefix}\1)", param.range)
    return f"Saturating({expression}).value()"


def struct(name, fields, opcode_name, doc, extra):
    lines = []
    if doc:
        lines.append("// " + doc)
    lines.append(f"struct {name} {{")
    if opcode_name:
        lines.append(f"  static constexpr Opcode kOpcode = Opcode::k{opcode_name};")
    lines += extra
    for field, kind in fields.items():
        ctype = FIELD_KINDS[kind][0]
        lines.append(f"  {ctype} {field}{'' if kind == 'bytes' else ' = 0'};")
    lines.append("  uint32_t BodyBytes() const {")
    fixed = 8 * sum(1 for k in fields.values() if k != "bytes")
    terms = [str(fixed)] + [f"static_cast<uint32_t>(EncodedBytes({f}.size()))"
                            for f, k in fields.items() if k == "bytes"]
    lines.append(f"    return {' + '.join(terms)};")
    lines.append("  }")
    lines.append(f"  void Encode(Encoder& {'to' if fields else ''}) const {{")
    for field, kind in fields.items():
        verb = FIELD_KINDS[kind][1]
        if kind == "bytes":
            lines.append(f"    to.PutBytes({field}.data(), {field}.size());")
        else:
            put = {"U32": "PutU64", "U64": "PutU64", "I32": "PutI64", "F32": "PutF32"}[verb]
            lines.append(f"    to.{put}({field});")
    lines.append("  }")
    lines.append("  // Whether the body held exactly these fields.")
    lines.append("  bool Decode(Decoder& from) {")
    # The scalars before the first byte string have fixed places: one look at the length is enough.
    scalars = list(itertools.takewhile(lambda field: field[1] != "bytes", fields.items()))
    if len(scalars) > 1:
        lines.append(f"    const std::byte* const scalars = from.Scalars({8 * len(scalars)});")
        lines.append("    if (scalars == nullptr) return false;")
    else:
        scalars = []
    for index, (field, kind) in enumerate(fields.items()):
        verb = FIELD_KINDS[kind][1]
        read = f"{verb}At(scalars + {8 * index})" if index < len(scalars) else f"{verb}()"
        lines.append(f"    {field} = from.{read};")
    lines.append("    return from.Done();")
    lines.append("  }")
    lines.append("};\n")
    return lines


def requests(description):
    lines = [BANNER, "#ifndef CONSORT_GEN_WIRE_REQUESTS_H_\n#define CONSORT_GEN_WIRE_REQUESTS_H_\n",
             "#include <cstddef>\n#include <cstdint>\n#include <span>\n",
             "#include \"gen/wire/opcodes.h\"\n#include \"vmsock/wire/decoder.h\"\n"
             "#include \"vmsock/wire/encoder.h\"\n", "namespace consort::wire {\n",
             "// The reply of a request that answers with its result alone.",
             *struct("EmptyReply", {}, "", "", [])]
    for request in description.requests.values():
        reply = f"{request.name}Reply" if request.reply_fields else "EmptyReply"
        if request.reply_fields:
            lines += struct(reply, request.reply_fields, "", "", [])
        extra = [f"  using Reply = {reply};",
                 f"  static constexpr bool kAnswered = {'false' if request.reply == 'none' else 'true'};"]
        lines += struct(f"{request.name}Request", request.fields, request.name, request.doc, extra)
    for event in description.events.values():
        lines += struct(f"{event.name}Event", event.fields, event.name, event.doc, [])
    lines += ["}  // namespace consort::wire\n", "#endif  // CONSORT_GEN_WIRE_REQUESTS_H_"]
    return "\n".join(lines) + "\n"
