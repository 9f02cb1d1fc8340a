#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clang's thread-safety analysis of every source that sees a lock annotation (ABSL_GUARDED_BY and its kin).

g++ ignores those annotations; without this they would be comments. Reads compile_commands.json of a build whose generated
headers exist, parses the sources with clang (nothing is compiled to code), and exits 1 if one has a finding.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

CLANG = "clang++-14"
ANNOTATION = re.compile(r"\bABSL_(?:PT_)?(?:GUARDED_BY|EXCLUSIVE_LOCKS_REQUIRED|SHARED_LOCKS_REQUIRED|LOCKS_EXCLUDED|"
                        r"ACQUIRED_BEFORE|ACQUIRED_AFTER|EXCLUSIVE_LOCK_FUNCTION|UNLOCK_FUNCTION)\b")
GROUP = 8  # sources parsed as one
UNITY = ".cxx"  # CMake's sources that include others; ours are .cc
INCLUDE = re.compile(r'(?m)^\s*#\s*include\s*"([^"]+)"')


def sees_annotation(root, file, known):
    """True if `file`, or a header of ours that it includes, has an annotation. `known` remembers answers."""
    if file in known:
        return known[file]
    known[file] = False  # ends cycles
    text = file.read_text(errors="replace")
    known[file] = bool(ANNOTATION.search(text)) or any(
        sees_annotation(root, root / header, known)
        for header in INCLUDE.findall(text) if (root / header).is_file())
    return known[file]


def analysis_flags(entry):
    """What of a compile command decides how clang parses its file: the language, macros and include paths."""
    words = shlex.split(entry["command"])
    kept = []
    for index, word in enumerate(words):
        if word.startswith(("-I", "-D", "-std=")):
            kept.append(word)
        elif word == "-isystem":
            kept += words[index:index + 2]
    return tuple(kept)


def groups_of(entries):
    """(flags, files) of at most GROUP files that are parsed alike and lie in one folder, in the order of `entries`. A
    source of CMake's unity build is a group already."""
    alike = {}
    for entry in entries:
        file = pathlib.Path(entry["file"])
        alike.setdefault((analysis_flags(entry), file if file.suffix == UNITY else file.parent), []).append(file)
    return [(flags, files[first:first + GROUP])
            for (flags, _), files in alike.items() for first in range(0, len(files), GROUP)]


def findings_of(flags, files):
    """What clang says of each file that has a finding. Headers take nearly all of the time, so the files are first parsed
    as one source; each alone only where that source is not clean, as where two files use one name."""
    command = [CLANG, *flags, "-fsyntax-only", "-Wthread-safety", "-Werror=thread-safety"]

    def parse(text):
        return subprocess.run([*command, "-x", "c++", "-"], input=text, capture_output=True, text=True)

    sources = [f'#include "{file}"\n' for file in files]
    if len(files) > 1 and parse("".join(sources)).returncode == 0:
        return []
    alone = [parse(source) for source in sources]
    return [done.stderr for done in alone if done.returncode != 0]


def check(root, entries, jobs):
    """Returns (sources parsed, outputs of those with findings). Sources outside `root` are not ours."""
    known = {}
    wanted = [entry for entry in entries
              if pathlib.Path(entry["file"]).is_relative_to(root) and entry["file"].endswith((".cc", UNITY))
              and sees_annotation(root, pathlib.Path(entry["file"]), known)]
    with concurrent.futures.ThreadPoolExecutor(max_workers=jobs) as pool:
        findings = pool.map(lambda group: findings_of(*group), groups_of(wanted))
        return len(wanted), [finding for of_group in findings for finding in of_group]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parent.parent
    entries = json.loads((args.build / "compile_commands.json").read_text())
    count, findings = check(root, entries, args.jobs)
    for output in findings:
        print(output, file=sys.stderr)
    print(f"check_locks: {count} sources, {len(findings)} with findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
