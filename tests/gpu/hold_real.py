#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/hold_real.py: a real program that is taken off its GPU while it runs must not notice.

    tests/gpu/hold_real.py [--build DIR] [--device nvidia|cpu] [--times N] [--ignore PATTERN] [COMMAND ...]

Runs the command (default: pytorch_mlp.py with many steps) through a consortd of the build, undisturbed, and then again, N times held in
a checkpoint and restored, and on a machine with several GPUs as often moved to the next. What it says must be the same,
but for lines in which PATTERN (^time) is found. Exit status 0: it was, and it was really held each time.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM_SECONDS_MAX = 300


class Trouble(Exception):
    """What is told to whoever called, without a trace."""


def results(said, ignored):
    return [line for line in said.splitlines() if not re.search(ignored, line)]


class Held:
    """The command as a running program of `daemon`."""

    def __init__(self, stack, daemon, command):
        self._stack, self._daemon = stack, daemon
        self._process = subprocess.Popen(command, env=daemon.local_environment(), stdin=subprocess.DEVNULL,
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _session(self, launches=0):
        """Its session that has launched so many kernels where it is now; None: there is none."""
        if self._process.poll() is not None:
            raise Trouble(f"it ended before it was held\n{self._process.communicate()[1]}\n{self._daemon.log_tail()}")
        sessions = json.loads(self._daemon.control("status", "--output", "json"))["sessions"]
        return next((session for session in sessions
                     if session["pid"] == self._process.pid and session["kernel_launches"] >= launches), None)

    def wait_for_kernels(self):
        self._stack.wait_for(lambda: self._session(launches=1), "kernels of the program", PROGRAM_SECONDS_MAX)

    def order(self, *words):
        """What consortctl says of it, and the seconds until it had said it."""
        begun = time.monotonic()
        done = self._daemon.consortctl(words[0], f"pid:{self._process.pid}", *words[1:])
        if done.returncode != 0:
            raise Trouble(f"consortctl {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout.strip(), time.monotonic() - begun

    def devices(self):
        return len(json.loads(self._daemon.control("status", "--output", "json"))["devices"])

    def device(self):
        return self._stack.wait_for(self._session, "the program's session")["device"]

    def end(self):
        try:
            said, errors = self._process.communicate(timeout=PROGRAM_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Trouble(f"it had not ended after {PROGRAM_SECONDS_MAX} s\n{self._daemon.log_tail()}") from None
        if self._process.returncode != 0:
            raise Trouble(f"it ended with {self._process.returncode}\n{said}{errors}\n{self._daemon.log_tail()}")
        return said

    def kill(self):
        self._process.kill()
        self._process.communicate()


def undisturbed(stack, daemon, command):
    """What it says, and the seconds from its first kernel to its end."""
    program = Held(stack, daemon, command)
    try:
        program.wait_for_kernels()
        begun = time.monotonic()
        return program.end(), time.monotonic() - begun
    finally:
        program.kill()


def disturbed(stack, daemon, command, seconds, times, folder):
    """What it says; `seconds`: that it takes undisturbed."""
    program = Held(stack, daemon, command)
    try:
        program.wait_for_kernels()
        for index in range(times):
            time.sleep(seconds / (times + 1) / 2)
            for words in (("checkpoint", f"{folder}/checkpoint{index}"), ("restore",)):
                said, took = program.order(*words)
                print(f"{words[0]}: {took * 1000:.0f} ms: {said.splitlines()[-1] if said else ''}", flush=True)
            time.sleep(seconds / (times + 1) / 4)
            count = program.devices()
            if count > 1:
                said, took = program.order("migrate", "--to", str((program.device() + 1) % count))
                print(f"migrate: {took * 1000:.0f} ms: {said.splitlines()[-1] if said else ''}", flush=True)
        return program.end()
    finally:
        program.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="*", default=[sys.executable, str(HERE / "pytorch_mlp.py"), "6000"])
    parser.add_argument("--build", type=pathlib.Path, help="build folder (default: CONSORT_BUILD or build/dev)")
    parser.add_argument("--device", default="nvidia", choices=("nvidia", "cpu"))
    parser.add_argument("--devices", help="as consortd's, for the CPU device")
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--ignore", default="^time")
    options = parser.parse_args()
    if options.build:
        os.environ["CONSORT_BUILD"] = str(options.build.resolve())
    sys.path.insert(0, str(HERE.parent / "e2e"))
    import stack  # reads CONSORT_BUILD
    arguments = ("--devices", options.devices) if options.devices else ()
    try:
        with tempfile.TemporaryDirectory(prefix="hold-") as folder, \
                stack.Daemon(folder, device=options.device, arguments=arguments) as daemon:
            wanted, seconds = undisturbed(stack, daemon, options.command)
            print(f"undisturbed: {seconds:.1f} s from the first kernel on", flush=True)
            got = disturbed(stack, daemon, options.command, seconds, options.times, folder)
    except Trouble as trouble:
        print(f"hold_real.py: {trouble}", file=sys.stderr)
        return 1
    same = results(wanted, options.ignore) == results(got, options.ignore)
    print("the same" if same else f"it says other things:\n--- undisturbed\n{wanted}--- held\n{got}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
