#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/printing_test.py: what kernels print is what the program prints: its own stdout and stderr, in order, and
nobody else's."""

import re
import subprocess
import tempfile
import unittest

import stack

SECONDS = 120
BIG_LINES = 6000
ROUNDS = 30
LINES_A_ROUND = 20

EVERY_POINT = [
    "host: begin",
    "device: before cudaDeviceSynchronize 1",
    "host: after cudaDeviceSynchronize",
    "device: before cudaStreamSynchronize 2",
    "host: after cudaStreamSynchronize",
    "device: before cudaStreamSynchronize 3",
    "host: after the other stream",
    "device: before cudaEventSynchronize 4",
    "host: after cudaEventSynchronize",
    "device: before cudaMemcpy 5",
    "host: after cudaMemcpy, value 7",
    "device: before a host function 6",
    "host: function 6",
    "device: in a graph 7",
    "device: in a graph 8",
    "host: after the graph",
    *(f"big {number:06} " + "." * 116 for number in range(BIG_LINES)),
    "host: after much",
    "device: before cudaDeviceReset 9",
    "host: after cudaDeviceReset",
    "PASS",
]


def rounds(tag):
    """What `printing TAG ROUNDS` prints."""
    lines = []
    for number in range(ROUNDS):
        lines += [f"{tag} round {number} line {line}" for line in range(LINES_A_ROUND)]
        lines.append(f"{tag} round {number} end")
    return [*lines, "PASS"]


class Printing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.daemon = cls.enterClassContext(stack.Daemon(folder.name, device="cpu"))

    def start(self, *command, **environment):
        return subprocess.Popen([stack.PROGRAMS / command[0], *command[1:]],
                                env=dict(self.daemon.local_environment(), **environment), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, process):
        out, error = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 0, out[-2000:] + error + self.daemon.log_tail())
        return out.splitlines(), error

    def test_comes_to_stdout_where_cuda_shows_it(self):
        for channel in ("auto", "stream"):
            with self.subTest(channel=channel):
                out, error = self.finish(self.start("printing", CONSORT_CHANNEL=channel))
                self.assertEqual(out, EVERY_POINT)
                self.assertEqual(error, "")

    def test_of_neighbours_in_one_worker_stays_apart(self):
        tags = ("apple", "berry", "cherry")
        running = {tag: self.start("printing", tag, str(ROUNDS)) for tag in tags}
        for tag, process in running.items():
            out, error = self.finish(process)
            self.assertEqual(out, rounds(tag))
            self.assertEqual(error, "")
        self.assertNotIn("round", re.sub(r"(?m)^[IWE]\d{8} .*$", "", self.daemon.log()))

    def test_a_failed_assert_tells_the_program(self):
        out, error = self.finish(self.start("assertion"))
        self.assertEqual(out, ["device: the value is 2", "host: the first was right", "device: the value is 5", "PASS"])
        self.assertRegex(error, r"^\S*assertion\.cu:\d+: .*CheckRange\(int\): block: \[0,0,0\], thread: \[0,0,0\] "
                                r"Assertion `value < 3` failed\.\n$")


if __name__ == "__main__":
    unittest.main(verbosity=2)
