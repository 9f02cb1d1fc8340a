#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/chains_test.py: programs whose launches go to the driver as graphs, many at once or again and again
(--launch-chains on): as right as one by one.
CONSORT_TEST_DEVICE=nvidia: on GPUs."""

import os
import re
import subprocess
import tempfile
import unittest

import stack

DEVICE = os.environ.get("CONSORT_TEST_DEVICE") or "cpu"


class Chains(unittest.TestCase):
    def run_through(self, chains, name, *words):
        """What consortd told of the program."""
        with tempfile.TemporaryDirectory(prefix="chains-") as folder, stack.Daemon(
                folder, device=DEVICE, verbose=1, arguments=("--launch-chains", chains)) as daemon:
            done = subprocess.run([stack.PROGRAMS / name, *words], env=daemon.local_environment(), stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=240, check=False)
            self.assertEqual(done.returncode, 0, f"{done.stdout}{done.stderr}\n{daemon.log_tail()}")
            self.assertEqual(done.stdout.splitlines()[-1:], ["PASS"])
            daemon.wait_for_account(lambda lines: name in [line["application"] for line in lines])
            self.assertEqual(daemon.stop(), 0, daemon.log_tail())
            return daemon.log()

    def chained(self, log):
        """How many launches went in chains, and of how many."""
        said = re.findall(r"(\d+) of (\d+) launches went in chains", log)
        return tuple(sum(map(int, numbers)) for numbers in zip(*said))

    def test_many_launches_go_in_chains_where_that_is_asked_for(self):
        chained, launches = self.chained(self.run_through("on", "many_launches", "2000", "3"))
        self.assertEqual(launches, 6000)
        # How many wait at a time is a matter of luck; of so many, some do.
        self.assertGreater(chained, 500)
        self.assertEqual(self.chained(self.run_through("off", "many_launches", "2000", "3")), (0, 6000))

    def test_what_is_launched_again_and_again_has_a_graph(self):
        repeated = r"launched (\d+) kernels by (\d+) graphs of their own"
        # A kernel and a wait each time: no two wait.
        said = re.findall(repeated, self.run_through("on", "many_launches", "1", "2000"))
        self.assertEqual(len(said), 1)
        launches, graphs = map(int, said[0])
        self.assertGreater(launches, 1500)
        # Its stream may come to be one of another priority, because its kernel is short.
        self.assertLessEqual(graphs, 2)
        self.assertNotRegex(self.run_through("off", "many_launches", "1", "2000"), repeated)

    def test_many_launches_go_in_chains_beside_others_too(self):
        """Whose launches, one by one, are in none."""
        with tempfile.TemporaryDirectory(prefix="chains-") as folder, stack.Daemon(
                folder, device=DEVICE, verbose=1, arguments=("--launch-chains", "on", "--scheduler", "tfs")) as daemon:
            with subprocess.Popen([stack.PROGRAMS / "strider", "2000"], env=daemon.local_environment(), stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as other:
                self.addCleanup(other.kill)
                self.assertRegex(other.stdout.readline(), "^round ")
                many = subprocess.Popen([stack.PROGRAMS / "many_launches", "2000", "3"], env=daemon.local_environment(),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                for program in (many, other):
                    output, _ = program.communicate(timeout=240)
                    self.assertEqual(program.returncode, 0, f"{output[-2000:]}\n{daemon.log_tail()}")
                    self.assertEqual(output.splitlines()[-1:], ["PASS"])
            daemon.wait_for_account(lambda lines: len(lines) == 2)
            self.assertEqual(daemon.stop(), 0, daemon.log_tail())
            said = re.findall(r"(\d+) of 6000 launches went in chains", daemon.log())
            self.assertEqual(len(said), 1, daemon.log_tail())
            self.assertGreater(int(said[0]), 500)

    def test_programs_are_right(self):
        for name in ("random_order", "streams", "graphs", "async_events", "threads_default_stream", "reduction", "error_handling"):
            with self.subTest(name):
                self.run_through("on", name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
