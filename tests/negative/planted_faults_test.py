# SPDX-License-Identifier: Apache-2.0
"""Plants one fault at a time in a copy of this repository; the check that ./dev check and ctest run must find it.

tools/*_test.py test the rules on made-up trees. This tests that the rules, as configured, guard this tree.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from source_files import list_files  # noqa: E402  (needs the path above)

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


class PlantedFaultsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.copy = pathlib.Path(folder.name) / "copy"
        for path in list_files(ROOT):
            target = self.copy / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, target)
        subprocess.run(["git", "init", "-q", str(self.copy)], check=True)

    def plant(self, path, text):
        file = self.copy / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a") as out:
            out.write(text)

    def run_check(self, script):
        """Runs the copy's own check. Returns (exit status, lines)."""
        done = subprocess.run([sys.executable, str(self.copy / "tools" / script)], capture_output=True, text=True)
        return done.returncode, done.stdout.split("\n")

    def assert_found(self, script, start):
        """The check must fail now, with a line about the fault that it did not print before."""
        status, lines = self.run_check(script)
        self.assertEqual(status, 1, lines)
        self.assertTrue(any(line.startswith(start) for line in lines), f"no line '{start}...' in {lines}")

    def assert_not_found(self, script, start):
        self.assertFalse(any(line.startswith(start) for line in self.run_check(script)[1]))

    def test_base_includes_the_host(self):
        self.assert_not_found("check_layering.py", "base/units.h")
        self.plant("base/units.h", '#include "host/session/session.h"\n')
        line = (self.copy / "base/units.h").read_text().count("\n")
        self.assert_found("check_layering.py", f"base/units.h:{line}: base may not include host")

    def test_guest_logs(self):
        self.plant("guest/planted.cc", f'{SPDX}#include "base/log.h"\n')
        self.assert_found("check_layering.py", "guest/planted.cc:2: guest may include only")

    def test_guest_reaches_logging_through_a_transport(self):
        self.plant("vmsock/planted.h", f'{SPDX}#include "base/log.h"\n')
        self.plant("guest/planted.cc", f'{SPDX}#include "vmsock/planted.h"\n')
        self.assert_found("check_layering.py", "guest/planted.cc:2: guest reaches base/log.h")

    def test_daemon_opens_the_vendor_library(self):
        self.plant("host/planted.cc", f'{SPDX}void* Open() {{ return dlopen("libcuda.so.1", 2); }}\n')
        self.assert_found("check_layering.py", "host/planted.cc:2: dlopen(")

    def test_policy_reads_a_clock(self):
        self.plant("policies/planted.cc", f"{SPDX}#include <chrono>\n")
        self.assert_found("check_layering.py", "policies/planted.cc:2: policies may not include <chrono>")

    def test_source_in_no_target(self):
        self.assert_not_found("tidy.py", "base/planted.cc")
        self.plant("base/planted.cc", SPDX)
        self.assert_found("tidy.py", "base/planted.cc:1: in no target")

    def test_missing_licence(self):
        self.plant("base/planted.cc", "int x;\n")
        self.assert_found("tidy.py", "base/planted.cc:1: line 1 must be")

    def test_work_left_for_now(self):
        line = (ROOT / "base/log.cc").read_text().count("\n") + 1
        self.plant("base/log.cc", "// TO" "DO(now): finish\n")
        self.assert_found("tidy.py", f"base/log.cc:{line}: a TO" "DO needs a kind")

    def test_readme_links_to_nothing(self):
        self.plant("README.md", "[gone](docs/GONE.md)\n")
        line = (self.copy / "README.md").read_text().count("\n")
        self.assert_found("tidy.py", f"README.md:{line}: the link to docs/GONE.md leads nowhere")


if __name__ == "__main__":
    unittest.main()
