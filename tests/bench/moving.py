#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/moving.py: for how long an application stops that goes from one GPU to another while it computes.

    tests/bench/moving.py [--build DIR] [--device auto|nvidia|cpu] [--mib MIB[,MIB]...] [--moves N]

A `working_set` of so much memory launches kernels without a pause, goes back and forth between the first two devices, and compares every
word at its end. Without two GPUs it runs on two CPU devices, which shows that the path works and nothing about GPUs.
No number is judged; a wrong word is.
"""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import sizes
from build_kind import build_kind

HERE = pathlib.Path(__file__).resolve().parent
SECONDS_MAX = 300
PHASE_PASSES = 8
# As sizes.py wants them.
SIZES = {"mib": ("64,1024,8192", "1,8", "MiB of the applications"), "moves": (6, 6, "of each")}


def stops(stack, daemon, program, mib, moves):
    """Milliseconds that each move stopped it."""
    process = subprocess.Popen([program, str(mib), "0", str(PHASE_PASSES), "0"], env=daemon.local_environment(),
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def session():
        """Where it is, once it has launched kernels there."""
        if process.poll() is not None:
            raise RuntimeError(f"it ended too early: {process.stdout.read()}\n{daemon.log_tail()}")
        sessions = json.loads(daemon.control("status", "--output", "json"))["sessions"]
        return next((one for one in sessions if one["pid"] == process.pid and one["kernel_launches"] > 0), None)

    def move_to(device):
        done = daemon.consortctl("migrate", f"pid:{process.pid}", "--to", str(device))
        if "addresses are another application's" in done.stderr:
            return None  # where it has just come from all is still being cleared away
        found = re.search(r"stopped for ([\d.]+) ms", done.stdout)
        if done.returncode != 0 or not found:
            raise RuntimeError(f"it was not moved: {done.stdout}{done.stderr}\n{daemon.log_tail()}")
        return float(found.group(1))

    try:
        stopped = []
        for _ in range(moves):
            to = 1 - stack.wait_for(session, "a program that computes")["device"]
            stopped.append(stack.wait_for(lambda to=to: move_to(to), "free addresses"))
        said, _ = process.communicate(timeout=SECONDS_MAX)  # which ends its input
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"{said}\n{daemon.log_tail()}")
    return stopped


def main():
    options = sizes.arguments(__doc__, SIZES).parse_args()
    sys.path.insert(0, str(HERE.parent / "e2e"))
    os.environ["CONSORT_BUILD"] = str(options.build.resolve())
    import stack
    device = sizes.fill(options, SIZES)
    numbers = {}
    with tempfile.TemporaryDirectory(prefix="moving-") as folder, \
            stack.Daemon(folder, device=device, verbose=0, arguments=() if device == "nvidia" else ("--devices", "2")) as daemon:
        print(f"Moves between two {device} devices, {options.moves} of each size, {build_kind(options.build)}:", "",
              "| memory | stopped for, ms: median | least to most | GiB/s |", "|---|---|---|---|", sep="\n")
        for mib in map(int, options.mib.split(",")):
            stopped = numbers[f"{mib} MiB, ms"] = stops(stack, daemon, stack.PROGRAMS / "working_set", mib, options.moves)
            middle = statistics.median(stopped)
            print(f"| {mib} MiB | {middle:.1f} | {min(stopped):.1f} to {max(stopped):.1f} | {mib / 1024 / middle * 1000:.1f} |", flush=True)
        daemon.stop()
        print("\n".join(line.partition("] ")[2] for line in daemon.log().splitlines() if "until nothing went on" in line))
    if options.benchmark_out:
        options.benchmark_out.write_text(json.dumps(numbers, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
