# SPDX-License-Identifier: Apache-2.0
"""Tests of tidy.py: each rule refuses what it is for and passes what is like it but right."""

import pathlib
import subprocess
import tempfile
import unittest

import tidy

LICENCE = f"// {tidy.SPDX}\n"


class TreeTest(unittest.TestCase):
    """Each test writes a small git work tree and checks it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        subprocess.run(["git", "init", "-q", str(self.root)], check=True)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def check(self):
        return [f"{path}:{line}: {message}" for path, line, message in tidy.check_repository(self.root)[0]]

    def assert_clean(self):
        self.assertEqual(self.check(), [])

    def assert_refused(self, *fragments):
        found = self.check()
        self.assertEqual(len(found), len(fragments), found)
        for message, fragment in zip(found, fragments):
            self.assertIn(fragment, message)

    def test_licence_is_line_1(self):
        self.write("tools/a.py", f"# {tidy.SPDX}\n")
        self.write("tools/run", f"#!/bin/sh\n# {tidy.SPDX}\n")
        self.assert_clean()
        self.write("tools/a.py", f"\n# {tidy.SPDX}\n")
        self.write("tools/run", f"#!/bin/sh\n\n# {tidy.SPDX}\n")
        self.assert_refused("tools/a.py:1: line 1 must be", "tools/run:2: line 2 must be")

    def write_header(self, guard, end):
        self.write("base/a-b.h", f"{LICENCE}#ifndef {guard}\n#define {guard}\n#endif  // {end}\n")
        self.write("base/a.cc", f'{LICENCE}#include "base/a-b.h"\n')
        self.write("base/CMakeLists.txt", f"# {tidy.SPDX}\nconsort_library(base SRCS a.cc)\n")

    def test_header_guard_is_the_path(self):
        self.write_header("CONSORT_BASE_A_B_H_", "CONSORT_BASE_A_B_H_")
        self.assert_clean()
        self.write_header("CONSORT_A_B_H_", "CONSORT_A_B_H_")
        self.assert_refused("base/a-b.h:1: the header guard must be CONSORT_BASE_A_B_H_")
        self.write_header("CONSORT_BASE_A_B_H_", "BASE_A_B_H_")
        self.assert_refused("base/a-b.h:4: the last line must be")

    def test_columns_tabs_and_line_ends(self):
        lead = "# "
        self.write("tools/a.py", f"# {tidy.SPDX}\n{lead}{'x' * (tidy.OTHER_COLUMNS_MAX - 2)}\n")
        self.assert_clean()
        self.write("tools/a.py", f"# {tidy.SPDX}\n{lead}{'x' * (tidy.OTHER_COLUMNS_MAX - 1)}\n")
        self.assert_refused("tools/a.py:2: 151 columns")
        self.write("tools/a.py", f"# {tidy.SPDX}\nx = 1 \ny =\t2\n")
        self.assert_refused("tools/a.py:2: blanks", "tools/a.py:3: a tab")
        self.write("tools/a.py", f"# {tidy.SPDX}\nx = 1")
        self.assert_refused("must end in one newline")
        self.write("tools/a.py", f"# {tidy.SPDX}\nx = 1\n\n")
        self.assert_refused("must end in one newline")

    def test_columns_of_a_table_laid_out_by_hand(self):
        self.write("tests/CMakeLists.txt", f"# {tidy.SPDX}\nadd_executable(a a.cc)\n")
        long = "// " + "x" * tidy.CPP_COLUMNS_MAX + "\n"
        self.write("tests/a.cc", f"{LICENCE}// clang-format off\n{long}// clang-format on\n")
        self.assert_clean()
        self.write("tests/a.cc", f"{LICENCE}// clang-format off\n{long}// clang-format on\n{long}")
        self.assert_refused("tests/a.cc:5: 103 columns")

    def test_leftover_markers(self):
        self.write("tools/a.py", f"# {tidy.SPDX}\n# TO" "DO(perf): batch the look-ups.\n# mktemp XXXXXX\n")
        self.assert_clean()
        self.write("tools/a.py", f"# {tidy.SPDX}\n# TO" "DO(now): x\n# FIX" "ME\n<<<<<<< HEAD\n")
        self.assert_refused("a.py:2: a TO" "DO needs a kind", "a.py:3: leftover", "a.py:4: leftover")

    def test_paths_of_one_machine(self):
        self.write("tools/a.py", f"# {tidy.SPDX}\n# homework/done and $x/home/y and docs/wo" + "rk/a\n")
        self.assert_clean()
        self.write("tools/a.py", f"# {tidy.SPDX}\n# see /ho" "me/me/notes\n")
        self.assert_refused("tools/a.py:2: a path of one machine")

    def test_only_base_sleeps(self):
        self.write("base/CMakeLists.txt", f"# {tidy.SPDX}\nconsort_library(base SRCS a.cc)\n")
        self.write("base/a.cc", f"{LICENCE}void F() {{ usleep(1); }}\n")
        self.assert_clean()
        self.write("host/CMakeLists.txt", f"# {tidy.SPDX}\nconsort_library(host SRCS a.cc)\n")
        self.write("host/a.cc", f"{LICENCE}// usleep(1) would be wrong\nvoid F() {{ usleep(1); }}\n")
        self.assert_refused("host/a.cc:3: sleeps")
        self.write("host/CMakeLists.txt", f"# {tidy.SPDX}\nconsort_test(host_test SRCS a_test.cc)\n")
        (self.root / "host/a.cc").rename(self.root / "host/a_test.cc")
        self.assert_clean()

    def test_source_in_no_target(self):
        self.write("base/a.cc", LICENCE)
        self.write("base/sub/b.cc", LICENCE)
        self.write("tests/api/c.cu", LICENCE)
        self.write("base/CMakeLists.txt", f"# {tidy.SPDX}\nconsort_library(base SRCS a.cc sub/b.cc)\n")
        self.write("tests/api/CMakeLists.txt", f"# {tidy.SPDX}\nforeach(name c)\n  build(${{name}}.cu)\nendforeach()\n")
        self.assert_clean()
        self.write("base/CMakeLists.txt", f"# {tidy.SPDX}\nfile(GLOB all *.cc sub/*.cc)\n")
        self.assert_clean()
        self.write("base/CMakeLists.txt", f"# {tidy.SPDX}\nfile(GLOB all *.cc)\n")
        self.assert_refused("base/sub/b.cc:1: in no target")
        self.write("base/CMakeLists.txt", f"# {tidy.SPDX}\nconsort_library(base SRCS aa.cc)  # a.cc b.cc sub/b.cc\n")
        self.assert_refused("base/a.cc:1: in no target", "base/sub/b.cc:1: in no target")

    def test_header_that_nothing_includes(self):
        self.write("base/a.h", f"{LICENCE}#ifndef CONSORT_BASE_A_H_\n#define CONSORT_BASE_A_H_\n"
                               f"#endif  // CONSORT_BASE_A_H_\n")
        self.assert_refused('base/a.h:1: nothing includes "base/a.h"')
        self.write("base/CMakeLists.txt", f"# {tidy.SPDX}\nadd_compile_options(-include ${{HERE}}/a.h)\n")
        self.assert_clean()
        (self.root / "base/CMakeLists.txt").unlink()
        self.write("tools/b.h.py", f'# {tidy.SPDX}\nTEXT = "#include \\"base/a.h\\""\n')
        self.assert_clean()

    def test_markdown_title(self):
        self.write("docs/A.md", "# A\n\n## Part\n\n```\n# a comment in code\n```\n")
        self.assert_clean()
        self.write("docs/A.md", "<!-- generated -->\n# A\n")
        self.assert_clean()
        self.write("docs/A.md", "Text\n\n# A\n")
        self.assert_refused("docs/A.md:1: one '# ' title")
        self.write("docs/A.md", "Text\n")
        self.assert_refused("docs/A.md:1: one '# ' title")
        self.write("docs/A.md", "# A\n\n# B\n")
        self.assert_refused("docs/A.md:3: one '# ' title")

    def test_markdown_links_and_paths_lead_somewhere(self):
        self.write("docs/B.md", "# B\n")
        self.write("docs/A.md", "# A\n\n[b](B.md#b) [up](../docs/) [site](https://example.org) `docs/B.md` `docs/*.md` "
                                "`docs/<name>.md` `base/`\n")
        self.write("base/CMakeLists.txt", f"# {tidy.SPDX}\n")
        self.assert_clean()
        self.write("docs/A.md", "# A\n\n[c](C.md)\n`host/main.cc`\n")
        self.assert_refused("docs/A.md:3: the link to C.md leads nowhere", "docs/A.md:4: `host/main.cc` does not exist")

    def test_large_file(self):
        self.write("tests/a.bin", b"\0" * tidy.FILE_BYTES_MAX)
        self.assert_clean()
        self.write("tests/a.bin", b"\0" * (tidy.FILE_BYTES_MAX + 1))
        self.assert_refused("tests/a.bin:1: 524289 bytes")

    def test_text_is_utf8(self):
        self.write("tools/a.txt", b"caf\xe9\n")
        self.assert_refused("tools/a.txt:1: not UTF-8")

    def test_data_is_left_alone(self):
        self.write("vmsock/frame_fuzz_corpus/seed", "no newline")
        self.write("tests/fuzz/corpus/x/seed", "FIX" "ME\tno newline")
        self.assert_clean()

    def test_ignored_files_are_not_ours(self):
        self.write(".gitignore", "/build/\n")
        self.write("build/a.cc", "no licence")
        self.assert_clean()


if __name__ == "__main__":
    unittest.main()
