# SPDX-License-Identifier: Apache-2.0
"""gen/guest/: exported entry points, bodies of generated calls, what is not supported, the export map and
the table behind cuGetProcAddress."""

from emit_wire import BANNER, range_bytes

# Exports that are data in the driver (the debugger's interface), not functions.
DEBUGGER_FUNCTIONS = {"cudbgApiAttach", "cudbgApiDetach", "cudbgApiInit", "cudbgGetAPI", "cudbgGetAPIVersion",
                      "cudbgMain"}


def is_data(name):
    return name.startswith("cudbg") and name not in DEBUGGER_FUNCTIONS


def parameters(symbol, default_stream):
    text = [f"{p.type} {p.name}" for p in symbol.parameters]
    if default_stream:
        text.append("DefaultStream default_stream")
    return ", ".join(text)


def per_thread_symbols(call, symbols):
    """(exported symbol, of which name) for the per-thread variants of a call and its aliases."""
    found = []
    for name in [call.name, *call.aliases]:
        for suffix in ("_ptds", "_ptsz"):
            if name + suffix in symbols:
                found.append(name + suffix)
    return found


def has_default_stream(call, symbols):
    return bool(per_thread_symbols(call, symbols))


def calls_header(description, symbols):
    lines = [BANNER, "#ifndef CONSORT_GEN_GUEST_CALLS_H_\n#define CONSORT_GEN_GUEST_CALLS_H_\n",
             "#include <cuda.h>\n#include <cudaProfiler.h>\n", "#include \"guest/default_stream.h\"\n",
             "// One function a described call, with the signature of the driver's, in the order of its\n"
             "// parameters; a call that has per-thread variants is told which default stream the caller meant.\n"
             "// The bodies are in guest/calls/<section>.cc, or generated.",
             "namespace consort::guest::calls {\n"]
    for call in description.calls.values():
        lines.append(f"CUresult {call.name}({parameters(symbols[call.name], has_default_stream(call, symbols))});")
    lines += ["\n}  // namespace consort::guest::calls\n", "#endif  // CONSORT_GEN_GUEST_CALLS_H_"]
    return "\n".join(lines) + "\n"


def entry(symbol_name, call, symbols, per_thread):
    symbol = symbols[symbol_name]
    declared = parameters(symbol, False)
    arguments = [p.name for p in symbols[symbol_name].parameters]
    if has_default_stream(call, symbols):
        arguments.append("DefaultStream::kPerThread" if per_thread else "DefaultStream::kLegacy")
    name = f"Entry_{symbol_name}"
    check = "" if call.before_init else "  if (CUresult result = EnterCall(); result != CUDA_SUCCESS) return result;\n"
    return (f"CONSORT_EXPORT CUresult {name}({declared}) __asm__(\"{symbol_name}\");\n"
            f"CUresult {name}({declared}) {{\n{check}"
            f"  return LeaveCall(calls::{call.name}({', '.join(arguments)}), \"{symbol_name}\");\n}}\n")


def generated_body(call, description, symbols):
    symbol = symbols[call.name]
    default_stream = has_default_stream(call, symbols)
    lines = [f"CUresult {call.name}({parameters(symbol, default_stream)}) {{"]
    if call.as_call:
        target = symbols[call.as_call]
        own = {p.name for p in symbol.parameters}
        arguments = [p.name if p.name in own else "nullptr" for p in target.parameters]
        if default_stream:
            arguments.append("default_stream")
        lines.append(f"  return {call.as_call}({', '.join(arguments)});")
        lines.append("}\n")
        return lines
    fail = "; result != CUDA_SUCCESS) return result;"
    for p in call.params:
        if p.direction == "out" and not p.nullable:
            lines.append(f"  if ({p.name} == nullptr) return {p.null};")
        if p.valid:
            lines.append(f"  if (!{p.valid}) return CUDA_ERROR_INVALID_VALUE;")
    context = None
    stream = next((p for p in call.params if p.kind == "stream"), None)
    events = [p for p in call.params if p.kind == "event"]
    if stream:
        context = f"{stream.name}_ref.context"
        choice = "default_stream" if default_stream else "DefaultStream::kLegacy"
        lines.append(f"  StreamRef {stream.name}_ref;")
        lines.append(f"  if (CUresult result = FindStream({stream.name}, {choice}, &{stream.name}_ref){fail}")
    for p in events:
        lines.append(f"  EventRef {p.name}_ref;")
        lines.append(f"  if (CUresult result = FindEvent({p.name}, &{p.name}_ref){fail}")
        context = context or f"{p.name}_ref.context"
        if context != f"{p.name}_ref.context":
            if call.same_context:
                lines.append(f"  if ({context} != {p.name}_ref.context) "
                             f"return RecordForOtherDevice({stream.name}_ref, {p.name}_ref);")
            else:
                # A stream and an event of two devices: the stream is to wait.
                across = (f"WaitForOtherDevice({stream.name}_ref, {p.name}_ref)" if stream
                          else f"AcrossDevices(\"{call.name}\")")
                lines.append(f"  if (!SameSession({context}, {p.name}_ref.context)) return {across};")
    if context is None:
        lines.append("  Context* context = nullptr;")
        lines.append(f"  if (CUresult result = CurrentContext(&context){fail}")
        context = "context"
    for p in call.params:
        if p.range:
            lines.append(f"  if (CUresult result = CheckDeviceRange({context}, {p.name}, "
                         f"{range_bytes(call, p, '')}, {p.align}){fail}")
    lines.append(f"  wire::{call.name}Request request;")
    for p in call.params:
        if p.direction == "in":
            value = f"{p.name}_ref.id" if p.kind in ("stream", "event") else p.name
            lines.append(f"  request.{p.name} = {value};")
    request = description.requests[call.name]
    if request.reply == "none":
        lines.append(f"  return Post({context}, request);")
    else:
        lines.append(f"  wire::{'%sReply' % call.name if request.reply_fields else 'EmptyReply'} reply;")
        lines.append(f"  if (CUresult result = Ask({context}, request, &reply){fail}")
        for p in call.params:
            if p.direction == "out":
                guard = f"if ({p.name} != nullptr) " if p.nullable else ""
                lines.append(f"  {guard}*{p.name} = reply.{p.name};")
        lines.append("  return CUDA_SUCCESS;")
    lines.append("}\n")
    return lines


def entries(description, symbols, section):
    calls = [c for c in description.calls.values() if c.section == section]
    lines = [BANNER, "#include <cuda.h>\n",
             "#include \"base/saturating.h\"\n#include \"gen/guest/calls.h\"\n#include \"gen/wire/requests.h\"\n"
             "#include \"guest/call.h\"\n"
             "#include \"guest/entry.h\"\n", "namespace consort::guest {\n", "namespace calls {\n"]
    for call in calls:
        if call.guest == "generated":
            lines += generated_body(call, description, symbols)
    lines += ["}  // namespace calls\n", "extern \"C\" {\n"]
    for call in calls:
        for name in [call.name, *call.aliases]:
            lines.append(entry(name, call, symbols, False))
        for name in per_thread_symbols(call, symbols):
            lines.append(entry(name, call, symbols, True))
    lines += ["}  // extern \"C\"", "}  // namespace consort::guest"]
    return "\n".join(lines) + "\n"


def supported_symbols(description, symbols):
    names = set()
    for call in description.calls.values():
        names.update([call.name, *call.aliases, *per_thread_symbols(call, symbols)])
    return names


def unsupported(description, symbols):
    supported = supported_symbols(description, symbols)
    names = [n for n in description.exports if n not in supported]
    functions = [n for n in names if not is_data(n)]
    lines = [BANNER, "// Every name that the driver exports and that is not described: says so once, is counted, and\n"
             "// returns CUDA_ERROR_NOT_SUPPORTED whatever its arguments are.\n",
             "#include \"guest/entry.h\"\n#include \"guest/unsupported.h\"\n",
             "namespace consort::guest {\n",
             f"const uint32_t kUnsupportedCount = {len(functions)};",
             f"const char* const kUnsupportedNames[{len(functions)}] = {{"]
    lines += [f"    \"{n}\"," for n in functions]
    lines += ["};\n", "extern \"C\" {\n"]
    for i, name in enumerate(functions):
        lines.append(f"CONSORT_EXPORT int Unsupported_{i}() __asm__(\"{name}\");")
        lines.append(f"int Unsupported_{i}() {{ return Unsupported({i}); }}")
    lines.append("\n// The debugger's flags: data that debuggers read; zero says that there is nothing to attach to.")
    for i, name in enumerate(n for n in names if is_data(n)):
        lines.append(f"CONSORT_EXPORT extern uint64_t DebuggerData_{i} __asm__(\"{name}\");")
        lines.append(f"uint64_t DebuggerData_{i} = 0;")
    lines += ["\n}  // extern \"C\"", "}  // namespace consort::guest"]
    return "\n".join(lines) + "\n"


def proc_table(description, symbols):
    exported = set(description.exports)
    rows = sorted((s for s in symbols.values() if s.name in exported),
                  key=lambda s: (s.base, s.suffix != "", s.version))
    lines = [BANNER, "// What cuGetProcAddress chooses from, sorted by base name, ordinary entries first, then by version.\n",
             "#include \"guest/entry.h\"\n#include \"guest/proc_table.h\"\n", "namespace consort::guest {\n",
             "extern \"C\" {"]
    for i, s in enumerate(rows):
        lines.append(f"CONSORT_EXPORT extern const char Symbol_{i} __asm__(\"{s.name}\");")
    lines += ["}  // extern \"C\"\n", f"const uint32_t kProcEntryCount = {len(rows)};",
              f"const ProcEntry kProcEntries[{len(rows)}] = {{"]
    for i, s in enumerate(rows):
        lines.append(f"    {{\"{s.base}\", {s.version}, {'true' if s.suffix else 'false'}, &Symbol_{i}}},")
    lines += ["};\n", "}  // namespace consort::guest"]
    return "\n".join(lines) + "\n"


# By this the host knows the library that sends calls to it, and does not load it as its driver.
GUEST_LIBRARY_MARK = "consort_guest_library"

# Ours beside the driver's: guest/consort.h.
OWN_CALLS = ["consortReserve", "consortHint"]


def export_map(description):
    lines = ["# Generated from api/cuda/exports.txt by api/apigen; do not edit.", "{", "  global:"]
    lines += [f"    {n};" for n in [*description.exports, GUEST_LIBRARY_MARK, *OWN_CALLS]]
    lines += ["  local: *;", "};"]
    return "\n".join(lines) + "\n"


def signatures_check(description, symbols, cuda_h):
    """static_asserts that the typedef headers and cuda.h declare the same functions."""
    lines = [BANNER, "// Compiled, never linked anywhere: cuda.h must declare each described call as the typedef headers do.\n",
             "#include <cuda.h>\n\n#include <type_traits>\n"]
    for call in description.calls.values():
        if f"CUDAAPI {call.name}(" not in cuda_h:
            continue
        types = ", ".join(p.type for p in symbols[call.name].parameters)
        lines.append(f"static_assert(std::is_same_v<decltype(&::{call.name}), CUresult (CUDAAPI*)({types})>);")
    return "\n".join(lines) + "\n"
