#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/programs_test.py: every program of tests/programs on this machine, through consortd
over its UNIX socket: the whole path but the virtual machine."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import stack

# big_copy's default is sized for a real channel; here its correctness is wanted.
ARGUMENTS = {"big_copy": ["16"]}

# These launch no kernel.
ONLY_CALLS = {"copies", "device_query"}

# Needs kernels of NVIDIA's that are no PTX.
ONLY_ON_A_GPU = {"cublas_sgemm"}

HAS_GPU = pathlib.Path("/dev/nvidia0").exists()

# Need two devices: peer_test.py.
ELSEWHERE = {"peer_access", "peer_mappings", "peer_ring"}


class Programs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.daemon = cls.enterClassContext(stack.Daemon(folder.name))

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.stop() == 0, cls.daemon.log_tail()

    def check(self, name):
        done = subprocess.run(
            [stack.PROGRAMS / name, *ARGUMENTS.get(name, [])], env=self.daemon.local_environment(),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
        said = f"\n{done.stdout}{done.stderr}\n{self.daemon.log_tail()}"
        self.assertEqual(done.returncode, 0, said)
        self.assertEqual(done.stdout.splitlines()[-1:], ["PASS"], said)
        self.assertTrue(self.daemon.is_running(), said)
        sessions = [session for session in self.daemon.wait_for_account(
            lambda all: name in [session["application"] for session in all])
                    if session["application"] == name]
        self.assertEqual({session["vm"] for session in sessions}, {"local"})
        for session in sessions:
            self.assertTrue(session["channel"].startswith("unix"), session)
        launches = sum(session["kernel_launches"] for session in sessions)
        self.assertEqual(launches > 0, name not in ONLY_CALLS, sessions)


    def test_who_waits_for_the_whole_device_asks_nobody(self):
        synchronisations = 2000
        done = subprocess.run([stack.PROGRAMS / "many_launches", "1", str(synchronisations)], env=self.daemon.local_environment(),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, f"{done.stdout}{done.stderr}\n{self.daemon.log_tail()}")
        sessions = [session for session in self.daemon.wait_for_account(
            lambda all: any(session["kernel_launches"] == synchronisations for session in all))
                    if session["kernel_launches"] == synchronisations]
        # What a word did not tell in time was asked for.
        self.assertLess(sum(session["round_trips"] for session in sessions), synchronisations / 4, sessions)

    def expect_few_round_trips(self, name):
        """Of a program that does the same thing so many times."""
        rounds = 3000
        done = subprocess.run([stack.PROGRAMS / name, str(rounds)], env=self.daemon.local_environment(),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, f"{done.stdout}{done.stderr}\n{self.daemon.log_tail()}")
        sessions = [session for session in self.daemon.wait_for_account(
            lambda all: any(session["application"] == name for session in all)) if session["application"] == name]
        # The test of the program itself has an account, too.
        for session in sessions:
            self.assertLess(session["round_trips"], rounds / 10, session)

    def test_memory_that_comes_again_is_asked_for_once(self):
        self.expect_few_round_trips("allocations")

    def test_small_synchronous_copies_from_pinned_memory_ask_nobody(self):
        self.expect_few_round_trips("pinned_memory")

    def test_six_with_callbacks_at_once(self):
        running = [subprocess.Popen([stack.PROGRAMS / "callbacks"], env=self.daemon.local_environment(), stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(6)]
        for said, _ in [program.communicate(timeout=120) for program in running]:
            self.assertEqual(said.splitlines()[-1:], ["PASS"], f"{said}\n{self.daemon.log_tail()}")


class GuestLibrary(unittest.TestCase):
    def test_is_refused_as_the_hosts_driver(self):
        """On a host that is somebody's guest the loader finds Consort's library: calls would go in circles."""
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [stack.BUILD / "bin" / "consortd", f"--socket={folder}/c.sock", "--vsock-port=off", "--metrics=off",
                 "--device=nvidia"], env=dict(os.environ, LD_LIBRARY_PATH=str(stack.LIBRARY.parent)),
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("is Consort's guest library, not a driver", done.stderr)


def add_tests():
    """One test method a program that was built."""
    for path in sorted(stack.PROGRAMS.iterdir()):
        if path.name in ELSEWHERE:
            continue
        def test(self, name=path.name):
            if name in ONLY_ON_A_GPU and not HAS_GPU:
                self.skipTest("needs an NVIDIA GPU")
            self.check(name)
        setattr(Programs, f"test_{path.name}", test)


if __name__ == "__main__":
    add_tests()
    unittest.main(verbosity=2)
