#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/balance_test.py: unmodified programs that go to a device that has fallen idle by themselves (consortd --balance),
and check what they computed."""

import json
import pathlib
import re
import subprocess
import tempfile
import unittest

import stack

# A program must have been where it is for 10 s, and be at work for some seconds after it has gone.
SECONDS = 25
# Of a kernel, so that it takes many times longer than its launch: only who uses a device goes.
ROUNDS = 1000000
# Most of it is the program's own time on a machine that others use too.
MOVE_PATIENCE_SECONDS = 60
# A daemon measures its devices in a fraction of a second; while others use the machine one may be found half as fast.
STARTS = 20
# So near each other, half of one is worth leaving for the whole of the other (kBalanceGain, policies/placement/balance.h).
ALIKE = 1.25


class Balance(unittest.TestCase):
    def start(self, devices, *arguments):
        folder = tempfile.TemporaryDirectory(prefix="balance-")
        self.addCleanup(folder.cleanup)
        file = pathlib.Path(folder.name) / "devices"
        file.write_text(devices, "utf-8")
        self.daemon = self.enterContext(stack.Daemon(folder.name, device="cpu", arguments=("--devices", file, *arguments)))

    def start_alike(self, devices, *arguments):
        """Until the daemon has found its devices equally fast."""
        for _ in range(STARTS):
            self.start(devices, *arguments)
            speeds = [float(speed) for speed in re.findall(r"([0-9.]+) TFLOP/s", self.daemon.log())]
            self.assertEqual(len(speeds), 2, self.daemon.log_tail())
            if max(speeds) < ALIKE * min(speeds):
                return
            self.assertEqual(self.daemon.stop(), 0, self.daemon.log_tail())
        self.fail(f"of {STARTS} daemons none found its two devices equally fast\n{self.daemon.log_tail()}")

    def tearDown(self):
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log_tail())

    def busy(self):
        program = subprocess.Popen([stack.PROGRAMS / "busy", str(SECONDS), str(ROUNDS), "16"], env=self.daemon.local_environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def end():
            program.kill()
            program.communicate()

        self.addCleanup(end)
        return program

    def devices(self):
        """Of the open sessions, in order."""
        sessions = json.loads(self.daemon.control("status", "--output", "json"))["sessions"]
        return sorted(session["device"] for session in sessions)

    def await_devices(self, devices, what):
        try:
            stack.wait_for(lambda: self.devices() == devices, what, MOVE_PATIENCE_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.daemon.log_tail(60)}") from None

    def passes(self, program):
        output, _ = program.communicate(timeout=120)
        self.assertEqual(program.returncode, 0, f"{output}\n{self.daemon.log_tail()}")

    def test_one_of_two_that_share_a_device_goes_to_the_idle_one(self):
        self.start_alike('name="Left"\nname="Right"\n', "--balance", "on")
        programs = [self.busy(), self.busy()]
        stack.wait_for(lambda: self.devices() == [0, 0], "two programs on one device")
        self.await_devices([0, 1], "one that goes")
        for program in programs:
            self.passes(program)
        self.assertIn("--balance told session", self.daemon.log())
        self.assertRegex(self.daemon.control("events"), "busy went from device 0 to device 1")

    def test_one_by_itself_goes_from_a_slow_device_to_a_fast_one(self):
        self.start('name="Slow" speed=0.25\nname="Fast"\n', "--balance", "on")
        program = self.busy()
        stack.wait_for(lambda: self.devices() == [0], "a program on the slow device")
        self.await_devices([1], "it to go")
        self.passes(program)
        ends = [line["end"] for line in self.daemon.account()]
        self.assertEqual(ends[0], "moved", ends)


if __name__ == "__main__":
    unittest.main(verbosity=2)
