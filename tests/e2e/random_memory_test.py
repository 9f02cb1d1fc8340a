#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/random_memory_test.py: programs that do random things with device memory and compare every byte with a
model of it, while they are moved, held in checkpoints, swapped, and lose their workers.

CONSORT_TEST_STEPS: how many things each test does, over all programs; CONSORT_TEST_SEED sets what and when."""

import collections
import os
import signal
import subprocess
import time
import unittest

import stack
import wanderers

STEPS = int(os.environ.get("CONSORT_TEST_STEPS") or 8_000)
# Of a program between two comparisons of everything.
BATCH = 200


class RandomMemory(wanderers.TestCase):
    def begin(self, count, mib):
        self.programs = []
        for _ in range(count):
            program = subprocess.Popen(
                [stack.PROGRAMS / "random_memory", str(self.random.randrange(2**32)), "steps", str(mib)],
                env=self.daemon.local_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True)
            self.addCleanup(self.end, program)
            self.programs.append(program)
        self.done = {program: 0 for program in self.programs}
        self.compared = {}
        self.happened = collections.Counter()

    @staticmethod
    def end(program):
        program.kill()
        program.communicate()

    def send(self, program):
        program.stdin.write(f"{BATCH}\n")
        program.stdin.flush()
        self.done[program] += BATCH

    def receive(self, program):
        line = program.stdout.readline()
        # Else it says what was wrong.
        self.assertTrue(line.startswith(f"at {self.done[program]} "), f"{line}{self.daemon.log_tail(60)}")
        self.compared[program] = int(line.split()[2])

    def try_control(self, name, *words):
        """Whether it was done; reasons that are no fault: another has the addresses, or there is no room."""
        done = self.daemon.consortctl(*words)
        # What happened may be seen before all is cleared away.
        reasons = ("addresses are another", "the device has not the memory", "has no worker that is ready")
        self.assertTrue(done.returncode == 0 or any(reason in done.stderr for reason in reasons),
                        f"{words}: {done.stdout}{done.stderr}\n{self.daemon.log_tail(60)}")
        self.happened[name if done.returncode == 0 else f"no {name}"] += 1
        return done.returncode == 0

    def migrate(self, program):
        [device] = self.device_of(program)
        stack.wait_for(lambda: self.try_control("move", "migrate", f"pid:{program.pid}", "--to", str(1 - device)),
                       "a device with room")

    def checkpoint(self, program):
        folder = f"{self.folder}/{program.pid}"
        if self.try_control("checkpoint", "checkpoint", f"pid:{program.pid}", folder):
            stack.wait_for(lambda: self.try_control("restore", "restore", f"pid:{program.pid}", "--to",
                                                    str(self.random.randrange(2))), "a device with room")

    def kill(self):
        """One of the two workers; those that were at rest go on."""
        pids = {program.pid for program in self.programs}
        stack.wait_for(lambda: pids <= {session["pid"] for session in self.sessions() if session["outlives_worker"]},
                       lambda: f"programs at rest\n{self.daemon.log_tail()}")
        device = self.random.choice(self.status()["devices"])
        os.kill(device["worker_pid"], signal.SIGKILL)
        stack.wait_for(lambda: all(now["state"] == "ready" and now.get("worker_pid") not in (None, device["worker_pid"])
                                   for now in self.status()["devices"] if now["index"] == device["index"]) and
                       pids == {session["pid"] for session in self.sessions() if session["state"] == "open"},
                       f"all to go on\n{self.daemon.log_tail()}")
        self.happened["kill"] += 1

    def run_steps(self, *what_happens):
        """Something happens to one program while all work, or, with the worker's end, between: each as often."""
        coming = []
        while coming or sum(self.done.values()) < STEPS:
            coming = coming or self.random.sample(what_happens, len(what_happens))
            for program in self.programs:
                self.send(program)
            time.sleep(self.random.random() * 0.05)
            coming.pop()(self.random.choice(self.programs))
            for program in self.programs:
                self.receive(program)
        for program in self.programs:
            self.passes(program)
        print(f"\n    {sum(self.done.values())} steps, {sum(self.compared.values()) >> 20} MiB compared, "
              f"{dict(sorted(self.happened.items()))}", end="")

    def test_moved_and_held_and_without_their_workers(self):
        self.start("--keep-memory", "on")
        self.begin(2, 16)

        def kill(_):
            for program in self.programs:
                self.receive(program)
            self.kill()
            for program in self.programs:
                self.send(program)

        self.run_steps(self.migrate, self.checkpoint, kill)

    def test_moved_and_held_and_swapped(self):
        self.start("--device-memory", "40MiB", "--swap-pageable", "256MiB")
        self.begin(4, 14)
        self.run_steps(self.migrate, self.checkpoint)


if __name__ == "__main__":
    unittest.main(verbosity=2)
