# SPDX-License-Identifier: Apache-2.0
"""tests/bench/build_kind.py: how a build was compiled, for the headings of what is measured with it."""

import re


def build_kind(build):
    """Of a build folder (pathlib.Path): "release build (-O3 -DNDEBUG)". OSError: it is none of CMake's."""
    build = build.resolve()
    values = dict(re.findall(r"^(\w+):\w+=(.*)$", (build / "CMakeCache.txt").read_text("utf-8"), re.MULTILINE))
    kind = values["CMAKE_BUILD_TYPE"]
    flags = values[f"CMAKE_CXX_FLAGS_{kind.upper()}"] if kind else values["CMAKE_CXX_FLAGS"]
    sanitizers = values.get("CONSORT_SANITIZE", "")
    return f"{build.name} build ({flags or 'not optimised'}{', sanitizers ' + sanitizers if sanitizers else ''})"
