# SPDX-License-Identifier: Apache-2.0
"""gen/host/: the handlers' interface and the dispatcher; gen/device/: the driver's function table."""

from description import COSTS, REDOS
from emit_wire import BANNER, range_bytes


def later(request):
    return request.completes == "later"


def handlers(description):
    lines = [BANNER, "#ifndef CONSORT_GEN_HOST_HANDLERS_H_\n#define CONSORT_GEN_HOST_HANDLERS_H_\n",
             "#include <cuda.h>\n\n#include <cstddef>\n#include <cstdint>\n",
             "#include \"gen/device/driver_table.h\"\n#include \"gen/wire/requests.h\"\n#include \"vmsock/channel.h\"\n",
             "namespace consort::host {\n",
             "// What hand-written host code does for one session. Dispatch decodes a frame and calls one of\n"
             "// these, or forwards the call to the driver itself. A request without a handler does not link.",
             "class Handlers {", " public:", "  virtual ~Handlers() = default;\n",
             "  // The driver's object behind a guest's id, or CUDA_ERROR_INVALID_HANDLE. UseStream also\n"
             "  // orders the operation that follows with the context's default stream. `context` is the\n"
             "  // frame's context id.",
             "  virtual CUresult UseStream(uint32_t context, uint64_t id, CUstream* stream) = 0;",
             "  // As UseStream, for a question about the stream: no operation follows. `idle`: all of the\n"
             "  // guest's work there is known to have finished, whatever else of ours may be in the stream.",
             "  virtual CUresult FindStream(uint32_t context, uint64_t id, CUstream* stream, bool* idle) = 0;",
             "  virtual CUresult FindEvent(uint64_t id, CUevent* event) = 0;",
             "  // CUDA_ERROR_INVALID_VALUE unless the guest may reach [address, address + bytes); 0 bytes are\n"
             "  // always fine.",
             "  virtual CUresult CheckRange(uint64_t address, uint64_t bytes) = 0;\n",
             "  // Room for the reply to `request` with `body_bytes` of body, 8-aligned; EndReply sends it.\n"
             "  // Never null: what does not fit the channel is queued.",
             "  virtual std::byte* BeginReply(const wire::FrameHeader& request, CUresult result, uint32_t body_bytes) = 0;",
             "  virtual void EndReply() = 0;\n",
             "  // A request that nobody waits for has failed.",
             "  virtual void Failed(const wire::FrameHeader& request, CUresult result) = 0;\n",
             "  // Each handler has the frame's header and the decoded request; spans point into the frame and\n"
             "  // end with the call. Those with `Frame` reply themselves, later; a frame that they keep they\n"
             "  // release themselves."]
    for request in description.requests.values():
        if request.call:
            continue
        argument = f"const wire::FrameHeader& header, const wire::{request.name}Request& request"
        if later(request):
            lines.append(f"  virtual void {request.name}({argument}) = 0;")
        elif request.reply_fields:
            lines.append(f"  virtual CUresult {request.name}({argument}, wire::{request.name}Reply* reply) = 0;")
        else:
            lines.append(f"  virtual CUresult {request.name}({argument}) = 0;")
    lines += ["};\n",
              "// After what work a request comes. Streams and events are the guest's ids.\n"
              "struct RequestOrder {",
              "  static constexpr size_t kEventsMax = 2;",
              "  bool all = false;         // after all earlier work of the session",
              "  bool context = false;     // after that of the frame's context",
              "  bool observes = false;    // asks how far the work is, and puts none there",
              "  bool records = false;     // its events are recorded, or end, at its place in the stream",
              "  bool has_stream = false;",
              "  uint64_t stream = 0;",
              "  size_t event_count = 0;",
              "  uint64_t events[kEventsMax] = {};",
              "};\n",
              "// What a request costs the device; kNone is not worth a turn.",
              "enum class RequestCost : uint8_t { kNone, kKernel, kToDevice, kToHost, kCopy };",
              "// kNone for an unknown opcode too.",
              "RequestCost CostOf(uint16_t opcode);\n",
              "// What a session that is computed again from a checkpoint does with a request that came since\n"
              "// (host/session/redo_log.h).",
              "enum class RequestRedo : uint8_t { kSpoils, kAgain, kAsks };",
              "// kSpoils for an unknown opcode too.",
              "RequestRedo RedoOf(uint16_t opcode);\n",
              "// False: as Dispatch. Needs no session.",
              "bool OrderOf(const Frame& frame, RequestOrder* order);\n",
              "// Decodes `frame` and carries it out. False: the frame is malformed or its opcode unknown; the\n"
              "// session must end. Session loop only.",
              "bool Dispatch(const Frame& frame, const device::DriverTable& driver, Handlers& handlers);\n",
              "}  // namespace consort::host\n", "#endif  // CONSORT_GEN_HOST_HANDLERS_H_"]
    return "\n".join(lines) + "\n"


def forward(request, symbols):
    call = request.call
    lines = []
    stream = next((p for p in call.params if p.kind == "stream"), None)
    for p in call.params:
        if p.kind == "event":
            lines.append(f"      CUevent {p.name} = nullptr;")
            lines.append(f"      if (result == CUDA_SUCCESS) result = handlers.FindEvent(request.{p.name}, &{p.name});")
    # Before UseStream, after which work must follow.
    for p in call.params:
        if p.range:
            lines.append("      if (result == CUDA_SUCCESS) result = handlers.CheckRange("
                         f"request.{p.name}, {range_bytes(call, p, 'request.')});")
    asks = "result == CUDA_SUCCESS"
    if stream:
        lines.append(f"      CUstream {stream.name} = nullptr;")
        use, idle = ("UseStream", "")
        if call.observes:
            lines.append("      bool idle = false;")
            use, idle = ("FindStream", ", &idle")
            asks += " && !idle"
        lines.append(f"      if (result == CUDA_SUCCESS) result = handlers.{use}(frame.header.value, "
                     f"request.{stream.name}, &{stream.name}{idle});")
    arguments = []
    for p, declared in zip(call.params, symbols[call.name].parameters):
        if p.direction == "out":
            lines.append(f"      {declared.type[:-1].strip()} {p.name} = 0;")
            arguments.append(f"&{p.name}")
        elif p.kind in ("stream", "event"):
            arguments.append(p.name)
        elif p.kind in ("u8", "u16"):
            arguments.append(f"static_cast<{declared.type}>(request.{p.name})")
        else:
            arguments.append(f"request.{p.name}")
    lines.append(f"      if ({asks}) result = driver.{call.name}({', '.join(arguments)});")
    for p in call.params:
        if p.direction == "out":
            lines.append(f"      reply.{p.name} = {p.name};")
    return lines


def dispatch(description, symbols):
    lines = [BANNER, "#include \"gen/host/handlers.h\"\n", "#include \"base/saturating.h\"\n",
             "namespace consort::host {\n", "namespace {\n",
             "template <class Reply>",
             "void Answer(const Frame& frame, CUresult result, const Reply& reply, bool with_fields, Handlers& handlers) {",
             "  const uint32_t bytes = with_fields ? reply.BodyBytes() : 0;",
             "  wire::Encoder encoder(handlers.BeginReply(frame.header, result, bytes), bytes);",
             "  if (with_fields) reply.Encode(encoder);",
             "  handlers.EndReply();", "}\n",
             "// A request that was answered at once: replies if the guest waits, else notes a failure.",
             "template <class Reply>",
             "void Complete(const Frame& frame, CUresult result, const Reply& reply, bool with_fields, Handlers& handlers) {",
             "  if (frame.header.call != 0) {",
             "    Answer(frame, result, reply, with_fields, handlers);",
             "  } else if (result != CUDA_SUCCESS) {",
             "    handlers.Failed(frame.header, result);",
             "  }", "}\n", "}  // namespace\n",
             "bool Dispatch(const Frame& frame, const device::DriverTable& driver, Handlers& handlers) {",
             "  wire::Decoder decoder(frame.body);",
             "  // A request that is answered must say to whom.",
             "  const bool waits = frame.header.call != 0;",
             "  CUresult result = CUDA_SUCCESS;",
             "  switch (static_cast<wire::Opcode>(frame.header.opcode)) {"]
    for request in description.requests.values():
        lines.append(f"    case wire::Opcode::k{request.name}: {{")
        lines.append(f"      wire::{request.name}Request request;")
        must = "" if request.reply == "none" else " || !waits"
        lines.append(f"      if (!request.Decode(decoder){must}) return false;")
        if later(request):
            lines.append(f"      handlers.{request.name}(frame.header, request);")
            lines.append("      return true;")
        else:
            reply = f"{request.name}Reply" if request.reply_fields else "EmptyReply"
            lines.append(f"      wire::{reply} reply;")
            if request.call:
                lines += forward(request, symbols)
            else:
                argument = ", &reply" if request.reply_fields else ""
                lines.append(f"      result = handlers.{request.name}(frame.header, request{argument});")
            fields = "true" if request.reply_on_error else "result == CUDA_SUCCESS"
            lines.append(f"      Complete(frame, result, reply, {fields}, handlers);")
            lines.append("      return true;")
        lines.append("    }")
    lines += ["    default:", "      return false;", "  }", "}\n", *order_of(description),
              *kinds_of(description, "cost", COSTS), *kinds_of(description, "redo", REDOS),
              "}  // namespace consort::host"]
    return "\n".join(lines) + "\n"


def order_of(description):
    lines = ["bool OrderOf(const Frame& frame, RequestOrder* order) {",
             "  *order = RequestOrder();",
             "  wire::Decoder decoder(frame.body);",
             "  switch (static_cast<wire::Opcode>(frame.header.opcode)) {"]
    for request in description.requests.values():
        lines.append(f"    case wire::Opcode::k{request.name}: {{")
        lines.append(f"      wire::{request.name}Request request;")
        lines.append("      if (!request.Decode(decoder)) return false;")
        if request.order in ("all", "context"):
            lines.append(f"      order->{request.order} = true;")
        if request.order == "streams" or request.records:
            lines += order_fields(request)
        lines.append("      return true;")
        lines.append("    }")
    return [*lines, "    default:", "      return false;", "  }", "}\n"]


def kinds_of(description, key, kinds):
    """A function from opcodes to a property of requests, of which the first is that of most."""
    enum = f"Request{key.title()}"
    lines = [f"{enum} {key.title()}Of(uint16_t opcode) {{", "  switch (static_cast<wire::Opcode>(opcode)) {"]
    named = [f"{enum}::k{''.join(word.title() for word in kind.split('_'))}" for kind in kinds]
    for kind, name in zip(kinds[1:], named[1:]):
        having = [r for r in description.requests.values() if getattr(r, key) == kind]
        lines += [f"    case wire::Opcode::k{request.name}:" for request in having]
        if having:
            lines.append(f"      return {name};")
    return [*lines, "    default:", f"      return {named[0]};", "  }", "}\n"]


def order_fields(request):
    lines = []
    if request.call and request.call.observes:
        lines.append("      order->observes = true;")
    if request.records:
        lines.append("      order->records = true;")
    for name, kind in request.fields.items():
        if kind == "stream":
            lines.append("      order->has_stream = true;")
            lines.append(f"      order->stream = request.{name};")
        if kind == "event":
            lines.append(f"      order->events[order->event_count++] = request.{name};")
    return lines


def driver_functions(description):
    required = list(description.device_required)
    for request in description.requests.values():
        if request.call and request.call.name not in required:
            required.append(request.call.name)
    return required, list(description.device_optional)


def driver_table(description, symbols):
    required, optional = driver_functions(description)
    lines = [BANNER, "#ifndef CONSORT_GEN_DEVICE_DRIVER_TABLE_H_\n#define CONSORT_GEN_DEVICE_DRIVER_TABLE_H_\n",
             "#ifndef __CUDA_API_VERSION_INTERNAL\n#error \"build with __CUDA_API_VERSION_INTERNAL: names here are the exported ones\"\n#endif\n",
             "#include <cuda.h>\n", "namespace consort::device {\n",
             "// The driver functions that the host calls, of whichever driver a worker has loaded. Filled once\n"
             "// by device/driver/driver_loader; immutable afterwards. Optional ones may be null.",
             "struct DriverTable {"]
    for name in [*required, *optional]:
        params = ", ".join(f"{p.type} {p.name}" for p in symbols[name].parameters)
        lines.append(f"  CUresult (CUDAAPI *{name})({params}) = nullptr;{'  // optional' if name in optional else ''}")
    lines += ["};\n", "// Calls `visit(name, slot, required)` for every function; slot is a `void**`.",
              "template <class Visitor>", "void ForEachDriverFunction(DriverTable& table, Visitor visit) {"]
    for name in [*required, *optional]:
        lines.append(f"  visit(\"{name}\", reinterpret_cast<void**>(&table.{name}), {'false' if name in optional else 'true'});")
    lines += ["}\n", "}  // namespace consort::device\n", "#endif  // CONSORT_GEN_DEVICE_DRIVER_TABLE_H_"]
    return "\n".join(lines) + "\n"
