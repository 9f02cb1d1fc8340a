#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/swapping.py: applications whose memory does not fit a GPU together, and one that does not fit it alone.

    tests/bench/swapping.py [--build DIR] [--device auto|nvidia|cpu] [--limit MIB] [--mib MIB] [--phases N] [--phase SECONDS]

The GPU's memory is limited to --limit. Four `working_set`s of --mib each, which are half of their time on the CPU, run one after another, two
by two (which fits) and all at once (which does not); then `matrix_chain`, whose matrices are one and a half times the limit
(Becchi et al., HPDC 2012, have both cases). Each compares every word. Beside the times: what a second of swapping moved, by consortd's
counters, and what a copy of pinned memory does in the same run. No number is judged; a wrong word is.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

import sizes
from build_kind import build_kind

HERE = pathlib.Path(__file__).resolve().parent
APPLICATIONS = 4
SECONDS_MAX = 300
PROBE_PASSES = 64
PROBES = 3
# As sizes.py wants them.
SIZES = {"limit": (40960, 40, "MiB of the device"), "mib": (17408, 17, "of an application"), "phases": (3, 2, "of an application"),
         "phase": (1.5, 0.1, "seconds of a phase on the device")}
# Less than this of each tier of the store is kept for contents that change places, or stays unused (host/memory/memory_broker.cc).
STORE_SPARE_MIB = 256
# A matrix is at most so much of the limit: a product needs one and two panels.
CHAIN_PARTS = 10


def metric_sum(text, name):
    """Over its labels."""
    return sum(float(value) for value in re.findall(rf"(?m)^{name}(?:\{{[^}}]*\}})? (\S+)$", text))


class Bench:
    def __init__(self, options, daemon):
        self._options, self._daemon = options, daemon

    def _run(self, name, *words, socket=None):
        """What it says; `socket`: its tenant's."""
        done = subprocess.run([self._options.build / "programs" / name, *map(str, words)], env=self._daemon.local_environment(socket),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{name} {words}: {done.returncode} {done.stdout}{done.stderr}\n{self._daemon.log_tail()}")
        return done.stdout

    def _device_seconds(self, *words):
        return float(re.search(r"of them ([\d.]+) s for the device", self._run("working_set", *words)).group(1))

    def shape(self):
        """The words of a working_set that is --phase seconds on the device in each phase and as long on the CPU."""
        # The daemon may still be making pinned memory, which slows the first ones.
        few, many = (min(self._device_seconds(self._options.mib, 1, passes, 0) for _ in range(PROBES)) for passes in (1, PROBE_PASSES))
        each = max((many - few) / (PROBE_PASSES - 1), many / PROBE_PASSES / 2)
        passes = max(1, round(self._options.phase / each))
        return self._options.mib, self._options.phases, passes, round(passes * each * 1000)

    def at_once(self, count, words):
        """Seconds for all of APPLICATIONS, `count` at a time; and what they say of their time for the device, summed up."""
        device = 0.0
        with concurrent.futures.ThreadPoolExecutor(count) as threads:
            begun = time.monotonic()
            for first in range(0, APPLICATIONS, count):
                device += sum(threads.map(lambda _: self._device_seconds(*words), range(first, first + count)))
            return time.monotonic() - begun, device

    def swapped(self):
        """{direction: (bytes, seconds)} so far, of all devices."""
        with urllib.request.urlopen(self._daemon.metrics_url(), timeout=10) as answer:
            text = answer.read().decode()
        return {way: tuple(metric_sum(text, f"consort_swap_{way}_{what}_total") for what in ("bytes", "seconds")) for way in ("out", "in")}

    def pinned(self):
        """{direction, or both at once: GB/s}"""
        said = self._run("working_set", "rate", min(1024, self._options.mib))
        return {way: float(re.search(rf"pinned {way} ([\d.]+) GB/s", said).group(1)) for way in ("out", "in", "both")}

    def chain(self, socket):
        """(matrices, MiB of each, what it says)"""
        mib = max(1, self._options.limit // CHAIN_PARTS)
        side = int((mib * 2**20 / 4) ** 0.5) // 256 * 256
        count = -(-self._options.limit * 3 // 2 * 2**20 // (side * side * 4))
        return count, side * side * 4 / 2**20, self._run("matrix_chain", side, count, socket=socket)


def gib(mib):
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def measure(options, device):
    """The lines of the tables, and {what: number}."""
    sys.path.insert(0, str(HERE.parent / "e2e"))
    os.environ["CONSORT_BUILD"] = str(options.build.resolve())
    import stack
    with contextlib.ExitStack() as ends:
        folder = pathlib.Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="swapping-")))
        tenants = folder / "tenants.toml"
        # An application may have more than the device only if its tenant says so.
        tenants.write_text(f'[[tenant]]\nname = "chain"\nsocket = "{folder}/chain.sock"\nmemory_hard = "{2 * options.limit}MiB"\n', "utf-8")
        daemon = ends.enter_context(stack.Daemon(folder, device=device, metrics="127.0.0.1:0", verbose=0, arguments=(
            "--tenants", tenants, "--device-memory", f"{options.limit}MiB", "--swap-pinned", f"{options.limit + STORE_SPARE_MIB}MiB",
            "--swap-pageable", f"{options.limit + STORE_SPARE_MIB}MiB")))
        bench = Bench(options, daemon)
        numbers = {}
        words = bench.shape()
        rates = bench.pinned()
        for count in (1, 2, APPLICATIONS):
            before = bench.swapped()
            numbers[f"{count} at once, s"], numbers[f"{count} at once, s for the device"] = bench.at_once(count, words)
            after = bench.swapped()
        moved = {way: [b - a for a, b in zip(before[way], after[way])] for way in after}
        count, mib, said = bench.chain(folder / "chain.sock")
        chain_moved = {way: bench.swapped()[way][0] - after[way][0] for way in after}
        daemon.stop()
    each, two, alone = (numbers[f"{n} at once, s"] for n in (APPLICATIONS, 2, 1))
    lines = [
        f"{APPLICATIONS} applications of {gib(options.mib)} on a {device} device limited to {gib(options.limit)}, each {words[1]} phases of "
        f"{words[3] / 1000:.2f} s on the device and as long on the CPU, {build_kind(options.build)}:", "",
        "| how | seconds | of two by two | of one after another |", "|---|---|---|---|",
        *(f"| {how} | {seconds:.2f} | {seconds / two:.2f} | {seconds / alone:.2f} |"
          for how, seconds in (("one after another", alone), ("two by two", two), ("all at once", each))), "",
        f"one after another {numbers['1 at once, s for the device'] / alone:.2f} of the time is for the device", "",
        "| swapped while all ran | GiB | GB/s | pinned copy, GB/s | part of it |", "|---|---|---|---|---|"]
    for way, (size, seconds) in moved.items():
        rate = size / seconds / 1e9 if seconds else 0.0
        lines.append(f"| {way} | {size / 2**30:.2f} | {rate:.1f} | {rates[way]:.1f} | {rate / rates[way]:.2f} |")
        numbers |= {f"swap {way}, GB/s": rate, f"pinned {way}, GB/s": rates[way]}
    lines.append(f"| pinned copies both ways at once | | | {rates['both']:.1f} | |")
    lines += ["", f"matrix_chain, {count} matrices of {gib(mib)}: {said.splitlines()[0]}; swapped "
              + ", ".join(f"{way} {size / 2**30:.2f} GiB" for way, size in chain_moved.items())]
    return lines, numbers


def main():
    options = sizes.arguments(__doc__, SIZES).parse_args()
    lines, numbers = measure(options, sizes.fill(options, SIZES))
    print(*lines, sep="\n")
    if options.benchmark_out:
        options.benchmark_out.write_text(json.dumps(numbers, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
