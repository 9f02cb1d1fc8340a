#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/sanitize_test.py: an unmodified program whose kernel leaves its array, with CONSORT_CPU_SANITIZE=memory.

It gets CUDA's error, and consortd's log has the report, though the worker gives out many allocations of one mapping.
"""

import subprocess
import tempfile
import unittest

import stack


class SanitizeTest(unittest.TestCase):
    def run_program(self, where, sanitize="memory"):
        """What the program printed, and the daemon's log."""
        with tempfile.TemporaryDirectory(prefix="consort-") as folder:
            prefix = ("env", f"CONSORT_CPU_SANITIZE={sanitize}", "CONSORT_CPU_CACHE=")
            with stack.Daemon(folder, device="cpu", prefix=prefix) as daemon:
                done = subprocess.run([stack.PROGRAMS / "stray_store", where], env=daemon.local_environment(),
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                      timeout=stack.PATIENCE_SECONDS, check=False)
                log = (daemon.folder / "consortd.log").read_text(errors="replace")
                self.assertEqual(done.returncode, 0, f"{done.stdout}{done.stderr}\n{log}")
                return done.stdout.splitlines()[0], log

    def test_last_element_is_in_order(self):
        output, log = self.run_program("24")
        self.assertEqual(output, "cudaSuccess")
        self.assertNotIn("=========", log)

    def test_store_behind_the_end_is_found(self):
        output, log = self.run_program("25")
        self.assertEqual(output, "cudaErrorIllegalAddress", log)
        self.assertIn("Invalid __global__ write of size 4 bytes", log)
        self.assertRegex(log, r"is 1 bytes after the nearest allocation at 0x[0-9a-f]+ of size 100 bytes")

    def test_store_before_the_start_is_found(self):
        output, log = self.run_program("-1")
        self.assertEqual(output, "cudaErrorIllegalAddress", log)
        self.assertIn("is 4 bytes before the nearest allocation", log)

    def test_store_after_free_is_found(self):
        output, log = self.run_program("freed")
        self.assertEqual(output, "cudaErrorIllegalAddress", log)
        self.assertIn("is 0 bytes inside the freed allocation", log)

    def test_without_checks_a_small_mistake_goes_unnoticed(self):
        output, log = self.run_program("25", sanitize="")
        self.assertEqual(output, "cudaSuccess")
        self.assertNotIn("=========", log)


if __name__ == "__main__":
    unittest.main()
