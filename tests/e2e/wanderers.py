# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/wanderers.py: programs that check each word that they compute, on two devices, while an operator does
things with them. CONSORT_TEST_SEED sets the moments; CONSORT_TEST_DEVICE=nvidia takes a machine's two GPUs instead of CPU devices."""

import json
import os
import pathlib
import random
import subprocess
import tempfile
import time
import unittest

import stack


class TestCase(unittest.TestCase):
    def start(self, *arguments, devices=2):
        """A consortd with so many devices (of a machine with GPUs: all that it has), in self.folder."""
        folder = tempfile.TemporaryDirectory(prefix="wanderers-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        device = os.environ.get("CONSORT_TEST_DEVICE", "cpu")
        count = () if device == "nvidia" else ("--devices", str(devices))
        self.daemon = self.enterContext(stack.Daemon(folder.name, device=device, arguments=(*count, *arguments)))
        seed = int(os.environ.get("CONSORT_TEST_SEED") or time.time_ns() % 2**32)
        print(f"\n    CONSORT_TEST_SEED={seed}", end="")
        self.random = random.Random(seed)

    def tenants(self, names, more=""):
        """(file of tenants, the socket of each) of tenants of these names with these settings too."""
        folder = tempfile.TemporaryDirectory(prefix="tenants-")
        self.addCleanup(folder.cleanup)
        file = pathlib.Path(folder.name, "tenants.toml")
        sockets = [pathlib.Path(folder.name, f"{name}.sock") for name in names]
        file.write_text("".join(f'[[tenant]]\nname = "{name}"\nsocket = "{socket}"\n{more}'
                                for name, socket in zip(names, sockets)), "utf-8")
        return file, sockets

    def one_tenant(self, name, more=""):
        """(file of tenants, socket), likewise."""
        file, (socket,) = self.tenants((name,), more)
        return file, socket

    def tearDown(self):
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log_tail())

    def wanderer(self, *arguments, name="wanderer", typed="", **settings):
        """A running one that has begun to compute; `settings`: of its environment; `typed`: the beginning of its input."""
        program = subprocess.Popen([stack.PROGRAMS / name, *arguments],
                                   env=dict(self.daemon.local_environment(), **settings), stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def end():
            program.kill()
            program.communicate()

        self.addCleanup(end)
        program.stdin.write(typed)
        program.stdin.flush()
        stack.wait_for(lambda: any(session["pid"] == program.pid and session["kernel_launches"] > 0
                                   for session in self.sessions()), "a program that computes")
        return program

    def passes(self, program):
        output, _ = program.communicate(timeout=120)  # which ends its input
        self.assertEqual(program.returncode, 0, f"{output}\n{self.daemon.log_tail()}")
        return output

    def status(self):
        return json.loads(self.daemon.control("status", "--output", "json"))

    def sessions(self):
        return self.status()["sessions"]

    def device_of(self, program):
        return [session["device"] for session in self.sessions() if session["pid"] == program.pid]
