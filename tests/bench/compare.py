#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/compare.py: remoting_bench natively and through Consort, in turns, side by side.

    tests/bench/compare.py [--build DIR] [--runs N] [--device auto|nvidia|cpu] [--quick] [--beside FLAG]...
                           [--pytorch auto|off|PYTHON]

Starts a consortd of the build, runs the program through it over its UNIX socket, and natively with
the driver that the loader finds, alternating, and prints medians, spread and ratio as a Markdown
table for docs/PERFORMANCE.md. Without an NVIDIA GPU, or with --device cpu, it runs through Consort
on the CPU device only, and says so. With --beside a second consortd, which has these flags too, takes
its turns beside the first. On a GPU each run also asks what a training step of an MLP and a token of GPT-2 take
(tests/gpu/pytorch_mlp.py, pytorch_gpt2.py), and whether losses, weights and tokens are the same in all ways, bit for bit, by
a Python that has torch and transformers: this one, if it has (auto, the default). `./dev bench remoting` calls it as a Google
Benchmark program is called, so it takes --benchmark_out too and writes every single value there as JSON.

Exit status 0: every run ended well, and PyTorch computed the same everywhere. No number is judged: what must be reached is a
person's business.
"""

import argparse
import collections
import contextlib
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time

from build_kind import build_kind
from turns import TurnTaker, any_processor

HERE = pathlib.Path(__file__).resolve().parent
RUN_SECONDS_MAX = 300
# A row of a program of tests/gpu: what it is asked for, how many units of the row that is, and how often.
PyTorchRow = collections.namedtuple("PyTorchRow", "name program work units turns")
PYTORCH_ROWS = (
    PyTorchRow("pytorch_mlp_step", "pytorch_mlp.py", "mlp", 50, 20),
    PyTorchRow("pytorch_gpt2_token_float32", "pytorch_gpt2.py", "float32", 32, 20),
    PyTorchRow("pytorch_gpt2_token_float16", "pytorch_gpt2.py", "float16", 32, 20),
)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent.parent / "build" / "release")
    parser.add_argument("--program", type=pathlib.Path, help="default: bench/remoting_bench of the build")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", choices=("auto", "nvidia", "cpu"), default="auto")
    parser.add_argument("--quick", action="store_true", help="a tenth of the repetitions, 32 MiB at most")
    parser.add_argument("--beside", action="append", default=[], metavar="FLAG",
                        help="of a second consortd, measured beside the first; may be given again")
    parser.add_argument("--pytorch", metavar="PYTHON", default="auto", help="interpreter for PyTorch's rows; auto (default): this one; off")
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


def find_pytorch(wanted):
    """An interpreter for PyTorch's rows, or None: there are none."""
    if wanted != "auto":
        return None if wanted == "off" else wanted
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"PyTorch's rows are left out: {sys.executable} has no {' and no '.join(missing)}", file=sys.stderr)
    return None if missing else sys.executable


def run_pytorch(python, environments):
    """{way: {name: (milliseconds, unit)}}: the median of each row's turns. A process a program and way, which take turns."""
    values = {way: {} for way in environments}
    for program in dict.fromkeys(row.program for row in PYTORCH_ROWS):
        with contextlib.ExitStack() as until_the_end:
            processes = {way: until_the_end.enter_context(TurnTaker(python, HERE.parent / "gpu" / program, environment))
                         for way, environment in environments.items()}
            for process in processes.values():
                process.wait_until_ready()
            for row in (row for row in PYTORCH_ROWS if row.program == program):
                times = {way: [] for way in processes}
                for _ in range(row.turns):
                    processor = any_processor()
                    for way in random.sample(list(processes), len(processes)):
                        times[way].append(processes[way].take(row.work, processor))
                for way, seconds in times.items():
                    values[way][row.name] = (1000 * statistics.median(seconds) / row.units, "ms")
            if len({process.end() for process in processes.values()}) > 1:
                raise RuntimeError(f"{program} does not compute the same in all ways")
    return values


def amount(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def cell(values):
    """Median, and the spread of the runs."""
    return f"{amount(statistics.median(values))} ({amount(min(values))} to {amount(max(values))})"


def ratio(ours, theirs):
    """Of the medians, and the spread of the pairs."""
    pairs = [a / b for a, b in zip(ours, theirs)]
    return f"{statistics.median(ours) / statistics.median(theirs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})"


def table(native, ways):
    """Markdown. `native`: a list of run_once's values, perhaps empty. `ways`: {name: such a list}."""
    head = ["measure", "unit"] + (["native"] if native else [])
    for way in ways:
        head += [way] + ([f"{way} / native"] if native else [])
    rows = [head, ["---"] * len(head)]
    for name, (_, unit) in next(iter(ways.values()))[0].items():
        theirs = [run[name][0] for run in native]
        row = [f"`{name}`", unit] + ([cell(theirs)] if native else [])
        for runs in ways.values():
            ours = [run[name][0] for run in runs]
            row += [cell(ours)] + ([ratio(ours, theirs)] if native else [])
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
    pytorch = find_pytorch(arguments.pytorch) if gpu else None

    flags = {"Consort": []}
    if arguments.beside:
        flags[f"`{' '.join(arguments.beside)}`"] = arguments.beside
    native, ways, facts = [], {way: [] for way in flags}, []
    with contextlib.ExitStack() as until_the_end:
        daemons = {}
        for way, extra in flags.items():
            folder = until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="consort-"))
            daemons[way] = until_the_end.enter_context(
                stack.Daemon(folder, device="nvidia" if gpu else "cpu", verbose=0, arguments=extra))
        for number in range(arguments.runs):
            begin = time.monotonic()
            # In turns, so that all see the same weather.
            if gpu:
                native.append(run_once(command, dict(os.environ))[0])
            for way, daemon in daemons.items():
                values, facts = run_once(command, daemon.local_environment())
                ways[way].append(values)
            if pytorch:
                environments = {"native": dict(os.environ)} | {way: daemon.local_environment() for way, daemon in daemons.items()}
                for way, values in run_pytorch(pytorch, environments).items():
                    (native if way == "native" else ways[way])[-1].update(values)
            print(f"run {number + 1} of {arguments.runs}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        statuses = [daemon.stop() for daemon in daemons.values()]

    today = datetime.date.today().isoformat()
    if arguments.benchmark_out:
        arguments.benchmark_out.write_text(json.dumps(
            {"date": today, "build": build_kind(arguments.build), "facts": facts, "native": native, "ways": ways}, indent=1) + "\n")
    print(f"{today}, {build_kind(arguments.build)}, {', '.join(facts)}, {os.cpu_count()} cores, Linux {platform.release()}, "
          f"{arguments.runs} runs{' (quick)' if quick else ''}: median (least to most).")
    if gpu:
        print("Ratio of medians (least to most of the pairs): for times less is better, for GB/s more.")
    else:
        print("No NVIDIA GPU: Consort on its CPU device only. This shows that the path works, and nothing about a GPU.")
    print()
    print(table(native, ways))
    return 1 if any(statuses) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"compare: {error}", file=sys.stderr)
        sys.exit(1)
