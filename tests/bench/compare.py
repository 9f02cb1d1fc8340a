#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/compare.py: remoting_bench natively and through Consort, in turns, side by side.

    tests/bench/compare.py [--build DIR] [--runs N] [--device auto|nvidia|cpu] [--quick]

Starts a consortd of the build, runs the program through it over its UNIX socket, and natively with
the driver that the loader finds, alternating, and prints medians, spread and ratio as a Markdown
table for docs/PERFORMANCE.md. Without an NVIDIA GPU, or with --device cpu, it runs through Consort
on the CPU device only, and says so. `./dev bench remoting` calls it as a Google Benchmark program
is called, so it takes --benchmark_out too and writes every single value there as JSON.

Exit status 0: every run ended well. Nothing is judged: what must be reached is a person's business.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

from build_kind import build_kind

HERE = pathlib.Path(__file__).resolve().parent
RUN_SECONDS_MAX = 300


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent.parent / "build" / "release")
    parser.add_argument("--program", type=pathlib.Path, help="default: bench/remoting_bench of the build")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", choices=("auto", "nvidia", "cpu"), default="auto")
    parser.add_argument("--quick", action="store_true", help="a tenth of the repetitions, 32 MiB at most")
    parser.add_argument("--benchmark_out", type=pathlib.Path, help="file for all values, as JSON")
    parser.add_argument("--benchmark_out_format", choices=("json",), default="json")
    return parser.parse_args()


def has_gpu():
    """Whether the driver that the loader finds has a device. Asked of a process of its own, since a
    driver leaves threads behind."""
    code = ("import ctypes, sys; d = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(); "
            "sys.exit(d.cuInit(0) or d.cuDeviceGetCount(ctypes.byref(n)) or n.value == 0)")
    return (os.path.exists("/dev/nvidiactl")
            and subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, check=False).returncode == 0)


def run_once(command, environment):
    """({name: (value, unit)} in the order printed, [facts])."""
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=RUN_SECONDS_MAX, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    values, facts = {}, []
    for line in done.stdout.splitlines():
        if line.startswith("#"):
            facts.append(line[1:].strip())
        else:
            name, value, unit = line.split()
            values[name] = (float(value), unit)
    return values, facts


def amount(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def cell(values):
    """Median, and the spread of the runs."""
    return f"{amount(statistics.median(values))} ({amount(min(values))} to {amount(max(values))})"


def table(native, consort):
    """Markdown. Both are lists of run_once's values; `native` may be empty."""
    head = ["measure", "unit"] + (["native"] if native else []) + ["Consort"] + (["Consort / native"] if native else [])
    rows = [head, ["---"] * len(head)]
    for name, (_, unit) in consort[0].items():
        ours = [run[name][0] for run in consort]
        row = [f"`{name}`", unit]
        if native:
            theirs = [run[name][0] for run in native]
            pairs = [a / b for a, b in zip(ours, theirs)]
            ratio = statistics.median(ours) / statistics.median(theirs)
            row += [cell(theirs), cell(ours), f"{ratio:.2f} ({min(pairs):.2f} to {max(pairs):.2f})"]
        else:
            row.append(cell(ours))
        rows.append(row)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main():
    arguments = parse_arguments()
    os.environ["CONSORT_BUILD"] = str(arguments.build.resolve())
    sys.path.insert(0, str(HERE.parent / "e2e"))
    import stack  # reads CONSORT_BUILD

    program = arguments.program or arguments.build / "bench" / "remoting_bench"
    gpu = arguments.device != "cpu" and has_gpu()
    if arguments.device == "nvidia" and not gpu:
        print("compare: no NVIDIA driver with a device here", file=sys.stderr)
        return 1
    # The CPU device computes and copies at a CPU's pace: sizes that fit it.
    quick = ["--quick"] if arguments.quick or not gpu else []
    command = [str(program), *quick, *(["--big-mib", "32"] if quick else [])]

    native, consort, facts = [], [], []
    with tempfile.TemporaryDirectory(prefix="consort-") as folder:
        with stack.Daemon(folder, device="nvidia" if gpu else "cpu", verbose=0) as daemon:
            for number in range(arguments.runs):
                # In turns, so that both see the same weather.
                if gpu:
                    native.append(run_once(command, dict(os.environ))[0])
                values, facts = run_once(command, daemon.local_environment())
                consort.append(values)
                print(f"run {number + 1} of {arguments.runs}", file=sys.stderr, flush=True)
            status = daemon.stop()

    today = datetime.date.today().isoformat()
    if arguments.benchmark_out:
        arguments.benchmark_out.write_text(json.dumps(
            {"date": today, "build": build_kind(arguments.build), "facts": facts, "native": native, "consort": consort}, indent=1) + "\n")
    print(f"{today}, {build_kind(arguments.build)}, {', '.join(facts)}, {os.cpu_count()} cores, Linux {platform.release()}, "
          f"{arguments.runs} runs{' (quick)' if quick else ''}: median (least to most).")
    if gpu:
        print("Ratio of medians (least to most of the pairs): for times less is better, for GB/s more.")
    else:
        print("No NVIDIA GPU: Consort on its CPU device only. This shows that the path works, and nothing about a GPU.")
    print()
    print(table(native, consort))
    return 0 if status == 0 else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"compare: {error}", file=sys.stderr)
        sys.exit(1)
