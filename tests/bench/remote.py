#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/remote.py: a program whose GPU another host of its pool has, beside one whose host has it.

    tests/bench/remote.py [--build DIR] [--runs N] [--device auto|nvidia|cpu] [--late-us N] [--gpt2 PYTHON] [--quick]

Two consortds on this machine, of which only the second has a device, linked by TCP over loopback with TLS:

  native    without Consort, where there is a GPU
  local     a program of the second host, over its UNIX socket
  remote    a program of the first host
  late      likewise, with a proxy between the hosts that keeps each byte for half of --late-us, each way

The rows are remoting_bench's, in turns. With --gpt2, a Python that has torch and transformers: the time in which
tests/gpu/pytorch_gpt2.py generates 32 tokens, after a first time that loads the libraries' kernels; one process a column, which
take turns, in another order each time, since times of Python drift by more than a way costs. What the added time costs is said by one
process alone, since two differ by more than that: behind a proxy that keeps its bytes for no time (`proxy`) and for half of
--late-us (`late`), by turns. Then, how often each waits for an answer in that, and the ratios of times of the same turn.
Exit status 0: every run ended well, and all generated the same tokens. No number is judged.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import time

from build_kind import build_kind
from compare import cell, has_gpu, run_once
from turns import TurnTaker

HERE = pathlib.Path(__file__).resolve().parent
GPT2 = HERE.parent / "gpu" / "pytorch_gpt2.py"
GPT2_ROUNDS = 30
GPT2_TYPES = ("float32", "float16")
REPORT_SECONDS = 1.5  # after which consortd knows what a session did
PROXY_PORT = 7011


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent.parent / "build" / "release")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--device", choices=("auto", "nvidia", "cpu"), default="auto")
    parser.add_argument("--late-us", type=float, default=100, help="added to a round trip")
    parser.add_argument("--gpt2", metavar="PYTHON")
    parser.add_argument("--quick", action="store_true", help="a tenth of the repetitions, 32 MiB at most")
    parser.add_argument("--benchmark_out", type=pathlib.Path, help="file for all values, as JSON")
    parser.add_argument("--benchmark_out_format", choices=("json",), default="json")
    return parser.parse_args()


def start_hosts(enter, number, gpu, late_seconds):
    """(near, far, proxy): hosts of one pool, of which the far one has the device, each way so far from the other.
    `proxy`: None without such a way."""
    import network  # they read CONSORT_BUILD
    import pool_hosts
    hosts = pool_hosts.Hosts(enter, network.Loopback(number), 2, members=1)
    advertise = proxy = None
    if late_seconds:
        proxy = network.start_delaying_proxy(hosts.network, 0, PROXY_PORT, f"{hosts.network.address(1)}:7010", late_seconds)
        enter(contextlib.closing(Ended(proxy)))
        advertise = f"{hosts.network.address(0)}:{PROXY_PORT}"
    near = hosts.start(0, devices=0, verbose=0)
    far = hosts.start(1, devices=1, device="nvidia" if gpu else "cpu", advertise=advertise, verbose=0,
                      arguments=["--pool-vgpus", "1"])
    hosts.wait_for_nodes(0, 1)
    return near, far, proxy


class Ended:
    """A process that ends with a block."""

    def __init__(self, process):
        self._process = process

    def close(self):
        self._process.kill()
        self._process.communicate()


def answers(daemon):
    """For how many calls the programs that it serves have waited so far."""
    time.sleep(REPORT_SECONDS)
    return sum(session["round_trips"] for session in json.loads(daemon.control("status", "--output", "json"))["sessions"])


def generate(python, environments, servers, set_late):
    """{type: {column: [seconds], in the order of turns}}, {type: {column: answers of one generation}}, {digests of the tokens}.
    `servers`: who serves a column's process. set_late(whether): for the process of the column `late`, which is that of `proxy`
    otherwise. One at a time does anything."""
    columns = [*environments, "proxy"]
    times, waits = ({name: {column: [] for column in columns} for name in GPT2_TYPES} for _ in range(2))
    with contextlib.ExitStack() as stack:
        processes = {}
        for column, environment in environments.items():
            processes[column] = stack.enter_context(TurnTaker(python, GPT2, environment))
        for column, process in processes.items():
            process.wait_until_ready()
            print(f"gpt2 {column} is ready", file=sys.stderr, flush=True)
        processes["proxy"] = processes["late"]
        for name in GPT2_TYPES:
            for column, server in servers.items():
                before = answers(server)
                processes[column].take(name)
                waits[name][column] = answers(server) - before
            for _ in range(GPT2_ROUNDS):
                for column in random.sample(columns, len(columns)):
                    if column in ("proxy", "late"):
                        set_late(column == "late")
                    times[name][column].append(processes[column].take(name))
        return times, waits, {processes[column].end() for column in environments}


def turn_ratios(columns, base):
    """[(column, median, lower quartile, upper quartile)] of each turn's time in parts of that of `base`."""
    for column, values in columns.items():
        if column != base:
            low, middle, high = statistics.quantiles([value / other for value, other in zip(values, columns[base])], n=4)
            yield column, middle, low, high


def table(columns, base, rows):
    """Markdown. rows: [(name, unit, {column: values})]; the ratio of each column to `base` is of the medians."""
    lines = [["measure", "unit", *columns, *(f"{column} / {base}" for column in columns if column not in (base, "native"))]]
    lines.append(["---"] * len(lines[0]))
    for name, unit, values in rows:
        medians = {column: statistics.median(values[column]) for column in columns}
        lines.append([f"`{name}`", unit, *(cell(values[column]) for column in columns),
                      *(f"{medians[column] / medians[base]:.2f}" for column in columns if column not in (base, "native"))])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main():
    arguments = parse_arguments()
    os.environ["CONSORT_BUILD"] = str(arguments.build.resolve())
    sys.path.insert(0, str(HERE.parent / "e2e"))
    gpu = arguments.device != "cpu" and has_gpu()
    if arguments.device == "nvidia" and not gpu:
        print("remote: no NVIDIA driver with a device here", file=sys.stderr)
        return 1
    quick = ["--quick", "--big-mib", "32"] if arguments.quick or not gpu else []
    command = [str(arguments.build / "bench" / "remoting_bench"), *quick]
    with contextlib.ExitStack() as contexts:
        near, far, _ = start_hosts(contexts.enter_context, 0, gpu, 0)
        late, late_far, proxy = start_hosts(contexts.enter_context, 1, gpu, arguments.late_us / 2e6)
        # PyTorch counts GPUs by NVML, which knows of all that the machine has.
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        environments = {"native": dict(os.environ)} if gpu else {}
        environments |= {"local": far.local_environment(), "remote": near.local_environment(), "late": late.local_environment()}
        columns = list(environments)
        measured, units = {}, {}
        for run in range(arguments.runs):
            for column, environment in environments.items():
                for name, (value, unit) in run_once(command, environment)[0].items():
                    measured.setdefault(name, {}).setdefault(column, []).append(value)
                    units[name] = unit
            print(f"run {run + 1} of {arguments.runs}", file=sys.stderr, flush=True)
        rows = [(name, units[name], values) for name, values in measured.items()]
        digests, said = set(), []
        if arguments.gpt2:
            servers = {"local": far, "remote": far, "late": late_far}
            import network  # as start_hosts does
            times, waits, digests = generate(arguments.gpt2, environments, servers,
                                             lambda late: network.set_delay(proxy, arguments.late_us / 2e6 if late else 0))
            for name, values in times.items():
                rows.append((f"gpt2_32_tokens_{name}", "ms", {column: [1000 * value for value in turns] for column, turns in values.items()}))
                said.append(f"{name}: answers waited for: " + ", ".join(f"{column} {count}" for column, count in waits[name].items()))
                for base in (column for column in ("native", "local", "remote", "proxy") if column in values):
                    said.append(f"{name}: of {base}'s time in the same turn, median (quartiles): " + ", ".join(
                        f"{column} {middle:.3f} ({low:.3f} to {high:.3f})" for column, middle, low, high in turn_ratios(values, base)))
    print(f"{datetime.date.today().isoformat()}, {build_kind(arguments.build)}, {os.cpu_count()} cores, "
          f"Linux {platform.release()}, {arguments.runs} runs"
          f"{' (quick)' if quick else ''}: median (least to most). late: {arguments.late_us:g} us added to a round trip.")
    if not gpu:
        print("No NVIDIA GPU: the CPU device only. This shows that the path works, and nothing about a GPU.")
    print("\n" + table(columns, "local", rows))
    if said:
        print("\nGPT-2, 32 tokens\n" + "\n".join(said))
    if arguments.benchmark_out:
        arguments.benchmark_out.write_text(json.dumps({name: values for name, _, values in rows}, indent=1) + "\n")
    if len(digests) > 1:
        print("remote: the tokens are not the same everywhere", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.SubprocessError) as error:
        print(f"remote: {error}", file=sys.stderr)
        sys.exit(1)
