#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/admission.py: programs that together want more of a GPU's memory than there is, under every order of admission.

    tests/bench/admission.py --build DIR [--out FOLDER] [--device auto|nvidia|cpu] [--instances N] [--limit MIB]
    tests/bench/admission.py --from FOLDER/results.csv --out FOLDER      tables and plots only

In the manner of schedGPU (TPDS 2018): instances of one program, first one at a time, then all at once, for programs that use the GPU for
a low, a moderate and a high share of their time. Each is `working_set ... free`, which has memory only while it uses the GPU, checks
every word, and computes on the CPU otherwise. They want a third, two thirds or the whole of --mib; the GPU's memory is limited to --limit.
Three tenants, of priorities 0 to 2, have a third of the instances each; an allocation waits for room.

Speedup: the time of all one at a time by that of all at once. No number is judged; a wrong word is.
"""

import collections
import concurrent.futures
import csv
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import sizes
from build_kind import build_kind

HERE = pathlib.Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE.parent / "experiments"), str(HERE.parent / "e2e")]
import plots  # noqa: E402  pylint: disable=wrong-import-position

ALONE = "one at a time"
ORDERS = ("fifo", "mmu", "priority-fifo", "priority-mmu")
# Share of an instance's time alone that it uses the GPU.
CLASSES = {"low": 0.03, "moderate": 0.07, "high": 0.6}
TENANTS = 3
STEPS = 3
INSTANCE_SECONDS_MAX = 120
# As sizes.py wants them.
SIZES = {"instances": (12, 3, ""), "mib": (6144, 6, "of the largest instances"), "limit": (16384, 14, "MiB of the device for all"),
         "seconds": (1.2, 0.3, "of an instance alone"), "phases": (4, 2, ""), "probe_passes": (40, 8, "")}


@dataclasses.dataclass(frozen=True)
class Row:
    use: str
    order: str
    instances: int
    seconds: float          # all of them
    device: float           # of that, kernels were on the GPU
    memory: float           # mean share of the limit that they held
    for_memory: float       # mean time that an instance waited for memory and made it
    for_memory_first: float  # likewise, of the tenant with the highest priority


class Bench:
    def __init__(self, options, device):
        import stack  # reads CONSORT_BUILD
        self._stack = stack
        self._options = options
        self._device = device
        self._program = options.build / "programs" / "working_set"
        self._costs = {}
        self._ended = 0  # programs of the present daemon

    def _mib(self, index):
        return max(1, self._options.mib * (index // TENANTS % STEPS + 1) // STEPS)

    def _run(self, folder, daemon, index, words):
        done = subprocess.run([self._program, *map(str, words), "free"], capture_output=True, text=True, check=False,
                              env=daemon.local_environment(f"{folder}/tenant{index % TENANTS}.sock"), timeout=INSTANCE_SECONDS_MAX)
        found = re.search(r"([\d.]+) s, of them ([\d.]+) s for the device, ([\d.]+) s for memory", done.stdout)
        if done.returncode != 0 or not found:
            raise RuntimeError(f"{words}: {done.returncode} {done.stdout}{done.stderr}\n{daemon.log_tail()}")
        return tuple(map(float, found.groups()))

    def _measure(self, folder, daemon):
        """For each size the seconds that a phase takes on the device when it is alone: (at least, each pass more)."""
        for index in range(0, STEPS * TENANTS, TENANTS):
            mib = self._mib(index)
            self._run(folder, daemon, index, (mib, 1, 1, 0))
            few, many = (self._run(folder, daemon, index, (mib, 1, passes, 0))[1] for passes in (1, self._options.probe_passes))
            # The least for passes so short that times tell nothing.
            each = max(many / self._options.probe_passes / 2, (many - few) / (self._options.probe_passes - 1))
            self._costs[mib] = (max(0.0, few - each), each)
            self._ended += 3

    def _shape(self, use, index):
        mib = self._mib(index)
        phase = self._options.seconds / self._options.phases
        least, each = self._costs[mib]
        passes = max(1, round((phase * CLASSES[use] - least) / each))
        return mib, self._options.phases, passes, round(phase * (1 - CLASSES[use]) * 1000)

    def _all(self, folder, daemon, use, order):
        count = self._options.instances
        # A line comes soon after its program's end.
        daemon.wait_for_account(lambda lines: len(lines) == self._ended)
        with concurrent.futures.ThreadPoolExecutor(1 if order == ALONE else count) as threads:
            begin = time.monotonic()
            ended = list(threads.map(lambda index: self._run(folder, daemon, index, self._shape(use, index)), range(count)))
            seconds = time.monotonic() - begin
        self._ended += count
        lines = daemon.wait_for_account(lambda lines: len(lines) == self._ended)[-count:]
        limit = self._options.limit << 20
        first = [one[2] for index, one in enumerate(ended) if index % TENANTS == TENANTS - 1]
        return Row(use, order, count, round(seconds, 3), round(sum(line["device_seconds"] for line in lines), 3),
                   round(sum(line["memory_byte_seconds"] for line in lines) / limit / seconds, 4),
                   round(sum(one[2] for one in ended) / count, 4), round(sum(first) / len(first), 4))

    def run(self):
        rows = []
        for order in ORDERS:
            with tempfile.TemporaryDirectory(prefix="admission-") as folder:
                tenants = pathlib.Path(folder, "tenants.toml")
                tenants.write_text("".join(
                    f'[[tenant]]\nname = "tenant{i}"\nsocket = "{folder}/tenant{i}.sock"\npriority = {i}\n'
                    f'memory_wait_seconds = {INSTANCE_SECONDS_MAX}\n' for i in range(TENANTS)), "utf-8")
                arguments = ("--tenants", tenants, "--device-memory", f"{self._options.limit}MiB", "--admission", order)
                self._ended = 0
                with self._stack.Daemon(folder, device=self._device, verbose=0, arguments=arguments) as daemon:
                    if not self._costs:
                        self._measure(folder, daemon)
                        rows += [self._all(folder, daemon, use, ALONE) for use in CLASSES]
                    rows += [self._all(folder, daemon, use, order) for use in CLASSES]
                    daemon.stop()
            print(*rows[-len(CLASSES):], sep="\n", file=sys.stderr, flush=True)
        return rows


def speedups(rows):
    """{use: {order: speedup}}"""
    alone = {row.use: row.seconds for row in rows if row.order == ALONE}
    table = collections.defaultdict(dict)
    for row in rows:
        table[row.use][row.order] = alone[row.use] / row.seconds
    return table


def summary(rows):
    table = speedups(rows)
    lines = ["| GPU use | order | all took s | speedup | GPU busy | memory held | waited for memory s | of priority 2 s |", "|---|" + "---|" * 7]
    for row in sorted(rows, key=lambda row: list(CLASSES).index(row.use)):
        lines.append(f"| {row.use} | {row.order} | {row.seconds:.2f} | {table[row.use][row.order]:.2f} | {row.device / row.seconds:.0%} "
                     f"| {row.memory:.0%} | {row.for_memory:.3f} | {row.for_memory_first:.3f} |")
    return "\n".join(lines) + "\n"


def plot(rows, out):
    pyplot = plots.pyplot()
    if pyplot is None:
        return
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    of = {(row.use, row.order): row for row in rows}
    table = speedups(rows)
    for axes, what, values in (
            (left, "speedup over one at a time", {order: [table[use][order] for use in CLASSES] for order in ORDERS}),
            (right, "GPU busy, %", {order: [100 * of[use, order].device / of[use, order].seconds for use in CLASSES]
                                    for order in ORDERS})):
        plots.grouped_bars(axes, [f"{use} use" for use in CLASSES], values, rotation=0)
        axes.set_ylabel(what)
        axes.legend(fontsize="small")
    figure.savefig(out / "admission.png", dpi=80)
    pyplot.close(figure)


def main():
    parser = sizes.arguments(__doc__, SIZES)
    parser.add_argument("--out", type=pathlib.Path, help="default: bench/admission of the build")
    parser.add_argument("--from", type=pathlib.Path, dest="results", help="results.csv of an earlier run, instead of one")
    options = parser.parse_args()
    out = options.out or options.build / "bench" / "admission"
    out.mkdir(parents=True, exist_ok=True)
    if options.results:
        with open(options.results, newline="", encoding="utf-8") as file:
            rows = [Row(**{field.name: field.type(row[field.name]) for field in dataclasses.fields(Row)}) for row in csv.DictReader(file)]
    else:
        os.environ["CONSORT_BUILD"] = str(options.build.resolve())
        rows = Bench(options, sizes.fill(options, SIZES)).run()
        with open(out / "results.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(field.name for field in dataclasses.fields(Row))
            writer.writerows(dataclasses.astuple(row) for row in rows)
    if options.benchmark_out:
        options.benchmark_out.write_text(json.dumps([dataclasses.asdict(row) for row in rows]) + "\n")
    text = summary(rows)
    if not options.results:
        text = f"{build_kind(options.build)}\n\n{text}"
    (out / "summary.md").write_text(text, "utf-8")
    print(text)
    plot(rows, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
