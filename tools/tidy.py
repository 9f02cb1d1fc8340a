#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""House rules that a compiler does not know. One line a violation, `file:line: rule`; exits 1 if there is one.

The rules are the functions below, each with its own sentence. They read only the files that git knows or would
add, never the history, so that a check gives the same answer on every clone.
"""

import argparse
import fnmatch
import pathlib
import posixpath
import re
import sys

from source_files import list_files

CPP = (".h", ".cc", ".c", ".cu", ".cuh")
# Comment lead of the languages that can carry a licence line.
COMMENT = {**dict.fromkeys(CPP, "//"),
           **dict.fromkeys((".py", ".sh", ".toml", ".cmake", ".capnp", ".yaml", ".yml"), "#")}
TEXT = (*COMMENT, ".md", ".txt", ".json")
# Inputs and expected outputs: bytes that nobody formats.
DATA_FOLDER = re.compile(r"(?:^|/)(?:\w*corpus|crashes|testdata|golden)/")
SOURCE_FOLDERS = ("base/", "api/", "vmsock/", "device/", "memmgr/", "policies/", "guest/", "host/", "gpool/", "tests/")
TOP_FOLDERS = (*SOURCE_FOLDERS, "docs/", "tools/", "packaging/", "cmake/", ".ci/")

SPDX = "SPDX-License-Identifier: Apache-2.0"
# clang-format's limit; no formatter holds the other languages to theirs.
CPP_COLUMNS_MAX = 100
OTHER_COLUMNS_MAX = 150
# Larger things are made by a script or fetched, not committed.
FILE_BYTES_MAX = 512 * 1024

# Written in two parts, so that this file does not break its own rule.
MARKERS = re.compile(r"\b(?:FIX" r"ME|XX" r"X|HA" r"CK|DO NOT SUB" r"MIT|NOCOM" r"MIT)\b"
                     r"|^(?:<{7}|={7}|>{7})(?: |$)")
OPEN_WORK = re.compile(r"\bTO" r"DO\b")
OPEN_WORK_GOOD = re.compile(r"\bTO" r"DO\((?:perf|test|security|port)\): \S")
MACHINE_PATH = re.compile(r"(?<![\w.}])/(?:work|root|home|Users)/\w")
# Who may sleep outside base/, and why.
SLEEPERS = {
    "device/cpu/driver/stream_api.cc": "a stream waits for a word of memory, and nothing tells when it is written",
    "guest/patience.cc": "threads wait for a word of memory that the device writes, and nothing tells when it has",
    "guest/session_leaving.cc": "a thread that leaves what arrives to those who wait for it; and hosts are asked again",
    "host/ctl/move_commands.cc": "consortd answers at once, and is asked again until an application has moved",
    "host/ctl/qmp_monitor.cc": "QEMU does a job, and is asked again until it is done",
    "host/ctl/upgrade_command.cc": "likewise, until its next binary answers",
    "host/ctl/vm_commands.cc": "consortd reads its files on a signal, which has no answer",
    "memmgr/mover.cc": "copies of swapped memory are polled: the driver's own waiting may keep other callers out",
    "host/session/move_slots.cc": "copies of moved variables are polled: the driver's own waiting may keep others out",
    "host/session/session.cc": "a session that leaves polls its last fence: the driver has no wait with a limit",
    "tests/api/support.cc": "memory of programs that have ended is given back soon, and nothing tells when",
}
# Programs that stand for a user's program keep their own habits.
USER_PROGRAMS = "tests/programs/"
SLEEP = re.compile(r"\b(?:usleep|nanosleep|sleep_for|sleep_until|SleepFor)\s*\(")


def suffix_of(path):
    """The file's kind: its suffix, `.cmake` for a CMakeLists.txt."""
    return ".cmake" if posixpath.basename(path) == "CMakeLists.txt" else posixpath.splitext(path)[1]


def lines_of(text):
    return enumerate(text.split("\n"), 1)


def check_licence(path, text):
    """Line 1 of a file with logic is the SPDX line; line 2 after a #! line."""
    lead = COMMENT.get(suffix_of(path)) or ("#" if text.startswith("#!") else None)
    if lead is None or not text:
        return
    number = 2 if text.startswith("#!") else 1
    if text.split("\n")[number - 1:number] != [f"{lead} {SPDX}"]:
        yield number, f"line {number} must be '{lead} {SPDX}'"


def check_header_guard(path, text):
    """A header's guard is CONSORT_<PATH>_H_, with its name again at the #endif."""
    if not path.endswith(".h") or path.startswith(USER_PROGRAMS):
        return
    guard = "CONSORT_" + re.sub(r"[^A-Z0-9]", "_", path.upper()) + "_"
    if f"\n#ifndef {guard}\n#define {guard}\n" not in text:
        yield 1, f"the header guard must be {guard}"
    elif not text.rstrip().endswith(f"#endif  // {guard}"):
        yield text.rstrip().count("\n") + 1, f"the last line must be '#endif  // {guard}'"


def check_lines(path, text):
    """Columns, tabs, blanks at line ends, one newline at the end."""
    suffix = suffix_of(path)
    if suffix not in TEXT:
        return
    columns_max = CPP_COLUMNS_MAX if suffix in CPP else OTHER_COLUMNS_MAX
    formatted = True  # false between `// clang-format off` and on: a table that its author lays out
    for number, line in lines_of(text):
        if "// clang-format o" in line:
            formatted = line.strip() == "// clang-format on"
        # A link or an include cannot be broken; prose, tables and data have no columns.
        if (len(line) > columns_max and formatted and suffix not in (".md", ".txt", ".json", ".toml") and "://" not in line
                and not line.startswith("#include")):
            yield number, f"{len(line)} columns, more than {columns_max}"
        if "\t" in line:
            yield number, "a tab"
        if line.rstrip() != line:
            yield number, "blanks or a carriage return at the end of the line"
    if text and not text.endswith("\n") or text.endswith("\n\n"):
        yield text.count("\n") + 1, "the file must end in one newline"


def check_markers(path, text):
    """Nothing left over: open work is an issue or a TO-DO with a kind and a sentence."""
    for number, line in lines_of(text):
        if MARKERS.search(line):
            yield number, f"leftover marker '{MARKERS.search(line).group(0).strip()}'"
        if OPEN_WORK.search(line) and not OPEN_WORK_GOOD.search(line) and not path.endswith(".md"):
            yield number, "a TO" "DO needs a kind (perf, test, security or port) and a sentence"


def check_machine_paths(path, text):
    """No path of the machine that the text was written on."""
    for number, line in lines_of(text):
        match = MACHINE_PATH.search(line)
        if match:
            yield number, f"a path of one machine ('{line[match.start():match.start() + 24]}')"


def check_sleep(path, text):
    """Nothing outside base/ sleeps: wait for what you wait for, with a limit. A test may, to see that nothing happens."""
    if not path.endswith(CPP) or path.startswith("base/") or path.endswith("_test.cc") or path in SLEEPERS:
        return
    for number, line in lines_of(text):
        if SLEEP.search(line.split("//")[0]):
            yield number, "sleeps; only base/ may"


def check_markdown(path, text, files):
    """One title, first; links and paths in `code` lead somewhere."""
    if not path.endswith(".md"):
        return
    fenced = False
    titles = []
    first = 0  # line of text that is no comment (generated pages begin with one)
    for number, line in lines_of(text):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        if fenced:
            continue
        if not first and line.strip() and not line.startswith("<!--"):
            first = number
        if line.startswith("# "):
            titles.append(number)
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            yield from ((number, problem) for problem in check_link(path, target, files))
        for code in re.findall(r"`([^`]+)`", line):
            if is_repository_path(code) and not exists(code, files):
                yield number, f"`{code}` does not exist"
    if titles != [first]:
        yield (titles[1] if len(titles) > 1 else 1), "one '# ' title, before any text"
    if fenced:
        yield text.count("\n"), "a code block that is not closed"


def check_link(path, target, files):
    if re.match(r"[a-z]+:", target) or target.startswith("#"):
        return
    resolved = posixpath.normpath(posixpath.join(posixpath.dirname(path), target.split("#")[0]))
    if not exists(resolved, files):
        yield f"the link to {target} leads nowhere"


def is_repository_path(code):
    """True for what names one file or folder of ours: no pattern, placeholder, option or command."""
    return code.startswith(TOP_FOLDERS) and re.fullmatch(r"[\w./-]+", code) is not None


def exists(path, files):
    path = path.rstrip("/")
    return path in files or path == "." or any(file.startswith(path + "/") for file in files)


def check_dead_sources(files, texts):
    """Each source is in a CMakeLists.txt of its folder or one above; each header has an includer."""
    for path in files:
        if not path.startswith(SOURCE_FOLDERS) or DATA_FOLDER.search(path):
            continue
        if path.endswith((".cc", ".c", ".cu")) and not is_in_cmake(path, files, texts):
            yield path, 1, "in no target: no CMakeLists.txt of its folder or above names it"
        if path.endswith(".h"):
            folder, name = posixpath.split(path)
            # By its path from the root, perhaps in a string of the generator (then a backslash precedes the quote).
            # Programs of tests/ may use the bare name inside one folder.
            by_path = re.compile(rf'include \\?"{re.escape(path)}')
            # CMake may force it in: `-include ${CMAKE_CURRENT_SOURCE_DIR}/name.h`.
            by_name = re.compile(rf'include (?:"|\S*/){re.escape(name)}')
            if not any(by_path.search(text) or posixpath.dirname(other) == folder and by_name.search(text)
                       for other, text in texts.items() if other != path):
                yield path, 1, f'nothing includes "{path}"'


def is_in_cmake(path, files, texts):
    stem, suffix = posixpath.splitext(posixpath.basename(path))
    folder = posixpath.dirname(path)
    while True:
        lists = posixpath.join(folder, "CMakeLists.txt") if folder else "CMakeLists.txt"
        if lists in files:
            text = re.sub(r"(?m)#.*$", "", texts[lists])
            words = set(re.split(r"[\s()\"]+", text))
            relative = posixpath.relpath(path, folder or ".")
            spellings = (relative, f"${{CMAKE_CURRENT_SOURCE_DIR}}/{relative}", f"${{CMAKE_SOURCE_DIR}}/{path}")
            # A word may be a pattern of file(GLOB). `foreach(name A b) ... ${name}.cu`: the stem is a word, perhaps
            # in another case, and the suffix follows a variable.
            if any(word.count("/") == spelling.count("/") and fnmatch.fnmatchcase(spelling, word)
                   for spelling in spellings for word in words):
                return True
            if "}" + suffix in text and stem.lower() in {word.lower() for word in words}:
                return True
        if not folder:
            return False
        folder = posixpath.dirname(folder)


def check_repository(root):
    """All violations in the git work tree `root`, a pathlib.Path: sorted (path, line, message)."""
    files = list_files(root)
    known = set(files)
    texts = {}
    violations = []
    for path in files:
        data = (root / path).read_bytes()
        if len(data) > FILE_BYTES_MAX:
            violations.append((path, 1, f"{len(data)} bytes, more than {FILE_BYTES_MAX}"))
        if b"\0" in data or DATA_FOLDER.search(path):
            continue
        try:
            texts[path] = data.decode()
        except UnicodeDecodeError:
            violations.append((path, 1, "not UTF-8"))
    for path, text in texts.items():
        for check in (check_licence, check_header_guard, check_lines, check_markers, check_machine_paths, check_sleep):
            violations.extend((path, line, message) for line, message in check(path, text))
        violations.extend((path, line, message) for line, message in check_markdown(path, text, known))
    violations.extend(check_dead_sources(files, texts))
    return sorted(violations), len(files)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent,
                        help="repository to check")
    violations, count = check_repository(parser.parse_args().root)
    for path, line, message in violations:
        print(f"{path}:{line}: {message}")
    print(f"tidy: {count} files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
