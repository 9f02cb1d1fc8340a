# SPDX-License-Identifier: Apache-2.0
"""Loads api/cuda/*.toml and checks it against the toolkit: what people wrote, never guessed.

A `call` is a driver function and how the guest answers it; a `request` is a frame from guest to host; an
`event` is a frame from host to guest. A call with guest = "generated" makes a request of its own name.
"""

import dataclasses
import hashlib
import pathlib
import re
import tomllib


# Sent by the guest library of its own accord, or by a function that is no driver call (guest/consort.h).
NO_CALLS_REQUESTS = ("HostFunctionDone", "UnsupportedCalls", "MemoryReserve", "MemoryHint", "ReadyToLeave")


class DescriptionError(Exception):
    """The description is wrong; the message names file, entry and what to write instead."""


# Kinds of wire fields: C++ type of the struct member, and the Encoder/Decoder verb.
FIELD_KINDS = {
    "u8": ("uint32_t", "U32"), "u16": ("uint32_t", "U32"), "u32": ("uint32_t", "U32"),
    "i32": ("int32_t", "I32"), "u64": ("uint64_t", "U64"), "size": ("uint64_t", "U64"),
    "devptr": ("uint64_t", "U64"), "f32": ("float", "F32"),
    "bytes": ("std::span<const std::byte>", "Bytes"),
    "stream": ("uint64_t", "U64"), "event": ("uint64_t", "U64"), "kernel": ("uint64_t", "U64"),
    "library": ("uint64_t", "U64"),
}

# C types that a parameter kind may have in the header.
C_TYPES = {
    "u8": {"unsigned char"}, "u16": {"unsigned short"}, "u32": {"unsigned int", "cuuint32_t"},
    "u64": {"cuuint64_t", "unsigned long long"}, "size": {"size_t"}, "i32": {"int"},
    "devptr": {"CUdeviceptr", "CUdeviceptr_v2"}, "f32": {"float"},
    "stream": {"CUstream"}, "event": {"CUevent"},
}

# What a request comes after: its streams and events, all work of its context or of the session, nothing.
ORDERS = ("streams", "context", "all", "none")

# What a request costs the device, for the scheduler: work of a kind, or nothing that is worth a turn.
COSTS = ("none", "kernel", "to_device", "to_host", "copy")

# What a session that is computed again from a checkpoint does with a request that came since (host/session/redo_log.h):
# carries it out again, all that it does being in its frame; answers it if that was not done; or cannot go on from there.
REDOS = ("spoils", "again", "asks")

FIRST_OPCODE = 16  # below: none yet; room for the channel's own


@dataclasses.dataclass
class Param:
    """A parameter of a generated call. direction: "in" or "out"; nullable and null only for outputs."""
    name: str
    kind: str
    direction: str
    nullable: bool
    null: str    # the CUresult for a null pointer where that is not allowed
    range: str   # byte length of the device range it begins, a C expression; "" for none
    align: str   # required alignment of that address
    valid: str   # a C condition that must hold, else CUDA_ERROR_INVALID_VALUE


@dataclasses.dataclass
class Call:
    name: str
    section: str
    guest: str                  # "generated" | "written"
    before_init: bool
    aliases: list
    sends: list
    note: str
    params: list                # generated calls only
    as_call: str                # answered as this generated call, on the default stream
    same_context: bool          # its stream and event must be of one context
    observes: bool              # asks about its stream or events and puts no work there
    records: bool               # its event is recorded or ends: it comes after what refers to the event, and before
                                # what refers to it from then on


@dataclasses.dataclass
class Request:
    name: str
    section: str
    doc: str
    reply: str                  # "none" | "result" | "values"
    completes: str              # "now" | "later"
    fields: dict
    reply_fields: dict
    reply_on_error: bool        # reply fields are sent with an error too
    call: Call                  # the generated call it belongs to, or None
    order: str                  # one of ORDERS, see docs/howto/add_a_cuda_call.md
    cost: str                   # one of COSTS, likewise
    redo: str                   # one of REDOS, likewise
    records: bool               # see Call
    opcode: int = 0


@dataclasses.dataclass
class Event:
    name: str
    section: str
    doc: str
    fields: dict
    opcode: int = 0


@dataclasses.dataclass
class Description:
    calls: dict
    requests: dict
    events: dict
    exports: list
    sections: list
    device_required: list
    device_optional: list

    def hash(self):
        """Identifies the wire form: equal on two sides if and only if they can talk."""
        text = []
        for entry in sorted([*self.requests.values(), *self.events.values()], key=lambda e: e.opcode):
            reply = getattr(entry, "reply_fields", {})
            text.append(f"{entry.opcode} {entry.name} {list(entry.fields.items())} "
                        f"{getattr(entry, 'reply', '')} {list(reply.items())} "
                        f"{getattr(entry, 'reply_on_error', False)}")
        return int.from_bytes(hashlib.sha256("\n".join(text).encode()).digest()[:8], "little")


def parse_param(where, name, text):
    match = re.match(r"(out\??\s+)?(\w+)", text)
    if not match or match[2] not in C_TYPES:
        raise DescriptionError(f"{where}: parameter {name} = {text!r}: unknown kind; known: "
                               + ", ".join(sorted(C_TYPES)))
    rest = text[match.end():].strip()
    options = dict(re.findall(r"(range|align|valid)=(\(.*\)|\S+)", rest)) if "valid=" in rest else dict(
        re.findall(r"(range|align|null)=(\S+)", rest))
    null = options.get("null", "CUDA_ERROR_INVALID_VALUE")
    if not re.fullmatch(r"CUDA_ERROR_\w+", null) or ("null" in options and (match[1] or "").strip() != "out"):
        raise DescriptionError(f"{where}: parameter {name} = {text!r}: null=CUDA_ERROR_... belongs to an `out` "
                               "that may not be null")
    return Param(name, match[2], "out" if match[1] else "in", bool(match[1] and "?" in match[1]), null,
                 options.get("range", ""), options.get("align", "1"), options.get("valid", ""))


KEYS = {
    "call": {"guest", "before_init", "aliases", "sends", "note", "params", "as", "reply",
             "same_context", "observes", "records", "cost", "redo"},
    "request": {"doc", "reply", "completes", "fields", "reply_fields", "reply_on_error", "order", "cost", "records",
                "redo"},
    "event": {"doc", "fields"},
}


def check_keys(where, kind, entry):
    unknown = set(entry) - KEYS[kind]
    if unknown:
        raise DescriptionError(f"{where}: unknown key {sorted(unknown)[0]!r}; known: "
                               + ", ".join(sorted(KEYS[kind])))


def check_fields(where, fields):
    for field, kind in fields.items():
        if kind not in FIELD_KINDS:
            raise DescriptionError(f"{where}: field {field} has unknown kind {kind!r}")


def load(api_dir):
    api = pathlib.Path(api_dir)
    calls, requests, events, sections = {}, {}, {}, []
    for path in sorted((api / "cuda").glob("*.toml")):
        section = path.stem
        sections.append(section)
        data = tomllib.loads(path.read_text())
        for kind in set(data) - set(KEYS):
            raise DescriptionError(f"{path.name}: unknown table [{kind}.*]")
        for name, entry in data.get("call", {}).items():
            where = f"{path.name}: call {name}"
            check_keys(where, "call", entry)
            if name in calls:
                raise DescriptionError(f"{where}: described twice")
            if entry.get("guest") not in ("generated", "written"):
                raise DescriptionError(f"{where}: guest must be \"generated\" or \"written\"")
            params = [parse_param(where, n, t) for n, t in entry.get("params", {}).items()]
            call = Call(name, section, entry["guest"], entry.get("before_init", False),
                        entry.get("aliases", []), entry.get("sends", []), entry.get("note", ""), params,
                        entry.get("as", ""), entry.get("same_context", False), entry.get("observes", False),
                        entry.get("records", False))
            calls[name] = call
            if call.guest == "generated" and not call.as_call:
                reply = entry.get("reply")
                if reply not in ("none", "result", "values"):
                    raise DescriptionError(f"{where}: reply must be none, result or values")
                outs = {p.name: p.kind for p in params if p.direction == "out"}
                if bool(outs) != (reply == "values"):
                    raise DescriptionError(f"{where}: reply = \"values\" exactly when there are out parameters")
                requests[name] = Request(name, section, "", reply, "now",
                                         {p.name: p.kind for p in params if p.direction == "in"}, outs,
                                         False, call, "streams", entry.get("cost", ""),
                                         entry.get("redo", REDOS[0]), call.records)
        for name, entry in data.get("request", {}).items():
            where = f"{path.name}: request {name}"
            check_keys(where, "request", entry)
            check_fields(where, entry.get("fields", {}))
            check_fields(where, entry.get("reply_fields", {}))
            if not entry.get("doc"):
                raise DescriptionError(f"{where}: needs a doc")
            if entry.get("reply") not in ("none", "result", "values"):
                raise DescriptionError(f"{where}: reply must be none, result or values")
            requests[name] = Request(name, section, entry["doc"], entry["reply"],
                                     entry.get("completes", "now"), entry.get("fields", {}),
                                     entry.get("reply_fields", {}), entry.get("reply_on_error", False), None,
                                     entry.get("order", "streams"), entry.get("cost", ""),
                                     entry.get("redo", REDOS[0]), entry.get("records", False))
            if requests[name].order not in ORDERS:
                raise DescriptionError(f"{where}: order must be one of {', '.join(ORDERS)}")
        for name, entry in data.get("event", {}).items():
            where = f"{path.name}: event {name}"
            check_keys(where, "event", entry)
            check_fields(where, entry.get("fields", {}))
            events[name] = Event(name, section, entry.get("doc", ""), entry.get("fields", {}))
    device = tomllib.loads((api / "device.toml").read_text())
    exports = (api / "cuda" / "exports.txt").read_text().split()
    return Description(calls, requests, events, exports, sections, device["required"], device["optional"])


def check(description, symbols):
    """Compares with the toolkit's headers; raises at the first difference."""
    exported = set(description.exports)
    for call in description.calls.values():
        for name in [call.name, *call.aliases]:
            if name not in exported:
                raise DescriptionError(f"call {name}: not exported by the driver (api/cuda/exports.txt)")
            if name not in symbols:
                raise DescriptionError(f"call {name}: the toolkit's headers do not have it")
        signature = symbols[call.name].parameters
        for alias in call.aliases:
            if [normal(p.type) for p in symbols[alias].parameters] != [normal(p.type) for p in signature]:
                raise DescriptionError(f"call {call.name}: alias {alias} has another signature")
        for request in call.sends:
            if request not in description.requests:
                raise DescriptionError(f"call {call.name}: sends unknown request {request!r}")
        if call.as_call:
            target = description.calls.get(call.as_call)
            if not target or target.guest != "generated":
                raise DescriptionError(f"call {call.name}: as = {call.as_call!r} is no generated call")
        elif call.guest == "generated":
            check_params(call, signature)
    for request in description.requests.values():
        if request.call is None and not any(request.name in c.sends for c in description.calls.values()):
            if request.name not in NO_CALLS_REQUESTS:
                raise DescriptionError(f"request {request.name}: no call sends it")
    for request in description.requests.values():
        check_cost(request)
        if request.redo not in REDOS:
            raise DescriptionError(f"request {request.name}: redo must be one of {', '.join(REDOS)}")
    for name in [*description.device_required, *description.device_optional]:
        if name not in symbols:
            raise DescriptionError(f"device.toml: {name}: the toolkit's headers do not have it")


def check_cost(request):
    """Who puts work on a stream says what it costs; the others may leave it out."""
    if not request.cost:
        if "stream" in request.fields.values() and not (request.call and request.call.observes):
            raise DescriptionError(f"request {request.name}: works on a stream: cost must be one of {', '.join(COSTS)}")
        request.cost = "none"
    if request.cost not in COSTS:
        raise DescriptionError(f"request {request.name}: cost must be one of {', '.join(COSTS)}")


def normal(ctype):
    return {"CUdevice_v1": "CUdevice", "CUdeviceptr_v2": "CUdeviceptr"}.get(ctype, ctype)


def check_params(call, signature):
    names = [p.name for p in signature]
    if [p.name for p in call.params] != names:
        raise DescriptionError(f"call {call.name}: parameters {[p.name for p in call.params]} differ from "
                               f"the header's {names}")
    streams = [p.name for p in call.params if p.kind == "stream"]
    if len(streams) > 1:
        raise DescriptionError(f"call {call.name}: streams {' and '.join(streams)}: a generated call has one at "
                               "most, which its work goes to; write this one by hand (guest = \"written\")")
    for param, declared in zip(call.params, signature):
        ctype = declared.type
        if param.direction == "out":
            if not ctype.endswith("*"):
                raise DescriptionError(f"call {call.name}: {param.name} is {ctype!r}, no output")
            ctype = ctype[:-1].strip()
        if ctype not in C_TYPES[param.kind]:
            raise DescriptionError(f"call {call.name}: {param.name} is {declared.type!r} in the header, "
                                   f"not {param.kind}")


def assign_opcodes(description, lock_text):
    """Numbers from the lock file. Returns the names that the lock lacks, numbered after its last."""
    locked = {}
    for line in lock_text.splitlines():
        if line and not line.startswith("#"):
            name, number = line.split()
            locked[name] = int(number)
    if len(set(locked.values())) != len(locked):
        raise DescriptionError("opcodes.lock: a number occurs twice")
    following = max(locked.values(), default=FIRST_OPCODE - 1) + 1
    missing = []
    for name, entry in [*description.requests.items(), *description.events.items()]:
        if name not in locked:
            locked[name] = following
            following += 1
            missing.append(name)
        entry.opcode = locked[name]
    return missing
