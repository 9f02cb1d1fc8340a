#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/placement.py: pairs of programs on the GPUs of one host, under every placement policy.

    tests/bench/placement.py --build DIR [--out FOLDER] [--pairs N|NAMES] [--limit SECONDS] [--device auto|nvidia|cpu]
    tests/bench/placement.py --from FOLDER/results.csv --out FOLDER      tables and plots only

The pairs, and how much of a cycle each program copies, computes on the GPU and on the CPU, are those of
tests/experiments/workloads.py; docs/EXPERIMENTS.md says where they come from. Here they are processes of sharing_bench, whose kernels
and copies have the lengths that this machine's GPU 0 was measured to need for that balance. Arrivals are negative
exponential from a fixed seed; every variant of a pair has the same ones:

  native           without Consort, all on GPU 0, as programs do that never choose
  static-process   through Consort, likewise: policy static, a worker an application. What the others are compared with
  POLICY-packed    placed by that policy, the applications of a GPU in one worker; POLICY-process: a worker each

All but `native` are tenants of one consortd, whose pool is this host. Before the first pair each program runs a few times, so that
feedback policies have a history; that counts apart, and only their programs go by the names that it is kept under. Time is from
arrival, before the process is made, to its end. No number is judged.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import csv
import dataclasses
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from build_kind import build_kind
from balance import Rates
from compare import has_gpu

HERE = pathlib.Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE.parent / "experiments"), str(HERE.parent / "e2e")]
import plots  # noqa: E402  pylint: disable=wrong-import-position
import run as experiments  # noqa: E402  pylint: disable=wrong-import-position
import workloads  # noqa: E402  pylint: disable=wrong-import-position

NATIVE = "native"
BASE = "static-process"
FEEDBACK = experiments.FEEDBACK
VARIANTS = (NATIVE, BASE, "static-packed", "grr-packed", "gmin-packed", "gwtmin-packed",
            *(f"{policy}-packed" for policy in FEEDBACK), "gmin-process", "mbf-process")
# Diverse ones first, for runs that have no time for all 24.
PAIRS = [pair for first in range(5) for pair in workloads.PAIRS[first::5]]
APPLICATION_SECONDS_MAX = 60
WARM_ROUNDS = 3  # a program is known from two on
# Four unequal ones, for machines without GPUs.
CPU_DEVICES = "".join(f'name="CPU {speed}" memory=2GiB speed={speed}{more}\n'
                      for speed, more in ((1, ""), (0.5, " count=2"), (0.25, "")))


@dataclasses.dataclass(frozen=True)
class Ended:
    pair: str
    variant: str
    program: str
    index: int
    arrived: float
    seconds: float  # from arrival to end
    worked: float   # of these, from when it was ready until its work was done
    device: int


class Bench:
    def __init__(self, options, folder, enter):
        import pool_hosts  # they read CONSORT_BUILD
        import network
        self._options = options
        self._folder = folder
        self.gpu = options.device != "cpu" and has_gpu()
        self._trace = {pair: arrivals(options, pair) for pair in options.pairs}
        applications_max = max(len(trace) for trace in self._trace.values())
        self._tenants = {}
        with open(folder / "tenants.toml", "w", encoding="utf-8") as file:
            for variant in VARIANTS[1:]:
                policy, isolation = variant.split("-")
                count = applications_max if isolation == "process" else 1
                self._tenants[variant] = [f"{variant}-{i}" for i in range(count)]
                for name in self._tenants[variant]:
                    file.write(f'[[tenant]]\nname = "{name}"\nsocket = "{folder}/{name}.sock"\n'
                               f'placement = "{policy}"\nisolation = "{isolation}"\n')
        self._names = folder / "programs"
        self._names.mkdir()
        for program in options.programs:
            for name in (program.name, f"{program.name}-other"):
                shutil.copy(options.program, self._names / name)
        devices = folder / "devices"
        devices.write_text(CPU_DEVICES, "utf-8")
        hosts = pool_hosts.Hosts(enter, network.Loopback(), 1, members=1)
        self._daemon = hosts.start(0, devices=devices, device="nvidia" if self.gpu else "cpu", verbose=0, arguments=[
            "--tenants", folder / "tenants.toml", "--scheduler", options.scheduler, "--pool-vgpus", "1"])
        hosts.wait_for_nodes(0)
        self.rates = Rates(options.programs, options.copy_mib, lambda shape: self._launch("static-packed", options.programs[0], 0, shape))

    def _launch(self, variant, program, index, shape):
        if variant == NATIVE:
            environment = dict(os.environ)
        else:
            tenants = self._tenants[variant]
            environment = self._daemon.local_environment(f"{self._folder}/{tenants[index % len(tenants)]}.sock")
        name = program.name if variant.split("-")[0] in FEEDBACK else f"{program.name}-other"
        return subprocess.Popen([self._names / name, *shape], env=environment, text=True, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE)

    def _application(self, variant, program, index, at):
        """(pid, seconds, worked) of one that arrives at `at`."""
        seconds = self._options.seconds * (1 if program in workloads.LONG else self._options.short)
        shape, cycles = self.rates.shape(program, seconds, self._options.cycle_ms / 1000)
        time.sleep(max(0.0, at - time.monotonic()))
        process = self._launch(variant, program, index, shape)
        watchdog = threading.Timer(APPLICATION_SECONDS_MAX, process.kill)
        watchdog.start()
        with process.stdout:
            process.stdin.write(f"work {cycles}\n")
            process.stdin.close()
            words = process.stdout.read().split()
        status = process.wait()
        end = time.monotonic()
        watchdog.cancel()
        if status != 0 or words[:2] != ["ready", "done"]:
            raise RuntimeError(f"{variant}: {program.name} ended with {status}\n{self._daemon.log_tail()}")
        return process.pid, end - at, float(words[3])

    def warm(self):
        """Each program alone on a GPU, as far as there are as many."""
        programs = self._options.programs * WARM_ROUNDS
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            for job in [threads.submit(self._application, f"{FEEDBACK[0]}-packed", program, 0, time.monotonic())
                        for program in programs]:
                job.result()
        self._settle()
        time.sleep(1.5)  # measurements are told to the mapper each second

    def _settle(self):
        """Until consortd has seen the end of all applications, and of the workers that were theirs alone."""
        import stack
        stack.wait_for(lambda: not json.loads(self._daemon.control("status", "-o", "json"))["sessions"],
                       "the end of all sessions")

    def run(self, pair, variant):
        before = len(self._daemon.account())
        trace = self._trace[pair]
        begin = time.monotonic() + 0.1
        with concurrent.futures.ThreadPoolExecutor(len(trace)) as threads:
            jobs = [threads.submit(self._application, variant, program, index, begin + at)
                    for index, (at, program, _) in enumerate(trace)]
            ended = [job.result() for job in jobs]
        device_of = {}
        if variant != NATIVE:
            self._settle()
            device_of = {line["pid"]: line["device_index"] for line in self._daemon.account()[before:]}
        return [Ended(pair_name(pair), variant, program.name, number, round(at, 6), round(seconds, 6), worked,
                      device_of.get(pid, 0))
                for (at, program, number), (pid, seconds, worked) in zip(trace, ended)]


def pair_name(pair):
    return f"{pair[0].name}-{pair[1].name}"


def chosen_pairs(text):
    if text.isdigit():
        return PAIRS[:int(text)]
    return [{pair_name(pair): pair for pair in PAIRS}[name] for name in text.split(",")]


def arrivals(options, pair):
    """[(seconds, program, number)], ascending: each program `load` times in the time that it takes alone."""
    horizon = options.count * options.seconds / options.load
    trace = []
    for program, alone in zip(pair, (options.seconds, options.seconds * options.short)):
        random_gap = random.Random(f"{options.seed} {pair_name(pair)} {program.name}")
        at = 0.0
        for number in range(round(horizon / (alone / options.load))):
            at += random_gap.expovariate(options.load / alone)
            trace.append((at, program, number))
    return sorted(trace, key=lambda each: each[0])


def speedups(rows, base, time_of):
    """{variant: {pair: speedup over `base`}}, of the pairs that have all variants."""
    times = collections.defaultdict(lambda: collections.defaultdict(dict))
    for row in rows:
        times[row.variant][row.pair][(row.program, row.index)] = time_of(row)
    return {variant: {pair: experiments.speedup(times[base][pair], of_pair[pair]) for pair in of_pair}
            for variant, of_pair in times.items()}


def summary(rows, facts):
    whole = speedups(rows, BASE, lambda row: row.seconds)
    worked = speedups(rows, BASE, lambda row: row.worked)
    native = speedups(rows, NATIVE, lambda row: row.seconds) if any(row.variant == NATIVE for row in rows) else None
    lines = [facts, "", f"| variant | speedup over {BASE} | least to most of the pairs | without starting and ending | over {NATIVE} "
             "| mean time s | of that, work s | applications on GPU 0, 1, ... |", "|---|" + "---|" * 7]
    for variant, by_pair in whole.items():
        of_variant = [row for row in rows if row.variant == variant]
        on = collections.Counter(row.device for row in of_variant)
        lines.append(
            f"| {variant} | {statistics.fmean(by_pair.values()):.2f} | {min(by_pair.values()):.2f} to {max(by_pair.values()):.2f} "
            f"| {statistics.fmean(worked[variant].values()):.2f} "
            f"| {f'{statistics.fmean(native[variant].values()):.2f}' if native else ''} "
            f"| {statistics.fmean(row.seconds for row in of_variant):.3f} "
            f"| {statistics.fmean(row.worked for row in of_variant):.3f} "
            f"| {' '.join(str(on[device]) for device in range(max(on) + 1))} |")
    return "\n".join(lines) + "\n"


def plot(rows, out):
    pyplot = plots.pyplot()
    if pyplot is None:
        return
    table = speedups(rows, BASE, lambda row: row.seconds)
    pairs = list(table[BASE])
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(16, 4.5), constrained_layout=True, width_ratios=(1, 3))
    means = [statistics.fmean(by_pair.values()) for by_pair in table.values()]
    left.bar(range(len(table)), means, yerr=[
        [mean - min(by_pair.values()) for mean, by_pair in zip(means, table.values())],
        [max(by_pair.values()) - mean for mean, by_pair in zip(means, table.values())]], capsize=3)
    left.set_xticks(range(len(table)), table, rotation=60, ha="right")
    left.set_ylabel(f"speedup over {BASE}")
    left.set_title("mean, least and most of the pairs")
    shown = [variant for variant in table if variant != BASE and variant.endswith("-packed")]
    plots.grouped_bars(right, pairs, {variant: [table[variant][pair] for pair in pairs] for variant in shown})
    right.set_title("each pair")
    right.set_ylim(top=1.2 * right.get_ylim()[1])
    right.legend(fontsize="small", ncols=len(shown), loc="upper center")
    figure.savefig(out / "placement.png", dpi=80)
    pyplot.close(figure)


def measure(options):
    """The rows of the pairs that there was time for, whether all went well, and what they were measured on."""
    os.environ["CONSORT_BUILD"] = str(options.build.resolve())
    limit = time.monotonic() + options.limit
    rows = []
    with contextlib.ExitStack() as contexts:
        folder = pathlib.Path(contexts.enter_context(tempfile.TemporaryDirectory(prefix="placement-")))
        bench = Bench(options, folder, contexts.enter_context)
        facts = (f"{build_kind(options.build)}, load {options.load:g}, long programs {options.seconds * 1000:.0f} ms, short ones "
                 f"{options.seconds * options.short * 1000:.0f} ms alone; GPU 0: {bench.rates.mib_per_us['in'] * 1048.576:.1f} GB/s in, "
                 f"{bench.rates.mib_per_us['out'] * 1048.576:.1f} out.")
        print(facts, file=sys.stderr, flush=True)
        bench.warm()
        variants = [variant for variant in VARIANTS if variant in options.variants and (bench.gpu or variant != NATIVE)]
        longest = 0.0
        done = 0
        good = True
        for pair in options.pairs:
            begin = time.monotonic()
            if begin + longest > limit:
                break
            try:
                of_pair = [row for variant in variants for row in bench.run(pair, variant)]
            except RuntimeError as error:
                print(f"{pair_name(pair)}: {error}", file=sys.stderr)
                good = False
                continue
            rows += of_pair
            done += 1
            longest = max(longest, time.monotonic() - begin)
            print(f"{pair_name(pair)} {time.monotonic() - begin:.1f} s  " + "  ".join(
                f"{variant} {statistics.fmean(by_pair.values()):.2f}"
                for variant, by_pair in speedups(of_pair, BASE, lambda row: row.seconds).items()), file=sys.stderr, flush=True)
    return rows, good, f"{done} pairs of {len(options.pairs)}, {facts}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent.parent / "build" / "release")
    parser.add_argument("--program", type=pathlib.Path, help="default: bench/sharing_bench of the build")
    parser.add_argument("--out", type=pathlib.Path, help="default: bench/placement of the build")
    parser.add_argument("--device", choices=("auto", "nvidia", "cpu"), default="auto")
    parser.add_argument("--variants", type=lambda text: {BASE, *text.split(",")}, default=VARIANTS, help="of these: " + ",".join(VARIANTS))
    parser.add_argument("--scheduler", default="none", help="of packed applications on a GPU")
    parser.add_argument("--pairs", type=chosen_pairs, default=PAIRS, help="so many of the 24, or their names: DC-BS,SC-MC")
    parser.add_argument("--limit", type=float, default=3600, help="seconds; no pair begins that would not end by then")
    parser.add_argument("--seconds", type=float, default=0.4, help="of a long program alone")
    parser.add_argument("--short", type=float, default=0.5, help="of that, a short one")
    parser.add_argument("--count", type=int, default=4, help="long programs of a pair")
    parser.add_argument("--load", type=float, default=2.0)
    parser.add_argument("--cycle-ms", type=float, default=6)
    parser.add_argument("--copy-mib", type=float, default=64, help="of the copies that are timed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", type=pathlib.Path, dest="results", help="results.csv of an earlier run, instead of one")
    parser.add_argument("--benchmark_out", type=pathlib.Path, help="file for all values, as JSON")
    parser.add_argument("--benchmark_out_format", choices=("json",), default="json")
    options = parser.parse_args()
    options.programs = list(dict.fromkeys(program for pair in options.pairs for program in pair))
    options.program = options.program or options.build / "bench" / "sharing_bench"
    out = options.out or options.build / "bench" / "placement"
    out.mkdir(parents=True, exist_ok=True)
    if options.results:
        with open(options.results, newline="", encoding="utf-8") as file:
            rows = [Ended(**{field.name: field.type(row[field.name]) for field in dataclasses.fields(Ended)})
                    for row in csv.DictReader(file)]
        good, facts = True, options.results.name
    else:
        rows, good, facts = measure(options)
        with open(out / "results.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(field.name for field in dataclasses.fields(Ended))
            writer.writerows(dataclasses.astuple(row) for row in rows)
    if options.benchmark_out:
        options.benchmark_out.write_text(json.dumps({"facts": facts, "rows": [dataclasses.asdict(row) for row in rows]}) + "\n")
    if not rows:
        return 1
    text = summary(rows, facts)
    (out / "summary.md").write_text(text, "utf-8")
    print(text)
    plot(rows, out)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
