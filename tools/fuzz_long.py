#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs fuzzers on all cores of a machine for a given time, through crashes, and says what came of it.

    fuzz_long.py --build DIR --seconds N [--jobs N] [--seeds FOLDER]... [--out FOLDER] [NAME[=SHARE]...]

DIR is a build folder of the fuzz preset, or an unpacked tests/gpu/kit.py that was packed with --fuzz. NAME is a fuzzer
(default: those of PTX and of fat binaries); processes are shared out by SHARE (default 1), at least one each. The canary
runs first: if its planted bug is not found, nothing else is run.

All processes of a fuzzer begin with its committed inputs, those that the build made, and FOLDER/<NAME> of each
--seeds; FOLDER is what fuzz_seeds wrote, or OUT/corpus of an earlier run. They share what they find. One that ends on
an input is started again. Its input is kept, and it counts as a crash even if it ran out of memory or took too long, by the time of
a processor: an input that only waited for one while others had it is tried again by itself and not counted.

OUT (default: <build>/long) gets corpus/<NAME>/, new inputs; crashes/, crashing ones, each with a report of the first
that ended in the same place; logs/. SIGINT and SIGTERM end the run early, with its summary.

Exit status: 0 nothing crashed, 1 something did or a fuzzer ran nothing, 2 nothing could be run.
"""

import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import run_fuzz

DEFAULT_SHARES = {"ptx_jit_fuzz": 6, "ptx_parse_fuzz": 1, "image_fuzz": 1}
# LLVM keeps some memory of each compilation: room for an hour of a process.
RSS_MIB_MAX = 4096
# A process starts anew after so long, with all that the others found.
ROUND_SECONDS = 3600
# From the end of the time until a process is killed: libFuzzer looks at the clock between two inputs.
GRACE_SECONDS = 20
LOOK_SECONDS = 0.1
# Frames of a report that say whether two crashes are the same. The first ones are the sanitizer's and abort()'s.
FRAMES = 14


def crash_place(log):
    """What tells crashes apart: the kind, and the functions or places in the program on the way there."""
    kind = re.search(r"^SUMMARY: (\S+ \S+)", log, re.MULTILINE)
    frames = re.findall(r"^ *#\d+ 0x[0-9a-f]+ (?:in )?(.*)$", log, re.MULTILINE)[:FRAMES]
    return (kind.group(1) if kind else "no summary", *(re.sub(r"^\((.*/)?", "(", frame) for frame in frames))


class Fuzzer:
    """The processes of one fuzzer."""

    def __init__(self, name, options, inputs):
        self.name = name
        self.processes = 0
        self.executions = 0
        self.coverage = 0  # edges, the most that one process saw
        self.cpu_seconds = 0.0
        self.crashes = {}  # how many, by place
        self._program = options.build / "fuzz" / name
        self._inputs = inputs
        self._corpus = options.out / "corpus" / name
        self._crashes = options.out / "crashes"
        self._logs = options.out / "logs"
        self._lock = threading.Lock()
        for folder in (self._corpus, self._crashes, self._logs):
            folder.mkdir(parents=True, exist_ok=True)
        self._had = len(list(self._corpus.iterdir()))

    def found(self):
        return len(list(self._corpus.iterdir())) - self._had

    def _command(self, seconds):
        return [*without_random_addresses(), str(self._program), f"-max_total_time={seconds}",
                f"-rss_limit_mb={RSS_MIB_MAX}", f"-timeout={run_fuzz.INPUT_SECONDS_MAX}", "-print_final_stats=1",
                f"-report_slow_units={run_fuzz.INPUT_SECONDS_MAX}", f"-artifact_prefix={self._crashes / self.name}-",
                str(self._corpus), *map(str, self._inputs)]

    def run(self, index, end, stop):
        """One process after the other until `end` (of the monotonic clock) or `stop` is set."""
        while not stop.is_set() and (left := end - time.monotonic()) >= 1:
            log_path = self._logs / f"{self.name}-{index}.log"
            with open(log_path, "wb") as log:
                process = subprocess.Popen(self._command(int(min(left, ROUND_SECONDS))), stdin=subprocess.DEVNULL,
                                           stdout=log, stderr=log, start_new_session=True)
                status, cpu_seconds = wait(process, end, stop)
            self._read(log_path.read_text("utf-8", "replace"), status, cpu_seconds)

    def _read(self, log, status, cpu_seconds):
        executions = re.search(r"stat::number_of_executed_units:\s*(\d+)", log)
        had_no_processor = status != 0 and self._had_no_processor(log)
        pulses = re.findall(r"^#(\d+)\t.* cov: (\d+) ", log, re.MULTILINE)
        with self._lock:
            self.cpu_seconds += cpu_seconds
            self.executions += int(executions.group(1)) if executions else int(pulses[-1][0]) if pulses else 0
            self.coverage = max([self.coverage, *(int(covered) for _, covered in pulses)])
            if status == 0 or had_no_processor:
                return
            place = crash_place(log)
            self.crashes[place] = self.crashes.get(place, 0) + 1
            if self.crashes[place] > 1:
                return
            number = len(self.crashes)
        (self._crashes / f"{self.name}-{number}.report").write_text(log[-65536:], "utf-8")
        print(f"{self.name}: crash {number}: {' | '.join(place)[:1000]}", flush=True)

    def _had_no_processor(self, log):
        """Whether the log ends with an input that took too long by the clock, but takes not by itself; that is removed."""
        told = re.search(r"^==\d+== ERROR: libFuzzer: timeout after", log, re.MULTILINE)
        written = re.search(r"Test unit written to (\S+-timeout-\S+)", log)
        if told is None or written is None:
            return False
        seconds = run_fuzz.INPUT_SECONDS_MAX
        limited = ["sh", "-c", f'ulimit -t {seconds}; exec "$@"', "sh", *without_random_addresses(), str(self._program)]
        try:
            done = subprocess.run([*limited, f"-timeout={100 * seconds}", written.group(1)], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=100 * seconds)
        except subprocess.TimeoutExpired:
            return False
        if done.returncode == 0:
            os.remove(written.group(1))
        return done.returncode == 0


def without_random_addresses():
    """Old address sanitizers find no room for their shadow where the kernel spreads addresses over more than 28 bits."""
    words = ["setarch", "-R"]
    try:
        return words if subprocess.run([*words, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0 else []
    except FileNotFoundError:
        return []


def wait(process, end, stop):
    """The exit status, which is 0, too, where the process had to be ended because the time was over, and seconds of a processor."""
    def ended(within):
        """Seconds of a processor; None: it has not ended."""
        until = time.monotonic() + within
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid != 0:
                process.returncode = os.waitstatus_to_exitcode(status)
                return usage.ru_utime + usage.ru_stime
            if time.monotonic() > until:
                return None
            time.sleep(LOOK_SECONDS)

    while not stop.is_set() and time.monotonic() <= end + GRACE_SECONDS:
        if (used := ended(1)) is not None:
            return process.returncode, used
    for how in (signal.SIGINT, signal.SIGKILL):
        os.killpg(process.pid, how)
        if (used := ended(GRACE_SECONDS)) is not None:
            return 0, used
    return 0, 0.0


def share_out(jobs, shares):
    """Processes of each name: one, and the rest where there are the fewest for the share."""
    counts = dict.fromkeys(shares, 1)
    for _ in range(jobs - len(shares)):
        counts[min(shares, key=lambda name: counts[name] / shares[name])] += 1
    return counts


def read_shares(words):
    shares = {}
    for word in words:
        name, _, share = word.partition("=")
        if share and not (share.isdigit() and int(share) > 0):
            raise ValueError(f"{word}: a share is a whole number above 0")
        shares[name] = int(share or 1)
    return shares or dict(DEFAULT_SHARES)


def summary(fuzzers, seconds):
    hours = sum(fuzzer.cpu_seconds for fuzzer in fuzzers) / 3600
    print(f"{'fuzzer':20} processes core-hours executions     edges  new inputs  crashes (places)")
    for fuzzer in fuzzers:
        print(f"{fuzzer.name:20} {fuzzer.processes:9} {fuzzer.cpu_seconds / 3600:10.2f} {fuzzer.executions:10} {fuzzer.coverage:9} "
              f"{fuzzer.found():11}  {sum(fuzzer.crashes.values())} ({len(fuzzer.crashes)})")
    print(f"{seconds:.0f} s, {hours:.2f} core-hours, {sum(fuzzer.executions for fuzzer in fuzzers)} executions, "
          f"{sum(len(fuzzer.crashes) for fuzzer in fuzzers)} places that crash", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seeds", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="NAME[=SHARE]")
    options = parser.parse_args()
    options.build = options.build.resolve()
    options.out = (options.out or options.build / "long").resolve()

    targets = run_fuzz.read_targets(options.build)
    try:
        shares = read_shares(options.names)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for name in (run_fuzz.CANARY, *shares):
        if name not in targets:
            print(f"no fuzzer '{name}'; there are: {' '.join(sorted(targets))}", file=sys.stderr)
            return 2
    for folder in options.seeds:
        if not any((folder / name).is_dir() for name in shares):
            print(f"{folder} has no folder called as one of {' '.join(shares)}", file=sys.stderr)
            return 2

    # What else runs here goes first.
    os.nice(10)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    begun = time.monotonic()
    found, report, output = run_fuzz.run_target(options.build, run_fuzz.CANARY, targets[run_fuzz.CANARY], run_fuzz.CANARY_SECONDS,
                                                without_random_addresses())
    print(f"{run_fuzz.CANARY}: {report}", flush=True)
    if not found:
        print(output[-8000:], file=sys.stderr)
        return 2
    fuzzers = []
    threads = []
    counts = share_out(options.jobs, shares)
    for name in shares:
        seeds = [folder / name for folder in options.seeds if (folder / name).is_dir()]
        fuzzer = Fuzzer(name, options, [*targets[name], *seeds])
        fuzzer.processes = counts[name]
        fuzzers.append(fuzzer)
        threads += [threading.Thread(target=fuzzer.run, args=(index, begun + options.seconds, stop)) for index in range(counts[name])]
    for thread in threads:
        thread.start()
    # A signal that comes just before an unbounded wait for a thread would be heard after it.
    for thread in threads:
        while thread.is_alive():
            thread.join(LOOK_SECONDS)
    summary(fuzzers, time.monotonic() - begun)
    good = all(fuzzer.executions > 0 and not fuzzer.crashes for fuzzer in fuzzers)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
