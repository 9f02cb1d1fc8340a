# SPDX-License-Identifier: Apache-2.0
"""Tests of run_fuzz.py with shell scripts in the place of fuzzers: every way to fail is reported as one."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import run_fuzz

RUNS = "echo stat::number_of_executed_units: 12"
CANARY_FOUND = 'case "$*" in *-runs=0*) exit 0;; esac; echo ERROR: AddressSanitizer: heap-buffer-overflow; exit 77'


class RunFuzzTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        (self.build / "fuzz").mkdir()
        (self.build / "fuzz_targets.txt").write_text("")
        self.seeds = self.build / "seeds"
        self.seeds.mkdir()

    def add(self, name, script, corpus=None):
        program = self.build / "fuzz" / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        with open(self.build / "fuzz_targets.txt", "a") as targets:
            targets.write(f"{name} {corpus or self.seeds}\n")

    def run_all(self, *names):
        arguments = ["run_fuzz.py", "--build", str(self.build), "--seconds", "1", *names]
        output = io.StringIO()
        with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stdout(output), \
                contextlib.redirect_stderr(output):
            status = run_fuzz.main()
        return status, output.getvalue()

    def test_passes_when_all_is_well(self):
        self.add("canary_fuzz", CANARY_FOUND)
        self.add("frame_fuzz", RUNS)
        status, output = self.run_all()
        self.assertEqual(status, 0, output)
        self.assertIn("fuzzers: 2 passed, 0 failed", output)

    def test_fails_when_the_canary_lives(self):
        self.add("canary_fuzz", RUNS)
        status, output = self.run_all()
        self.assertEqual(status, 1)
        self.assertIn("planted bug NOT found", output)

    def test_fails_when_the_canary_ends_for_another_reason(self):
        self.add("canary_fuzz", 'case "$*" in *-runs=0*) exit 0;; esac; echo out of memory; exit 71')
        self.assertEqual(self.run_all()[0], 1)

    def test_refuses_to_run_without_a_canary(self):
        self.add("frame_fuzz", RUNS)
        self.assertEqual(self.run_all()[0], 2)

    def test_fails_on_a_crash_in_the_corpus(self):
        self.add("canary_fuzz", CANARY_FOUND)
        self.add("frame_fuzz", "exit 77")
        status, output = self.run_all()
        self.assertEqual(status, 1)
        self.assertIn("frame_fuzz: FAILED on an input of its corpus", output)

    def test_fails_on_a_crash_while_fuzzing(self):
        self.add("canary_fuzz", CANARY_FOUND)
        self.add("frame_fuzz", f'{RUNS}; case "$*" in *-runs=0*) exit 0;; esac; exit 77')
        status, output = self.run_all()
        self.assertEqual(status, 1)
        self.assertIn("fuzzers: 1 passed, 1 failed", output)

    def test_fails_when_a_fuzzer_runs_nothing(self):
        self.add("canary_fuzz", CANARY_FOUND)
        self.add("frame_fuzz", "exit 0")
        status, output = self.run_all()
        self.assertEqual(status, 1)
        self.assertIn("ran no input", output)

    def test_fails_when_the_corpus_is_missing(self):
        self.add("canary_fuzz", CANARY_FOUND)
        self.add("frame_fuzz", RUNS, corpus=self.build / "nowhere")
        self.assertEqual(self.run_all()[0], 1)

    def test_runs_inputs_that_the_build_made(self):
        made = self.build / "made"
        made.mkdir()
        (made / "one").write_text("1")
        self.add("canary_fuzz", CANARY_FOUND)
        self.add("frame_fuzz", f'case "$*" in *{made}*) {RUNS};; *) exit 77;; esac', corpus=f"{self.seeds}\nframe_fuzz {made}")
        status, output = self.run_all()
        self.assertEqual(status, 0, output)
        self.assertIn("1 seeds", output)

    def test_fails_when_made_inputs_are_missing(self):
        self.add("canary_fuzz", CANARY_FOUND)
        self.add("frame_fuzz", RUNS, corpus=f"{self.seeds}\nframe_fuzz {self.build / 'nowhere'}")
        self.assertEqual(self.run_all()[0], 1)

    def test_unknown_name_is_an_error(self):
        self.add("canary_fuzz", CANARY_FOUND)
        status, output = self.run_all("nothing_fuzz")
        self.assertEqual(status, 2)
        self.assertIn("no fuzzer 'nothing_fuzz'", output)


if __name__ == "__main__":
    unittest.main()
