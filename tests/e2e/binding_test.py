#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/binding_test.py: unmodified programs whose device is chosen when they launch their first kernel
(consortd --bind first-launch), on two devices of 64 MiB. Each checks its words, and that its pointers are the same.

CONSORT_TEST_DEVICE=nvidia: on a machine's two GPUs, of which it may use so much."""

import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request

import stack

DEVICE = os.environ.get("CONSORT_TEST_DEVICE") or "cpu"
TENANTS = """
[[tenant]]
name = "left"
socket = "{folder}/left.sock"
gpus = [0]
[[tenant]]
name = "right"
socket = "{folder}/right.sock"
gpus = [1]
"""


class Binding(unittest.TestCase):
    def start(self, *arguments, bind="first-launch"):
        folder = tempfile.TemporaryDirectory(prefix="binding-")
        self.addCleanup(folder.cleanup)
        tenants = pathlib.Path(folder.name) / "tenants.toml"
        tenants.write_text(TENANTS.format(folder=folder.name), "utf-8")
        self.daemon = self.enterContext(stack.Daemon(folder.name, device=DEVICE, metrics="127.0.0.1:0", arguments=(
            "--devices", "2", "--device-memory", "64MiB", "--swap-pageable", "512MiB", "--tenants", tenants, "--bind", bind,
            *arguments)))

    def tearDown(self):
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log_tail())
        # Nobody had to wait for as long as a session waits for an answer.
        self.assertNotIn("consortd does not say", self.daemon.log())

    def program(self, *arguments, tenant=None, name="first_launch"):
        """One that has done all that it does before its first launch."""
        socket = None if tenant is None else self.daemon.folder / f"{tenant}.sock"
        program = subprocess.Popen([stack.PROGRAMS / name, *arguments], env=self.daemon.local_environment(socket),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def end():
            program.kill()
            program.communicate()

        self.addCleanup(end)
        self.says(program, "ready")
        return program

    def says(self, program, word):
        line = program.stdout.readline()
        if line != f"{word}\n":
            program.kill()
            self.fail(f"{line}{program.stdout.read()}\n{self.daemon.log_tail()}")

    def launches(self, *programs):
        for program in programs:
            program.stdin.write("\n")
            program.stdin.flush()
        for program in programs:
            self.says(program, "computed")

    def passes(self, *programs):
        for program in programs:
            output, _ = program.communicate(timeout=120)
            self.assertEqual((program.returncode, output), (0, "PASS\n"), self.daemon.log_tail())

    def sessions(self):
        return json.loads(self.daemon.control("status", "--output", "json"))["sessions"]

    def device_of(self, program):
        [session] = [session for session in self.sessions() if session["pid"] == program.pid]
        return session["device"], session["bound"]

    def on_device(self):
        """Bytes on both devices, as their workers told last: they do twice a second."""
        with urllib.request.urlopen(self.daemon.metrics_url()) as answer:
            text = answer.read().decode()
        found = re.findall(r"^consort_memory_on_device_bytes\{[^}]*\} (\S+)$", text, re.M)
        self.assertEqual(len(found), 2, text)
        return sum(float(value) for value in found)

    def test_two_that_wait_on_one_device_compute_on_both(self):
        self.start()
        programs = [self.program("24"), self.program("24")]
        self.assertEqual([self.device_of(program) for program in programs], [(0, False)] * 2)
        self.assertEqual(self.daemon.control("apps").count("unbound"), 2)
        time.sleep(1.2)  # two reports
        self.assertEqual(self.on_device(), 0)
        self.launches(*programs)
        self.assertEqual(sorted(self.device_of(program) for program in programs), [(0, True), (1, True)])
        self.passes(*programs)
        events = self.daemon.control("events")
        for device in (0, 1):
            self.assertIn(f"first_launch is bound to device {device}", events)
        self.assertRegex(self.daemon.log(), r"session \d+ is bound to device 1: GPU 1 .* by gwtmin")

    def test_one_that_does_not_fit_beside_another_goes_where_it_does(self):
        """Though more programs are bound there."""
        self.start()
        others = [self.program("4", tenant="right") for _ in range(2)]
        large = self.program("40", tenant="left")
        self.launches(*others, large)
        program = self.program("40")
        self.assertEqual(self.device_of(program), (0, False))
        self.launches(program)
        self.assertEqual(self.device_of(program), (1, True))
        [session] = [session for session in self.sessions() if session["pid"] == program.pid]
        self.assertIn("bound to device 1 of the host when it first used it: GPU 1", session["why"])
        # What it needs fits beside them here, and would not there.
        self.passes(program, large, *others)

    def test_one_that_cannot_go_where_it_should_goes_on_where_it_is(self):
        self.start()
        first = self.program("4", tenant="left")
        self.launches(first)
        # Promised, though nothing is there: consortd learns of it by the move that fails.
        reserves = self.program("reserve", "370", tenant="right")
        program = self.program("24")
        self.launches(program)
        self.assertEqual(self.device_of(program), (0, True))
        self.assertIn("stays on device 0: the device has not the memory that it needs", self.daemon.log())
        self.assertIn("first_launch is bound to device 0", self.daemon.control("events"))
        self.passes(program, first, reserves)

    def test_a_worker_that_dies_while_one_goes_to_it_keeps_nobody(self):
        self.start()
        first = self.program("4", tenant="left")
        self.launches(first)
        program = self.program("40")
        status = json.loads(self.daemon.control("status", "--output", "json"))
        worker = status["devices"][1]["worker_pid"]
        os.kill(worker, signal.SIGSTOP)
        program.stdin.write("\n")
        program.stdin.flush()
        stack.wait_for(lambda: "goes to device 1 before it first uses one" in self.daemon.log(), "a move")
        os.kill(worker, signal.SIGKILL)
        self.says(program, "computed")
        self.assertEqual(self.device_of(program), (0, True))
        self.passes(program, first)

    def test_times_between_events_are_of_one_device(self):
        self.start()
        first = self.program("4", tenant="left")
        self.launches(first)
        program = self.program("8", "timed")
        self.launches(program)
        self.assertEqual(self.device_of(program), (1, True))
        self.passes(program, first)

    def test_other_programs_compute_as_ever(self):
        self.start()
        for name in ("vector_add", "copies", "pinned_memory", "streams", "constant_symbols", "stream_ordered_memory", "callbacks",
                     "graphs", "async_events", "driver_api"):
            with self.subTest(name):
                busy = self.program("4", tenant="left")
                self.launches(busy)
                done = subprocess.run([stack.PROGRAMS / name], env=self.daemon.local_environment(), capture_output=True,
                                      text=True, timeout=120, check=False)
                self.assertEqual(done.returncode, 0, f"{done.stdout}{done.stderr}\n{self.daemon.log_tail()}")
                self.passes(busy)

    def test_without_it_a_program_is_where_it_connected(self):
        self.start(bind="connect")
        programs = [self.program("8") for _ in range(2)]
        self.assertEqual([self.device_of(program) for program in programs], [(0, True)] * 2)
        self.launches(*programs)
        self.assertEqual([self.device_of(program) for program in programs], [(0, True)] * 2)
        self.passes(*programs)
        self.assertNotIn("is bound to", self.daemon.log())

    def test_what_it_cannot_be_used_with_is_said(self):
        self.start()
        for arguments, text in (((), "needs a place for memory that is on no device yet"),
                                (("--swap-pageable", "1GiB", "--pool", "http://127.0.0.1:1", "--pool-listen", "127.0.0.1:1"), "is not for a host of a pool")):
            done = subprocess.run([stack.BUILD / "bin" / "consortd", "--bind", "first-launch", *arguments], capture_output=True,
                                  text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
