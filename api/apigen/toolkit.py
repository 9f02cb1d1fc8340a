# SPDX-License-Identifier: Apache-2.0
"""What the CUDA toolkit's headers say: every driver function, its versions and its signature.

Source: cudaTypedefs.h and its GL, EGL, VDPAU and profiler siblings, whose type names carry the release
that introduced each version (PFN_cuMemcpyHtoDAsync_v3020_ptsz). The rule from name and version to the
exported symbol was checked against a table made by querying a driver (docs/ARCHITECTURE.md, symbols):
a base name's ordinary versions in ascending order are NAME, NAME_v2, NAME_v3, ...; a per-thread entry of
version V is the newest ordinary symbol introduced at or before V, plus its suffix.
"""

import collections
import dataclasses
import pathlib
import re

HEADERS = ("cudaTypedefs.h", "cudaGLTypedefs.h", "cudaEGLTypedefs.h", "cudaVDPAUTypedefs.h",
           "cudaProfilerTypedefs.h")
TYPEDEF = re.compile(
    r"typedef\s+CUresult\s*\(\s*CUDAAPI\s*\*PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\)\s*\((.*?)\);", re.S)


@dataclasses.dataclass(frozen=True)
class Parameter:
    type: str
    name: str


@dataclasses.dataclass(frozen=True)
class Symbol:
    name: str            # as exported: cuMemcpyHtoDAsync_v2_ptsz
    base: str            # as asked of cuGetProcAddress: cuMemcpyHtoDAsync
    version: int         # introduced in: 3020
    suffix: str          # "", "_ptds" or "_ptsz"
    parameters: tuple[Parameter, ...]


def parse_parameters(text):
    parameters = []
    for part in text.split(","):
        part = " ".join(part.split())
        if part in ("", "void"):
            continue
        match = re.fullmatch(r"(.*?)(\w+)(\[\d*\])?", part)
        kind = match[1].strip() + (" *" if match[3] else "")
        parameters.append(Parameter(kind, match[2]))
    return tuple(parameters)


def parse(texts):
    """Symbols by exported name, from the texts of the typedef headers."""
    ordinary = collections.defaultdict(dict)
    per_thread = collections.defaultdict(list)
    for text in texts:
        for base, version, suffix, parameters in TYPEDEF.findall(text):
            entry = (int(version), suffix, parse_parameters(parameters))
            if suffix:
                per_thread[base].append(entry)
            else:
                ordinary[base][int(version)] = entry
    symbols = {}
    for base, versions in ordinary.items():
        order = sorted(versions)
        names = {v: base if i == 0 else f"{base}_v{i + 1}" for i, v in enumerate(order)}
        for version in order:
            name = names[version]
            symbols[name] = Symbol(name, base, version, "", versions[version][2])
        for version, suffix, parameters in per_thread[base]:
            name = names[max(v for v in order if v <= version)] + suffix
            symbols[name] = Symbol(name, base, version, suffix, parameters)
    return symbols


def load(include_dir):
    include = pathlib.Path(include_dir)
    return parse((include / header).read_text() for header in HEADERS)
