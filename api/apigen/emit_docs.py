# SPDX-License-Identifier: Apache-2.0
"""docs/api_coverage.md: what is supported, where it is answered, and what is not."""

from emit_guest import is_data, per_thread_symbols, supported_symbols


def cost(call, description):
    if call.as_call:
        call = description.calls[call.as_call]
    requests = [call.name] if call.guest == "generated" else call.sends
    replies = {description.requests[r].reply for r in requests}
    if not replies:
        return "answered in the guest"
    if replies == {"none"}:
        return "sent, no round trip"
    if "none" in replies:
        return "sent; a round trip where CUDA synchronises"
    return "a round trip"


def coverage(description, symbols):
    supported = supported_symbols(description, symbols)
    missing = [n for n in description.exports if n not in supported and not is_data(n)]
    lines = ["<!-- Generated from api/cuda/*.toml by api/apigen; do not edit (./dev gen). -->",
             "# Coverage of the CUDA driver API", "",
             f"The driver (580, CUDA 13.0) exports {len(description.exports)} names; all are exported. "
             f"{len(supported)} are supported, per-thread variants included. The others say so once by name, "
             "are counted, and return `CUDA_ERROR_NOT_SUPPORTED`.", ""]
    for section in description.sections:
        calls = [c for c in description.calls.values() if c.section == section]
        lines += [f"## {section}", "", "| call | also as | cost | note |", "|---|---|---|---|"]
        for call in calls:
            also = ", ".join(f"`{n}`" for n in [*call.aliases, *per_thread_symbols(call, symbols)])
            lines.append(f"| `{call.name}` | {also} | {cost(call, description)} | {call.note} |")
        lines.append("")
    lines += ["## Not supported", "", ", ".join(f"`{n}`" for n in missing) + "."]
    return "\n".join(lines) + "\n"
