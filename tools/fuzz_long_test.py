# SPDX-License-Identifier: Apache-2.0
"""Tests of fuzz_long.py with shell scripts in the place of fuzzers."""

import contextlib
import io
import pathlib
import signal
import sys
import tempfile
import unittest
from unittest import mock

import fuzz_long

CANARY_FOUND = 'case "$*" in *-runs=0*) exit 0;; esac; echo ERROR: AddressSanitizer: heap-buffer-overflow; exit 77'
RUNS = "sleep 1.2; echo '#12\tNEW    cov: 34 ft: 5'; echo stat::number_of_executed_units: 12"
CRASH = """
printf '    #0 0x1f in Decode /a.cc:%s\\n' "$line"
echo SUMMARY: AddressSanitizer: heap-use-after-free
sleep 0.2
exit 77"""


class FuzzLongTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        (self.build / "fuzz").mkdir()
        (self.build / "inputs").mkdir()
        (self.build / "fuzz_targets.txt").write_text("")
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.addCleanup(lambda: [signal.signal(*each) for each in handlers.items()])
        self.enterContext(mock.patch("os.nice"))

    def add(self, name, script):
        program = self.build / "fuzz" / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        with open(self.build / "fuzz_targets.txt", "a") as targets:
            targets.write(f"{name} inputs\n")

    def run_all(self, *words, seconds=2, canary=CANARY_FOUND):
        self.add("canary_fuzz", canary)
        arguments = ["fuzz_long.py", "--build", str(self.build), "--seconds", str(seconds), *words]
        output = io.StringIO()
        with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stdout(output), \
                contextlib.redirect_stderr(output):
            status = fuzz_long.main()
        return status, output.getvalue()

    def test_shares_processes_out_and_adds_what_they_did(self):
        self.add("one_fuzz", f"touch $(mktemp -p {self.build}/long/corpus/one_fuzz); {RUNS}")
        self.add("two_fuzz", RUNS)
        status, output = self.run_all("one_fuzz=3", "two_fuzz", "--jobs", "4")
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"(?m)^one_fuzz +3 +0.00 +36 +34 +3  0 \(0\)$")
        self.assertRegex(output, r"(?m)^two_fuzz +1 +0.00 +12 +34 +0  0 \(0\)$")
        self.assertRegex(output, r"0.00 core-hours, 48 executions, 0 places that crash\n$")

    def test_goes_on_after_crashes_and_tells_their_places_apart(self):
        self.add("one_fuzz", f"line=7{CRASH}")
        self.add("two_fuzz", f"line=$(date +%N){CRASH}")
        status, output = self.run_all("one_fuzz", "two_fuzz", "--jobs", "2")
        self.assertEqual(status, 1)
        one, two = (next(line.split() for line in output.splitlines() if line.startswith(f"{name} ")) for name in ("one_fuzz", "two_fuzz"))
        self.assertGreater(int(one[-2]), 1)
        self.assertEqual(one[-1], "(1)", output)
        self.assertEqual(two[-1], f"({two[-2]})")
        self.assertIn("heap-use-after-free | Decode /a.cc:7", output)
        self.assertIn("Decode", (self.build / "long/crashes/one_fuzz-1.report").read_text())

    def test_an_input_that_had_no_processor_is_no_crash(self):
        script = """
case "$*" in *-timeout-one) %s;; esac
printf 'Test unit written to %s/long/crashes/%s-timeout-one\\n==1== ERROR: libFuzzer: timeout after 9 seconds\\n'
touch %s/long/crashes/%s-timeout-one
echo stat::number_of_executed_units: 1
exit 70"""
        for name, again in (("quick_fuzz", "exit 0"), ("endless_fuzz", "while :; do :; done")):
            self.add(name, script % (again, self.build, name, self.build, name))
        with mock.patch.object(fuzz_long.run_fuzz, "INPUT_SECONDS_MAX", 1):
            status, output = self.run_all("quick_fuzz", "endless_fuzz", "--jobs", "2")
        self.assertEqual(status, 1, output)
        self.assertRegex(output, r"(?m)^quick_fuzz .* 0 \(0\)$")
        self.assertRegex(output, r"(?m)^endless_fuzz .* [1-9]\d* \(1\)$")
        self.assertFalse((self.build / "long/crashes/quick_fuzz-timeout-one").exists())
        self.assertTrue((self.build / "long/crashes/endless_fuzz-timeout-one").exists())

    def test_gives_seeds_to_the_fuzzers_that_they_are_for(self):
        seeds = self.build / "seeds"
        (seeds / "one_fuzz").mkdir(parents=True)
        self.add("one_fuzz", f'case "$*" in *{self.build}/inputs*{seeds}/one_fuzz) {RUNS};; *) exit 77;; esac')
        self.add("two_fuzz", f'case "$*" in *{seeds}*) exit 77;; *) {RUNS};; esac')
        status, output = self.run_all("one_fuzz", "two_fuzz", "--seeds", str(seeds))
        self.assertEqual(status, 0, output)

    def test_fails_when_a_fuzzer_runs_nothing(self):
        self.add("one_fuzz", "sleep 1")
        status, output = self.run_all("one_fuzz")
        self.assertEqual(status, 1, output)

    def test_runs_nothing_without_the_canary(self):
        self.add("one_fuzz", RUNS)
        status, output = self.run_all("one_fuzz", canary=RUNS)
        self.assertEqual(status, 2)
        self.assertIn("planted bug NOT found", output)
        self.assertFalse((self.build / "long/logs").exists())

    def test_what_makes_no_sense_is_refused(self):
        self.add("one_fuzz", RUNS)
        for words, message in ((("nothing_fuzz",), "no fuzzer 'nothing_fuzz'; there are: canary_fuzz one_fuzz"),
                               (("one_fuzz=0",), "one_fuzz=0: a share is a whole number above 0"),
                               (("one_fuzz", "--seeds", str(self.build)), "has no folder called as one of one_fuzz")):
            status, output = self.run_all(*words)
            self.assertEqual(status, 2)
            self.assertIn(message, output)

    def test_ends_early_when_asked_and_says_so_far(self):
        self.add("one_fuzz", f"trap 'echo stat::number_of_executed_units: 5; exit 0' INT; kill -TERM $PPID; while :; do sleep 0.1; done")
        status, output = self.run_all("one_fuzz", "--jobs", "1", seconds=600)
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"(?m)^one_fuzz +1 +0.00 +5 ")


if __name__ == "__main__":
    unittest.main()
