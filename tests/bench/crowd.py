#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/crowd.py: several processes on one device, natively and through Consort.

    tests/bench/crowd.py [--build DIR] [--runs N] [--processes N] [--device auto|nvidia|cpu]

Packing: so many processes launch kernels of few, some and many blocks at once; what is compared is
how many kernels end in all of them together. Natively the driver gives each process slices of time;
Consort packs them into one context. Idling: so many connected processes that do nothing, and what
part of a core the host's processes take for each of them. Rows as compare.py prints them.

Exit status 0: every process ended well, with the kernels counted on the device.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from build_kind import build_kind
from compare import amount, cell, has_gpu

HERE = pathlib.Path(__file__).resolve().parent
# Blocks of a kernel on a GPU of 132 multiprocessors (H200): a few of them, one each, eight each.
BLOCKS = (16, 132, 1056)
KERNEL_NANOS = 10_000
SECONDS = 2.0
# Processes that start at once take this long to get ready on a bare driver.
READY_SECONDS = 6.0
IDLE_SECONDS = 10.0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent.parent / "build" / "release")
    parser.add_argument("--program", type=pathlib.Path, help="default: bench/crowd_bench of the build")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--device", choices=("auto", "nvidia", "cpu"), default="auto")
    parser.add_argument("--benchmark_out", type=pathlib.Path, help="file for all values, as JSON")
    parser.add_argument("--benchmark_out_format", choices=("json",), default="json")
    return parser.parse_args()


def run_crowd(program, count, environment, arguments, seconds, meanwhile=lambda: None):
    """The kernels of each of `count` processes that begin together."""
    start = time.clock_gettime(time.CLOCK_MONOTONIC) + READY_SECONDS
    command = [str(program), "--start", str(start), "--seconds", str(seconds), *arguments]
    crowd = [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) for _ in range(count)]
    time.sleep(max(0, start - time.clock_gettime(time.CLOCK_MONOTONIC)))
    meanwhile()
    ended = [process.communicate(timeout=READY_SECONDS + 10 * seconds + 60) for process in crowd]
    for process, (_, errors) in zip(crowd, ended):
        if process.returncode != 0:
            raise RuntimeError(f"{program} ended with {process.returncode}\n{errors}")
    return [int(output.split()[1]) for output, _ in ended]


def cpu_seconds(root):
    """User and system time so far of a process and its children that live."""
    total = 0.0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended
        if int(stat.parent.name) == root or int(fields[1]) == root:
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def idle_share(program, count, daemon):
    """Part of a core that the daemon and its workers take for one idle process, in percent."""
    spent = []

    def measure():
        time.sleep(1)  # what they did at the start is over
        before = cpu_seconds(daemon.pid)
        time.sleep(IDLE_SECONDS - 2)
        spent.append(cpu_seconds(daemon.pid) - before)

    run_crowd(program, count, daemon.local_environment(), ["--idle"], IDLE_SECONDS, measure)
    return 100 * spent[0] / (IDLE_SECONDS - 2) / count


def main():
    arguments = parse_arguments()
    os.environ["CONSORT_BUILD"] = str(arguments.build.resolve())
    sys.path.insert(0, str(HERE.parent / "e2e"))
    import stack  # reads CONSORT_BUILD

    program = (arguments.program or arguments.build / "bench" / "crowd_bench").resolve()
    gpu = arguments.device != "cpu" and has_gpu()
    if arguments.device == "nvidia" and not gpu:
        print("crowd: no NVIDIA driver with a device here", file=sys.stderr)
        return 1
    blocks_of = BLOCKS if gpu else (1, 2)
    native = {blocks: [] for blocks in blocks_of}
    consort = {blocks: [] for blocks in blocks_of}
    fairness = {blocks: [] for blocks in blocks_of}
    with tempfile.TemporaryDirectory(prefix="consort-") as folder:
        with stack.Daemon(folder, device="nvidia" if gpu else "cpu", verbose=0) as daemon:
            for run in range(arguments.runs):
                for blocks in blocks_of:
                    work = ["--blocks", str(blocks), "--nanos", str(KERNEL_NANOS)]
                    if gpu:
                        kernels = run_crowd(program, arguments.processes, dict(os.environ), work, SECONDS)
                        native[blocks].append(sum(kernels) / SECONDS)
                    kernels = run_crowd(program, arguments.processes, daemon.local_environment(), work, SECONDS)
                    consort[blocks].append(sum(kernels) / SECONDS)
                    fairness[blocks].append(max(kernels) / max(min(kernels), 1))
                print(f"run {run + 1} of {arguments.runs}", file=sys.stderr, flush=True)
            idle = idle_share(program, arguments.processes, daemon)
            status = daemon.stop()

    today = datetime.date.today().isoformat()
    if arguments.benchmark_out:
        arguments.benchmark_out.write_text(json.dumps(
            {"date": today, "build": build_kind(arguments.build), "native": native, "consort": consort, "fairness": fairness,
             "idle_percent": idle},
            indent=1) + "\n")
    print(f"{today}, {build_kind(arguments.build)}, {arguments.processes} processes at once, {arguments.runs} runs: median (least to most)")
    if not gpu:
        print("No NVIDIA GPU: Consort on its CPU device only. This shows that the path works, and nothing about a GPU.")
    print("\n| kernels of all, a second | native | Consort | Consort / native | fastest / slowest process |")
    print("| --- | --- | --- | --- | --- |")
    for blocks in blocks_of:
        ratio = (amount(sum(consort[blocks]) / sum(native[blocks])) if gpu else "")
        print(f"| {blocks} blocks of {KERNEL_NANOS // 1000} us | {cell(native[blocks]) if gpu else ''} "
              f"| {cell(consort[blocks])} | {ratio} | {cell(fairness[blocks])} |")
    print(f"\nAn idle connected process takes {idle:.3f} % of a core on the host.")
    return 0 if status == 0 else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"crowd: {error}", file=sys.stderr)
        sys.exit(1)
