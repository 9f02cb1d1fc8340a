#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/keeper_test.py: workers are killed under unmodified programs, which check each word that they compute.

Who had no work in flight goes on in another worker and notices nothing but a pause; who had is told by CUDA's sticky
error. CONSORT_TEST_KILLS: how often at random moments; CONSORT_TEST_SEED sets the moments; CONSORT_TEST_DEVICE=nvidia: on a GPU."""

import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import tempfile
import time
import unittest

import stack

DEVICE = os.environ.get("CONSORT_TEST_DEVICE") or "cpu"
PROGRAMS = 8
KILLS = int(os.environ.get("CONSORT_TEST_KILLS") or 10)
# Of consortd, in whatever time: what it remembers of kills and sessions that are over is bounded.
GROWTH_MAX = 32 << 20
# What a program is told whose work was in flight.
TOLD = ("cudaErrorDevicesUnavailable", "cudaErrorDeviceUninitialized", "cudaErrorUnknown")


class Keeper(unittest.TestCase):
    channel = "rings"  # as CONSORT_CHANNEL and as the account has it
    account_name = "unix+rings"

    def start(self, *arguments):
        folder = tempfile.TemporaryDirectory(prefix="keeper-")
        self.addCleanup(folder.cleanup)
        self.daemon = self.enterContext(stack.Daemon(folder.name, device=DEVICE,
                                                     arguments=("--keep-memory", "on", *arguments)))
        seed = int(os.environ.get("CONSORT_TEST_SEED") or time.time_ns() % 2**32)
        print(f"\n    CONSORT_TEST_SEED={seed}", end="")
        self.random = random.Random(seed)
        self.resident_before = self.resident_bytes()

    def tearDown(self):
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log_tail())

    def status(self):
        return json.loads(self.daemon.control("status", "--output", "json"))

    def sessions(self):
        return self.status()["sessions"]

    def run_program(self, *arguments):
        program = subprocess.Popen([stack.PROGRAMS / arguments[0], *arguments[1:]],
                                   env=dict(self.daemon.local_environment(), CONSORT_CHANNEL=self.channel),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def end():
            program.kill()
            program.wait()
            program.stdin.close()
            program.stdout.close()

        self.addCleanup(end)
        return program

    def passes(self, program):
        output, _ = program.communicate(timeout=120)  # which ends its input
        self.assertEqual(program.returncode, 0, f"{output}\n{self.daemon.log_tail(60)}")

    def step(self, programs):
        """One round of each, all at the same time."""
        for program in programs:
            program.stdin.write("\n")
            program.stdin.flush()
        for program in programs:
            line = program.stdout.readline()
            self.assertRegex(line, "^round ", f"{line}{self.daemon.log_tail(60)}")

    def await_rest(self, programs):
        """Until their work has ended for the host, too."""
        pids = {program.pid for program in programs}
        stack.wait_for(lambda: pids <= {session["pid"] for session in self.sessions() if session["outlives_worker"]},
                       lambda: f"programs at rest\n{self.daemon.log_tail()}")

    def kill_worker(self):
        """The present one, once it is ready; its pid."""
        pid = stack.wait_for(lambda: self.status()["devices"][0].get("worker_pid"), "a worker")
        os.kill(pid, signal.SIGKILL)
        return pid

    def await_worker(self, but):
        stack.wait_for(lambda: self.status()["devices"][0]["state"] == "ready" and
                       self.status()["devices"][0].get("worker_pid") not in (None, but), "another worker")

    def holdings(self):
        """Of consortd and of its worker: descriptors, and mappings of memory files: the CPU device's memory, rings, pinned memory."""
        worker = self.status()["devices"][0]["worker_pid"]
        return tuple((len(os.listdir(f"/proc/{pid}/fd")), pathlib.Path(f"/proc/{pid}/maps").read_text().count("/memfd:"))
                     for pid in (self.daemon.pid, worker))

    def resident_bytes(self):
        """Of consortd."""
        return int(re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{self.daemon.pid}/status").read_text()).group(1)) << 10

    def given_back(self, before):
        stack.wait_for(lambda: not self.sessions() and self.holdings() == before,
                       f"all to be given back: {before}, now {self.holdings()}")
        self.assertLess(self.resident_bytes() - self.resident_before, GROWTH_MAX)
        # One whose worker died before it went on says what it came through.
        self.assertEqual({session["channel"] for session in self.daemon.account()} - {"unix"}, {self.account_name} - {"unix"})

    def pauses(self):
        return [int(found) for found in re.findall(r"goes on in worker \d+, (\d+) ms after", self.daemon.log())]

    def test_programs_without_work_in_flight_notice_nothing(self):
        self.start()
        before = self.holdings()
        programs = [self.run_program("wanderer", str(1 + 2 * (i % 4)), "steps") for i in range(PROGRAMS)]
        for _ in range(2):
            self.step(programs)
        once = []  # pauses after one kill
        for kill in range(KILLS):
            self.await_rest(programs)
            paused = len(self.pauses())
            dead = self.kill_worker()
            if kill % 3 == 2:
                # The next one, too, while it makes the sessions go on.
                self.await_worker_process(dead)
                dead = self.kill_worker()
            self.step(programs)
            stack.wait_for(lambda: {session["pid"] for session in self.sessions()} == {
                program.pid for program in programs}, "a status that has all programs")
            if kill % 3 != 2:
                once += self.pauses()[paused:]
        for program in programs:
            self.passes(program)
        self.assertGreaterEqual(len(self.pauses()), KILLS * PROGRAMS)
        print(f"\n    pauses: {statistics.median(once):.0f} ms median, {max(once)} ms most; where the next worker died, too, "
              f"{max(self.pauses())} ms most", end="")
        self.given_back(before)

    def await_worker_process(self, but):
        stack.wait_for(lambda: self.status()["devices"][0].get("worker_pid") not in (None, 0, but), "another worker")

    def test_programs_are_right_or_told_wherever_the_worker_dies(self):
        self.start()
        before = self.holdings()
        arguments = [("wanderer", str(1 + i % 4)) for i in range(PROGRAMS)]
        programs = [self.run_program(*chosen) for chosen in arguments]
        told = 0

        def all_compute():
            """Those that were told are replaced; each has launched kernels in the present worker."""
            nonlocal told
            for i, program in enumerate(programs):
                if program.poll() is not None:
                    told += 1
                    self.was_told(program)
                    programs[i] = self.run_program(*arguments[i])
            at_work = {session["pid"] for session in self.sessions() if session["kernel_launches"] > 0}
            return at_work >= {program.pid for program in programs}

        for _ in range(KILLS):
            stack.wait_for(all_compute, "programs that compute")
            time.sleep(self.random.random() * 0.2)
            self.await_worker(self.kill_worker())
        stack.wait_for(all_compute, lambda: f"programs that compute\n{self.daemon.log_tail(60)}")
        for program in programs:
            self.passes(program)
        print(f"\n    {KILLS} kills, {told} of {KILLS * PROGRAMS} told, {len(self.pauses())} went on", end="")
        self.assertEqual(told + len(self.pauses()), KILLS * PROGRAMS)
        self.given_back(before)

    def was_told(self, program):
        output = program.stdout.read()
        self.assertEqual(program.returncode, 1, f"{output}\n{self.daemon.log_tail(60)}")
        self.assertTrue(any(error in output for error in TOLD), f"{output}\n{self.daemon.log_tail(60)}")

    def test_a_worker_that_stands_by_takes_over(self):
        self.start("--standby-workers", "on")
        programs = [self.run_program("wanderer", str(1 + 2 * (i % 4)), "steps") for i in range(PROGRAMS)]
        self.step(programs)
        for _ in range(max(2, KILLS // 10)):
            self.await_rest(programs)
            standby = self.await_standby()
            self.kill_worker()
            self.step(programs)
            self.assertEqual(self.status()["devices"][0]["worker_pid"], standby, self.daemon.log_tail())
        # Programs have nothing to do with its death, and another one comes.
        standby = self.await_standby()
        os.kill(standby, signal.SIGKILL)
        self.step(programs)
        self.await_standby(but=standby)
        for program in programs:
            self.passes(program)
        print(f"\n    pauses: {statistics.median(self.pauses()):.0f} ms median, {max(self.pauses())} ms most", end="")

    def await_standby(self, but=None):
        return stack.wait_for(lambda: (pid := self.status()["devices"][0].get("standby_pid")) != but and pid,
                              lambda: f"a worker that stands by\n{self.daemon.log_tail()}")

    def test_what_is_not_kept_is_told_by_its_name(self):
        self.start()
        program = self.run_program("wanderer", "1", "textures")
        stack.wait_for(lambda: any(session["kernel_launches"] > 0 for session in self.sessions()), "a program")
        self.kill_worker()
        self.assertEqual(program.wait(timeout=120), 1)
        self.was_told(program)
        stack.wait_for(lambda: "ends with its worker: it has arrays, textures or surfaces" in self.daemon.log(),
                       lambda: f"the reason\n{self.daemon.log_tail()}")


class KeeperOfStreams(Keeper):
    """What a worker has read of a stream is gone with it."""
    channel = "stream"
    account_name = "unix"


if __name__ == "__main__":
    unittest.main(verbosity=2)
