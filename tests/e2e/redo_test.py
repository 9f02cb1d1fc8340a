#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/redo_test.py: programs of long kernels, which check each word that they get, get checkpoints by themselves;
workers are killed under them, with all device memory, at any moment, and they go on as if nothing had been.

CONSORT_TEST_KILLS: how often; CONSORT_TEST_SEED sets the moments; CONSORT_TEST_DEVICE=nvidia: on a GPU."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import tempfile
import time
import unittest

import stack

DEVICE = os.environ.get("CONSORT_TEST_DEVICE") or "cpu"
KILLS = int(os.environ.get("CONSORT_TEST_KILLS") or 6)
PROGRAMS = 3
# A kernel takes some 50 ms on the CPU device.
STEPS = "60000" if DEVICE == "cpu" else "1500000"
# What a program is told that cannot go on.
TOLD = ("cudaErrorDevicesUnavailable", "cudaErrorDeviceUninitialized", "cudaErrorUnknown")


class Redo(unittest.TestCase):
    def start(self, *arguments, saves=None):
        folder = tempfile.TemporaryDirectory(prefix="redo-")
        self.addCleanup(folder.cleanup)
        self.saves = pathlib.Path(saves or pathlib.Path(folder.name) / "saves")
        self.daemon = self.enterContext(stack.Daemon(folder.name, device=DEVICE, arguments=(
            "--checkpoint-after", "1", "--checkpoint-folder", str(self.saves), *arguments)))
        seed = int(os.environ.get("CONSORT_TEST_SEED") or time.time_ns() % 2**32)
        print(f"\n    CONSORT_TEST_SEED={seed}", end="")
        self.random = random.Random(seed)

    def tearDown(self):
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log_tail())

    def status(self):
        return json.loads(self.daemon.control("status", "--output", "json"))

    def run_program(self, *arguments, name="strider"):
        program = subprocess.Popen([stack.PROGRAMS / name, *arguments], env=self.daemon.local_environment(),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def end():
            program.kill()
            program.communicate()

        self.addCleanup(end)
        return program

    def passes(self, program):
        output, _ = program.communicate(timeout=120)  # which ends its input
        self.assertEqual(program.returncode, 0, f"{output[-2000:]}\n{self.daemon.log_tail(60)}")
        self.assertIn("PASS", output)

    def all_run(self, programs):
        """True; fails with what it said if one has ended."""
        for program in programs:
            if program.poll() is not None:
                self.fail(f"it ended with {program.returncode}: {program.stdout.read()[-2000:]}\n{self.daemon.log_tail(60)}")
        return True

    def await_log(self, pattern, times=1, programs=()):
        stack.wait_for(lambda: self.all_run(programs) and len(re.findall(pattern, self.daemon.log())) >= times,
                       lambda: f"{times} of {pattern}\n{self.daemon.log_tail(60)}")

    def kill_worker(self):
        """The present one, once it is ready."""
        pid = stack.wait_for(lambda: self.status()["devices"][0]["state"] == "ready" and
                             self.status()["devices"][0].get("worker_pid"), "a worker")
        os.kill(pid, signal.SIGKILL)
        stack.wait_for(lambda: self.status()["devices"][0]["state"] == "ready" and
                       self.status()["devices"][0].get("worker_pid") not in (None, pid),
                       "another worker")

    def saved(self):
        return len(re.findall(r"\(strider\): checkpoint of", self.daemon.log()))

    def went_on(self):
        return len(re.findall(r"goes on in worker \d+ from its checkpoint", self.daemon.log()))

    def test_programs_are_computed_again_wherever_the_worker_dies(self):
        self.start()
        programs = [self.run_program(STEPS) for _ in range(PROGRAMS)]
        self.await_log(r"\(strider\): checkpoint of", PROGRAMS, programs)
        for kill in range(1, KILLS + 1):
            if kill % 2 == 0:
                # From another checkpoint than the last time.
                self.await_log(r"\(strider\): checkpoint of", self.saved() + PROGRAMS, programs)
            time.sleep(self.random.random() * 0.5)
            self.kill_worker()
            if kill % 3 == 0:
                # While it computes them again, perhaps.
                time.sleep(self.random.random() * 0.1)
                self.kill_worker()
            stack.wait_for(lambda: self.all_run(programs) and len(self.status()["sessions"]) == PROGRAMS and
                           all(session["state"] == "open" for session in self.status()["sessions"]),
                           lambda: f"programs that go on\n{self.daemon.log_tail(60)}")
        self.assertEqual({session["pid"] for session in self.status()["sessions"]},
                         {program.pid for program in programs})
        for program in programs:
            self.passes(program)
        self.assertGreaterEqual(self.went_on(), KILLS * PROGRAMS)
        self.assertNotIn("ends with its worker", self.daemon.log())
        print(f"\n    {self.went_on()} times computed again", end="")
        # Folders go with their sessions.
        stack.wait_for(lambda: os.listdir(self.saves) == [], "the folders to go")

    def test_what_cannot_be_done_again_is_told_and_never_a_wrong_number(self):
        self.start()
        program = self.run_program(STEPS, "pinned")
        self.await_log(r"\(strider\): checkpoint of")
        output = []
        # Its first copy from pinned memory after the checkpoint has been there.
        for _ in range(3):
            output.append(program.stdout.readline())
        time.sleep(0.5)
        self.kill_worker()
        self.assertEqual(program.wait(timeout=120), 1, self.daemon.log_tail())
        rest = program.stdout.read()
        self.assertTrue(any(error in rest for error in TOLD), rest)
        self.assertNotIn("expected 0x", rest)
        self.await_log(r"ends with its worker: it copied or filled what is not in its device memory alone")
        self.assertEqual(self.went_on(), 0)
        stack.wait_for(lambda: os.listdir(self.saves) == [], "the folder to go")

    def test_without_a_checkpoint_it_is_told(self):
        self.start("--checkpoint-after", "1000")
        program = self.run_program(STEPS)
        program.stdout.readline()
        self.kill_worker()
        self.assertEqual(program.wait(timeout=120), 1)
        self.await_log("ends with its worker: there is no checkpoint of it yet")

    def test_a_full_disk_costs_the_program_nothing(self):
        if os.geteuid() != 0:
            self.skipTest("mounting a small file system needs root")
        disk = tempfile.mkdtemp(prefix="redo-disk-")
        self.addCleanup(os.rmdir, disk)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        # Something that is not packed into nothing.
        pathlib.Path(disk, "other").write_bytes(os.urandom(60 << 10))
        self.start(saves=pathlib.Path(disk) / "saves")
        program = self.run_program(STEPS)
        self.await_log("gets no checkpoint: .*No space left on device")
        time.sleep(3)
        self.passes(program)
        self.assertEqual(len(re.findall("gets no checkpoint", self.daemon.log())), 1, self.daemon.log_tail(60))

    def test_with_memory_that_is_kept_only_who_was_at_work_is_computed_again(self):
        self.start("--keep-memory", "on")
        program = self.run_program(STEPS)
        self.await_log(r"\(strider\): checkpoint of")
        for _ in range(KILLS):
            time.sleep(self.random.random() * 0.3)
            self.kill_worker()
            self.await_log("goes on in worker", _ + 1)
        self.passes(program)

    def test_whose_work_did_not_break_the_device_goes_on(self):
        self.start()
        program = self.run_program(STEPS, "steps")

        def step():
            program.stdin.write("\n")
            program.stdin.flush()
            self.assertRegex(program.stdout.readline(), "^round ", self.daemon.log_tail(60))

        while self.saved() == 0:
            step()
            time.sleep(0.05)
        for turn in range(1, 4):
            for _ in range(3):
                step()
            time.sleep(0.2)  # until its session is at rest
            faulty = self.run_program(name="assertion")
            faulty.communicate(timeout=60)
            stack.wait_for(lambda: self.went_on() == turn, lambda: f"it to go on\n{self.daemon.log_tail(60)}")
        self.passes(program)

    @unittest.skipUnless(DEVICE == "cpu", "GPUs do not go when one likes")
    def test_a_device_that_is_gone_is_left(self):
        with tempfile.NamedTemporaryFile("w", suffix=".devices") as devices:
            def present(count):
                devices.seek(0)
                devices.truncate()
                devices.write("\n".join(f"name=device{i}" for i in range(count)) + "\n")
                devices.flush()

            present(2)
            self.start("--devices", devices.name)
            program = subprocess.Popen([stack.PROGRAMS / "strider", STEPS],
                                       env=dict(self.daemon.local_environment(), CUDA_VISIBLE_DEVICES="1"),
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.addCleanup(program.kill)
            self.await_log(r"\(strider\): checkpoint of")
            [pid] = [device["worker_pid"] for device in self.status()["devices"] if device["index"] == 1]
            present(1)
            os.kill(pid, signal.SIGKILL)
            self.await_log("goes to device 0: no worker of device 1 starts")
            stack.wait_for(lambda: self.went_on() == 1, "it to go on")
            self.passes(program)

    def test_its_folder_is_one_consortds(self):
        self.start()
        binary = stack.BUILD / "bin" / "consortd"
        with tempfile.TemporaryDirectory() as other:
            second = subprocess.run([binary, "--device", "cpu", "--socket", f"{other}/s", "--vsock-port", "off", "--metrics", "off",
                                     "--checkpoint-after", "1", "--checkpoint-folder", str(self.saves)],
                                    capture_output=True, text=True, timeout=60)
        self.assertNotEqual(second.returncode, 0)
        self.assertIn("another consortd uses", second.stdout + second.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
