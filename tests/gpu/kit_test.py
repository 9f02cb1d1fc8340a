#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/kit_test.py: kit.py and hold_real.py, which are for machines with GPUs, on the CPU device."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("CONSORT_BUILD") or HERE.parent.parent / "build" / "dev").resolve()
SECONDS_MAX = 300


def python(script, *words, **options):
    return subprocess.run([sys.executable, script, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=SECONDS_MAX, check=False, **options)


class Kit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="kit-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        done = python(HERE / "kit.py", "pack", cls.folder / "kit", "--build", BUILD, "--cpu")
        assert done.returncode == 0, done.stderr

    def run_steps(self, *words):
        """Without the build: what is not in the kit is missed."""
        environment = {name: value for name, value in os.environ.items() if name != "CONSORT_BUILD"}
        return python(self.folder / "kit/tests/gpu/kit.py", "run", "--device", "cpu", "--out", self.folder / "out", *words,
                      cwd=self.folder, env=environment)

    def test_steps_run_from_it_alone_and_are_told(self):
        done = self.run_steps("programs+moving", "swapping", "vmfront")
        report = (self.folder / "out/report.txt").read_text("utf-8")
        self.assertEqual(done.returncode, 0, f"{done.stdout}{done.stderr}{report}")
        for step in ("programs", "moving", "swapping", "vmfront"):
            self.assertRegex(done.stdout, rf"(?m)^\| {step} +\| ok +\| +[\d.]+ \| \S")
            self.assertIn(f"=== {step}: 0, ", report)
        self.assertRegex(report, r"(?m)^\| 6\.12 MSG_ZEROCOPY, pieces of 4 KiB \| 0 \| [\d.]+ \| [\d.]+ \|$")
        self.assertNotIn(str(BUILD), report)

    def test_a_step_that_fails_or_has_no_time_is_told(self):
        done = self.run_steps("crowd", "--limit", "0")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^\| crowd +\| no time ")
        done = self.run_steps("also")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^\| also +\| status \d")

    def test_what_makes_no_sense_is_refused(self):
        done = self.run_steps("crowd+nonsense")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no step nonsense; there are: programs ", done.stderr)
        done = python(HERE / "kit.py", "pack", self.folder / "kit", "--build", BUILD)
        self.assertIn("exists", done.stderr)
        done = python(HERE / "kit.py", "pack", self.folder / "other", "--build", self.folder)
        self.assertIn("build it first", done.stderr)
        done = python(HERE / "kit.py", "pack", self.folder / "other", "--only-fuzz")
        self.assertIn("needs --fuzz DIR", done.stderr)
        done = python(HERE / "kit.py", "pack", self.folder / "other", "--only-fuzz", "--fuzz", self.folder)
        self.assertIn("no fuzzer is built in", done.stderr)
        self.assertFalse((self.folder / "other").exists())


class Fuzz(unittest.TestCase):
    """With scripts in the place of fuzzers: the build under test has none."""

    def test_fuzzers_run_from_the_kit_with_their_inputs(self):
        with tempfile.TemporaryDirectory(prefix="kit-test-") as name:
            folder = pathlib.Path(name)
            build = folder / "build"
            for inputs in ("committed", "made", "seeds/image_fuzz"):
                (folder / inputs).mkdir(parents=True)
                (folder / inputs / "input").write_text(inputs)
            (build / "fuzz").mkdir(parents=True)
            scripts = {"canary_fuzz": 'case "$*" in *-runs=0*) exit 0;; esac; echo AddressSanitizer: heap-buffer-overflow; exit 77',
                       "image_fuzz": 'for last; do test -d "$last" && cat "$last"/*; done; sleep 1.2; '
                                     "echo stat::number_of_executed_units: 3"}
            for each, script in scripts.items():
                (build / "fuzz" / each).write_text(f"#!/bin/sh\n{script}\n")
                (build / "fuzz" / each).chmod(0o755)
            # The last is not built.
            (build / "fuzz_targets.txt").write_text("".join(f"{line}\n" for line in (
                f"image_fuzz {folder}/committed", f"image_fuzz {folder}/made", f"canary_fuzz {folder}/committed",
                f"ptx_fuzz {folder}/committed")))
            done = python(HERE / "kit.py", "pack", folder / "kit", "--fuzz", build, "--seeds", folder / "seeds",
                          "--only-fuzz")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertFalse((folder / "kit/programs").exists())
            for inputs in ("build", "committed", "made", "seeds"):
                shutil.rmtree(folder / inputs)
            done = python(folder / "kit/tests/gpu/kit.py", "run", "fuzz", "--fuzz-seconds", "2", "--fuzz-jobs", "1",
                          "--fuzz-what", "image_fuzz", "--out", folder / "out", cwd=folder)
            report = (folder / "out/report.txt").read_text("utf-8")
            self.assertEqual(done.returncode, 0, f"{done.stdout}{done.stderr}{report}")
            self.assertRegex(done.stdout, r"(?m)^\| fuzz +\| ok +\| .* 3 executions, 0 places that crash \|$")
            log = (folder / "out/fuzz/logs/image_fuzz-0.log").read_text("utf-8")
            self.assertIn("committedmadeseeds/image_fuzz", log)


class HoldReal(unittest.TestCase):
    def hold(self, *words):
        return python(HERE / "hold_real.py", "--build", BUILD, "--device", "cpu", "--devices", "2", *words)

    def test_a_program_that_is_held_and_moved_says_the_same(self):
        done = self.hold("--ignore", "for the device", BUILD / "programs" / "working_set", "4", "150", "20", "10")
        self.assertEqual(done.returncode, 0, f"{done.stdout}{done.stderr}")
        for what in ("checkpoint", "restore", "migrate"):
            self.assertEqual(len([line for line in done.stdout.splitlines() if line.startswith(f"{what}: ")]), 2, done.stdout)
        self.assertEqual(done.stdout.splitlines()[-1], "the same")

    def test_one_that_says_other_things_or_ends_early_is_told(self):
        done = self.hold("--ignore", "^nothing$", BUILD / "programs" / "working_set", "4", "150", "20", "10")
        self.assertEqual(done.returncode, 1, f"{done.stdout}{done.stderr}")
        self.assertIn("it says other things:\n--- undisturbed\n", done.stdout)
        done = self.hold(BUILD / "programs" / "device_query")
        self.assertEqual(done.returncode, 1, f"{done.stdout}{done.stderr}")
        self.assertIn("it ended before it was held", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
