#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzzers that a build lists, each for a bounded time, and the canary that must be found.

Reads fuzz_targets.txt of the build folder (a line for each folder of inputs: the fuzzer's name, the folder, absolute
or in the build folder). A fuzzer first runs those, then new inputs. What it finds worth keeping goes to
<build>/corpus/<name> and is used by later runs, a crashing input to <build>/artifacts/. `canary_fuzz` has a planted bug: it passes when it crashes.

Exit status: 0 all passed, 1 a fuzzer failed or the canary was not found, 2 nothing to run.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time

CANARY = "canary_fuzz"
# The planted bug takes under two seconds; a slow, busy machine gets far more.
CANARY_SECONDS = 60
# Our decoders bound what they allocate; 2 GiB leaves room for the sanitizers' shadow.
RSS_MIB_MAX = 2048
# One input, in seconds: this is a hang. A decoder is linear in the input; LLVM, unoptimised and under sanitizers, takes some
# 15 seconds of the processor for the largest kernel of the instruction table.
INPUT_SECONDS_MAX = 120


def read_targets(build):
    """The folders of inputs of each fuzzer of a build folder, by name."""
    targets = {}
    for line in (build / "fuzz_targets.txt").read_text().splitlines():
        name, folder = line.split(" ", 1)
        targets.setdefault(name, []).append(build / folder)
    return targets


def run_target(build, name, inputs, seconds, prefix=()):
    """Runs one fuzzer, by the words of `prefix`. Returns (passed, one line of report, output)."""
    found = build / "corpus" / name
    found.mkdir(parents=True, exist_ok=True)
    artifacts = build / "artifacts"
    artifacts.mkdir(exist_ok=True)
    for folder in inputs:
        if not folder.is_dir():
            return False, f"no corpus folder {folder}", ""
    seeds = sum(1 for folder in inputs for entry in folder.rglob("*") if entry.is_file())
    is_canary = name == CANARY
    # libFuzzer keeps what it finds in the first folder. The canary's is emptied: an input kept from the last
    # run would prove nothing.
    if is_canary:
        for entry in found.iterdir():
            entry.unlink()
    folders = [str(found), *map(str, inputs)]
    limit = CANARY_SECONDS if is_canary else seconds
    common = [f"-rss_limit_mb={RSS_MIB_MAX}", f"-timeout={INPUT_SECONDS_MAX}",
              f"-artifact_prefix={artifacts / name}-", "-print_final_stats=1"]
    program = str(build / "fuzz" / name)
    started = time.monotonic()
    try:
        replay = subprocess.run([*prefix, program, *common, "-runs=0", *folders], capture_output=True, text=True,
                                errors="replace", timeout=limit + 300)
        if replay.returncode != 0:
            return False, "FAILED on an input of its corpus", replay.stdout + replay.stderr
        fuzz = subprocess.run([*prefix, program, *common, f"-max_total_time={limit}", *folders], capture_output=True,
                              text=True, errors="replace", timeout=limit + 300)
    except subprocess.TimeoutExpired as error:
        return False, f"did not end within {error.timeout:.0f} s", ""
    took = time.monotonic() - started
    output = fuzz.stdout + fuzz.stderr
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", output)
    runs = int(runs.group(1)) if runs else 0
    detail = f"{seeds} seeds, {runs} runs, {took:.1f} s"
    if is_canary:
        if "AddressSanitizer: heap-buffer-overflow" in output:
            return True, f"planted bug found: {detail}", output
        return False, f"planted bug NOT found: {detail}", output
    if fuzz.returncode != 0:
        return False, f"FAILED: {detail}", output
    if runs == 0:
        return False, f"FAILED: it ran no input ({detail})", output
    return True, detail, output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder of the fuzz preset")
    parser.add_argument("--seconds", type=int, default=60, help="fuzzing time of each target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="fuzzers that run at a time")
    parser.add_argument("names", nargs="*", help="only these fuzzers (the canary always runs)")
    args = parser.parse_args()

    build = args.build.resolve()
    targets = read_targets(build)
    for name in args.names:
        if name not in targets:
            print(f"no fuzzer '{name}'; there are: {' '.join(sorted(targets))}", file=sys.stderr)
            return 2
    if CANARY not in targets:
        print(f"{CANARY} is not in {build / 'fuzz_targets.txt'}: nothing shows that the rig works", file=sys.stderr)
        return 2
    if args.names:
        targets = {name: inputs for name, inputs in targets.items() if name in (*args.names, CANARY)}

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=args.jobs) as pool:
        futures = {pool.submit(run_target, build, name, inputs, args.seconds): name for name, inputs in targets.items()}
        for future in concurrent.futures.as_completed(futures):
            passed, report, output = future.result()
            print(f"{'ok  ' if passed else 'FAIL'} {futures[future]}: {report}", flush=True)
            if not passed:
                failed += 1
                print(output[-8000:], file=sys.stderr)
    print(f"fuzzers: {len(targets) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
