#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/sharing.py: what tenants of one GPU get, through Consort: a short table each of

  weights      device-time shares of tenants that flood, over windows of 1 s, beside their weights, under the policies that go by
               those; and shares of the work done
  eight        slowdowns of eight tenants of unequal shape and equal time alone: slowest/fastest, Jain, work/makespan
  interactive  latency of a kernel of 100 us every 10 ms beside a flood of 2 ms kernels, which leave nothing, half of each
               multiprocessor or half of the multiprocessors, and what the flood loses
  pairs        weighted speedup (sum of speeds in parts of the speed alone, 1 in turns) of pairs of programs, as processes of their own
               and packed under each policy; programs and pairs are those of tests/experiments/workloads.py
  partitions   speeds of two tenants with multiprocessors of their own, weights 1:3 (NVIDIA's driver only)
  gate         kernels a second of launch-bound code with and without a scheduler, alone and beside another

Programs are sharing_bench.cu's. What is alone is measured with the same processes just before. No number is judged.
"""

import argparse
import contextlib
import datetime
import http.client
import io
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from build_kind import build_kind
from balance import Rates
import schedule_trace

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent.parent / "experiments"))
import plots  # noqa: E402  pylint: disable=wrong-import-position
import workloads  # noqa: E402  pylint: disable=wrong-import-position

READY_SECONDS = 60

# Equal time alone, unequal shape: what binds each is different.
# What each is bound by alone: `memory` by the bandwidth of the device's memory, `copies` by a copy engine, `sync` waits for its thread an
# eighth of its time; the others by the multiprocessors.
EIGHT = {
    "short": "us=30 depth=8",
    "long": "us=1500 depth=2",
    "copies": "us=30 blocks=264 in=32 depth=2",
    "memory": "us=300 memory=1 depth=4",
    "streams": "us=60 streams=8 depth=32",
    "small": "us=600 blocks=66 depth=4",
    "deep": "us=60 depth=256",
    "sync": "us=60 depth=1",
}
BOUND_BY_MULTIPROCESSORS = ("short", "long", "streams", "small", "deep")
POLICIES = ("none", "tfs", "slowdown", "las", "ps")
FAIR_POLICIES = ("tfs", "slowdown")


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("consort", timeout=10)
        self._path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def start(options, shape, environment):
    return subprocess.Popen([options.program, *shape.split()], env=environment, text=True, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE)


class Consort:
    """One consortd, with a UNIX socket a tenant."""

    def __init__(self, options, tenants, policy="tfs"):
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="sharing-")
        folder = self._folder.name
        self.sockets = {name: f"{folder}/{name}.sock" for name in tenants}
        with open(f"{folder}/tenants.toml", "w", encoding="utf-8") as file:
            for name, lines in tenants.items():
                file.write(f'[[tenant]]\nname = "{name}"\nsocket = "{self.sockets[name]}"\n{lines}\n')
        self._admin = f"{folder}/consortd.admin.sock"
        self._log = f"{folder}/log"
        self._process = subprocess.Popen(
            [options.build / "bin" / "consortd", "--socket", f"{folder}/consortd.sock", "--device", options.device,
             "--vsock-port", "off", "--metrics", "off", "--tenants", f"{folder}/tenants.toml", "--scheduler", policy,
             "--trace-folder", f"{folder}/traces"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=open(self._log, "wb"))

    def __enter__(self):
        if self._process.stdout.readline().strip() != b"consortd: ready":
            raise RuntimeError(pathlib.Path(self._log).read_text("utf-8", "replace"))
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    def _get(self, path):
        connection = UnixConnection(self._admin)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read()

    def status(self):
        return json.loads(self._get("/api/v1/status"))

    def _put(self, path, what):
        connection = UnixConnection(self._admin)
        with contextlib.closing(connection):
            connection.request("PUT", path, json.dumps(what))
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(answer.read())

    def set_policy(self, name):
        self._put("/api/v1/scheduler", {"policy": name})

    def begin_trace(self):
        self._put("/api/v1/trace", {"record": True, "bytes_max": "1GiB"})

    def end_trace(self):
        """What the scheduler of device 0 was told of each tenant's application, in the order in which they joined."""
        self._put("/api/v1/trace", {"record": False})  # answered when the files are complete
        files = json.loads(self._get("/api/v1/trace"))["files"]
        return schedule_trace.read(pathlib.Path(next(file["path"] for file in files if file["device"] == 0)).read_text("utf-8"))

    def launch(self, tenant, shape):
        environment = dict(os.environ, CONSORT_ENDPOINT=f"unix:{self.sockets[tenant]}",
                           LD_LIBRARY_PATH=f"{self._options.build / 'lib'}:{self._options.guest_libraries}")
        return start(self._options, shape, environment)

    def program(self, tenant, shape):
        return Program(self.launch(tenant, shape))

    def device_seconds(self):
        return {session["tenant"]: session["device_seconds"] for session in self.status()["sessions"]}


class Program:
    """A sharing_bench that was started. Ready once it is entered."""

    def __init__(self, process):
        self._process = process

    def __enter__(self):
        if self._process.stdout.readline() != "ready\n":
            self._process.kill()
            self._process.wait()
            raise RuntimeError("a program did not start")
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        if self._process.wait() != 0:
            raise RuntimeError("a program failed")
        self._process.stdout.close()

    def begin(self, line):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def end(self):
        """(cycles, seconds, p50, p99)."""
        words = self._process.stdout.readline().split()
        if len(words) != 5:
            raise RuntimeError("a program failed")
        return int(words[1]), *(float(word) for word in words[2:])

    def run(self, line):
        self.begin(line)
        return self.end()

    def rounds(self):
        self.begin("rounds")
        return int(self._process.stdout.readline().split()[1])


def together(programs, line):
    for program in programs:
        program.begin(line)
    return [program.end() for program in programs]


def rate(result):
    return result[0] / result[1]


def native(options, shape):
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    if options.guest_libraries:
        environment["LD_LIBRARY_PATH"] = options.guest_libraries
    return Program(start(options, shape, environment))


def weights(options):
    print("weights: share/target of device time, whole run and worst window of 1 s")
    cases = [((1, 1), "us=200", "us=200"), ((1, 1), "us=60", "us=3000"), ((1, 2, 4), "us=200", "us=200"),
             ((1, 2, 4), "us=60", "us=2000"), ((1, 2, 4, 8), "us=60", "us=2000")]
    for given, first, others in cases:
        names = [f"t{i}" for i in range(len(given))]
        with contextlib.ExitStack() as stack:
            consort = stack.enter_context(
                Consort(options, {name: f"weight = {weight}" for name, weight in zip(names, given)}))
            programs = [stack.enter_context(consort.program(name, f"{first if i == 0 else others} depth=16"))
                        for i, name in enumerate(names)]
            alone = [rate(program.run("time 0.3")) for program in programs]
            for policy in FAIR_POLICIES:
                consort.set_policy(policy)
                for program in programs:
                    program.begin(f"time {max(1, options.seconds) + 1.5}")
                time.sleep(1)  # until all are at it and reported
                samples = [consort.device_seconds()]
                for _ in range(max(1, int(options.seconds))):
                    time.sleep(1)
                    samples.append(consort.device_seconds())
                work = [rate(program.end()) / one for program, one in zip(programs, alone)]
                print_shares(given, f"{first:7} {others:8} {policy:8}", [[used[name] for name in names] for used in samples], work)


def print_shares(given, what, samples, work):
    """`samples`: of device seconds of all so far, by tenant, one second apart. `work`: what each got done."""
    def shares(used):
        return [part / max(1e-9, sum(used)) * sum(given) / weight for part, weight in zip(used, given)]

    def between(before, after):
        return shares([late - early for early, late in zip(before, after)])
    windows = [value for before, after in zip(samples, samples[1:]) for value in between(before, after)]
    print(f"  {':'.join(map(str, given)):8} {what} "
          f"{' '.join(f'{value:.3f}' for value in between(samples[0], samples[-1]))}   "
          f"worst {max(windows, key=lambda value: abs(value - 1)):.3f}   "
          f"of work {' '.join(f'{value:.3f}' for value in shares(work))}", flush=True)


def eight(options):
    print("eight: tenants of equal time alone and unequal shape")
    with contextlib.ExitStack() as stack:
        consort = stack.enter_context(Consort(options, {name: "" for name in EIGHT}))
        programs = {name: stack.enter_context(consort.program(name, shape)) for name, shape in EIGHT.items()}
        alone = {}
        without = {}  # likewise, without Consort
        cycles = {}
        for name, program in programs.items():
            cycles[name] = max(1, int(rate(program.run("time 0.2")) * options.seconds / 3))
            alone[name] = program.run(f"work {cycles[name]}")[1]
        for name, program in programs.items() if options.native else ():
            with native(options, f"{EIGHT[name]} rounds={program.rounds()}") as same:
                same.run("work 2")
                without[name] = same.run(f"work {cycles[name]}")[1]
        if without:
            print(f"  alone, in parts of the time without Consort: "
                  f"{' '.join(f'{name} {alone[name] / seconds:.3f}' for name, seconds in without.items())}", flush=True)
        for policy in ("none", "tfs", "slowdown"):
            consort.set_policy(policy)
            if options.traces:
                consort.begin_trace()
            begin = time.monotonic()
            for name, program in programs.items():
                program.begin(f"work {cycles[name]}")
            slow = {name: program.end()[1] / alone[name] for name, program in programs.items()}
            makespan = time.monotonic() - begin
            values = list(slow.values())
            bound = [slow[name] for name in BOUND_BY_MULTIPROCESSORS]
            print(f"  {policy:8} slowest/fastest {max(values) / min(values):.2f} ({max(bound) / min(bound):.2f} of those bound by the "
                  f"multiprocessors)  slowest {max(values):.2f}  "
                  f"Jain {sum(values) ** 2 / (len(values) * sum(value ** 2 for value in values)):.3f}  "
                  f"work/makespan {sum(alone.values()) / makespan:.3f}"
                  f"{f' ({sum(without.values()) / makespan:.3f} of what it takes without Consort)' if without else ''}   "
                  f"{' '.join(f'{name} {value:.2f}' for name, value in slow.items())}", flush=True)
            if options.traces:
                for name, told in zip(programs, consort.end_trace()):
                    # What it was charged for against what it did: 1 where the worker knows what its work takes alone.
                    print(f"    {name:8} charged {told.alone / alone[name]:.3f} of its time alone; device {told.device:.3f} s   "
                          f"ran {told.running:.2f} s, waited {told.waiting:.2f}, away {told.away:.2f}", flush=True)


def interactive(options):
    print("interactive: 100 us every 10 ms beside a flood of 2 ms kernels of so many blocks; us from launch to end")
    for policy, lines, blocks in (("none", "", 1056), ("tfs", 'stream_priority = "high"', 1056), ("none", "", 528),
                                  ("tfs", 'stream_priority = "high"', 528), ("none", "", 66),
                                  ("tfs", 'stream_priority = "high"', 66)):
        with contextlib.ExitStack() as stack:
            consort = stack.enter_context(Consort(options, {"person": lines, "batch": ""}, policy))
            person = stack.enter_context(consort.program("person", "us=100 blocks=66 period=10000"))
            batch = stack.enter_context(consort.program("batch", f"us=2000 depth=16 blocks={blocks}"))
            quiet = person.run(f"time {options.seconds / 2}")
            before = rate(batch.run(f"time {options.seconds / 2}"))
            batch.begin(f"time {options.seconds + 0.5}")
            time.sleep(0.2)
            beside = person.run(f"time {options.seconds}")
            after = rate(batch.end())
            print(f"  {blocks:4} blocks {policy:5} {lines or 'priority as asked':25} alone p50 {quiet[2]:6.0f} p99 {quiet[3]:6.0f}   "
                  f"beside p50 {beside[2]:6.0f} p99 {beside[3]:6.0f}   batch loses {100 * (1 - after / before):.1f} %",
                  flush=True)


def pairs(options):
    print("pairs: sum of speeds, each in parts of the speed alone without Consort where there is a GPU for that, else with it")
    chosen = workloads.PAIRS[:options.pairs]
    programs = list(dict.fromkeys(program for pair in chosen for program in pair))
    line = f"time {options.seconds / 6}"
    tenants = {f"{program.name}-{isolation}": f'isolation = "{isolation}"'
               for program in programs for isolation in ("packed", "process")}
    with contextlib.ExitStack() as stack:
        consort = stack.enter_context(Consort(options, tenants))
        rates = Rates(programs, options.copy_mib, lambda shape: consort.launch(f"{programs[0].name}-packed", " ".join(shape)))
        cycle = options.cycle_ms / 1000
        shapes = {program.name: " ".join(rates.shape(program, cycle, cycle)[0]) for program in programs}
        started = {way: {name: stack.enter_context(native(options, shape) if way == "native" else consort.program(f"{name}-{way}", shape))
                         for name, shape in shapes.items()}
                   for way in (("native",) if options.native else ()) + ("process", "packed")}
        for programs_of in started.values():
            for program in programs_of.values():
                program.run("work 2")
        alone = {name: rate(program.run(line)) for name, program in started["native" if options.native else "packed"].items()}
        table = {}
        for pair in chosen:
            names = [program.name for program in pair]

            def speedup(way, names=names):
                return sum(rate(result) / alone[name]
                           for name, result in zip(names, together([started[way][name] for name in names], line)))
            row = {way: speedup(way) for way in started if way != "packed"}
            for policy in POLICIES:
                consort.set_policy(policy)
                row[policy] = speedup("packed")
            table["-".join(names)] = row
    columns = list(next(iter(table.values())))
    print(f"  {'':7} " + " ".join(f"{column:>8}" for column in columns) + "   cycle in kernels, of each")
    for pair, (name, row) in zip(chosen, table.items()):
        parts = " ".join(f"{program.cycles * program.kernel_ms / 1000 / program.alone_seconds():4.2f}" for program in pair)
        print(f"  {name:7} " + " ".join(f"{value:8.2f}" for value in row.values()) + f"   {parts}")
    print(f"  {'mean':7} " + " ".join(f"{statistics.fmean(row[column] for row in table.values()):8.2f}" for column in columns), flush=True)
    if options.plots:
        plot_pairs(table, options.plots)


def plot_pairs(table, folder):
    pyplot = plots.pyplot()
    if pyplot is None:
        return
    columns = list(next(iter(table.values())))
    figure, axes = pyplot.subplots(figsize=(13, 4.5), constrained_layout=True)
    plots.grouped_bars(axes, list(table), {column: [row[column] for row in table.values()] for column in columns})
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_ylabel("weighted speedup over running in turns")
    axes.set_ylim(0, 1.12 * max(value for row in table.values() for value in row.values()))
    axes.legend(ncols=len(columns), fontsize="small")
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "sharing_pairs.png", dpi=80)
    pyplot.close(figure)


def partitions(options):
    print("partitions: launches a second of kernels that fill the device, weights 1:3")
    if options.device == "cpu":
        print("  the CPU device has none")
        return
    with contextlib.ExitStack() as stack:
        consort = stack.enter_context(Consort(
            options, {name: f'isolation = "partition"\nweight = {weight}' for name, weight in (("one", 1), ("three", 3))},
            "none"))
        programs = [stack.enter_context(consort.program(name, "rounds=4000 depth=16")) for name in ("one", "three")]
        alone = [rate(program.run(f"time {options.seconds / 2}")) for program in programs]
        beside = [rate(result) for result in together(programs, f"time {options.seconds}")]
        print(f"  alone {alone[0]:.0f} {alone[1]:.0f}  beside each other {beside[0]:.0f} {beside[1]:.0f}", flush=True)


def gate(options):
    print("gate: launches a second of kernels of 1 block and 2 us, 16 a cycle, synchronised after each 64")
    shape = "us=2 blocks=1 kernels=16 depth=4"
    line = f"time {options.seconds / 2}"
    with contextlib.ExitStack() as stack:
        consort = stack.enter_context(Consort(options, {"one": "", "two": ""}))
        one = stack.enter_context(consort.program("one", shape))
        two = stack.enter_context(consort.program("two", shape))
        one.run(line)
        for name, programs in (("alone", [one]), ("two", [one, two])):
            best = {"none": 0.0, "tfs": 0.0}
            for _ in range(3):  # by turns, so that what else the machine does hits both
                for policy in best:
                    consort.set_policy(policy)
                    best[policy] = max(best[policy], sum(16 * rate(result) for result in together(programs, line)))
            print(f"  {name:6} none {best['none']:9.0f}  tfs {best['tfs']:9.0f}  "
                  f"costs {100 * (1 - best['tfs'] / best['none']):.1f} %", flush=True)


class Kept(io.TextIOBase):
    """Standard output, and all that was written to it."""

    def __init__(self):
        super().__init__()
        self.text = ""

    def write(self, text):
        self.text += text
        return sys.__stdout__.write(text)

    def flush(self):
        sys.__stdout__.flush()


def main():
    scenarios = {"weights": weights, "eight": eight, "interactive": interactive, "pairs": pairs, "partitions": partitions,
                 "gate": gate}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="*", choices=[[], *scenarios], help="default: all")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, help="default: bench/sharing_bench of the build")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=3, help="of the longest part of each scenario")
    parser.add_argument("--pairs", type=int, default=len(workloads.PAIRS), help="so many of the experiments'")
    parser.add_argument("--cycle-ms", type=float, default=10, help="of a pair's programs, alone")
    parser.add_argument("--copy-mib", type=int, default=32, help="whose copies say how fast the pairs' are")
    parser.add_argument("--traces", action="store_true", help="eight: also what the scheduler knew, by its trace")
    parser.add_argument("--plots", type=pathlib.Path, help="folder for a plot of the pairs")
    parser.add_argument("--guest-libraries", default="", help="more folders of the programs' library path")
    parser.add_argument("--native", action="store_true", help="eight and the pairs without Consort too")
    parser.add_argument("--benchmark_out", type=pathlib.Path, help="file for the lines of the tables, as JSON")
    parser.add_argument("--benchmark_out_format", choices=("json",), default="json")
    options = parser.parse_args()
    options.program = options.program or options.build / "bench" / "sharing_bench"
    with contextlib.redirect_stdout(Kept()) as kept:
        print(f"{datetime.date.today().isoformat()}, {build_kind(options.build)}")
        for name in options.scenario or scenarios:
            scenarios[name](options)
    if options.benchmark_out:
        options.benchmark_out.write_text(json.dumps({"lines": kept.text.splitlines()}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
