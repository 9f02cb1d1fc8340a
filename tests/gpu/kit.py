#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/kit.py: tests and benchmarks for a machine that has GPUs and a driver, but nothing to build Consort with.

    kit.py pack OUT [--build DIR] [--cpu] [--tool PROGRAM]... [--also FOLDER] [--fuzz DIR [--seeds FOLDER] [--only-fuzz]]
    kit.py run STEP[+STEP]... [--out FOLDER] [--limit SECONDS] [--device nvidia|cpu] [--fuzz-OPTION ...]
    kit.py steps

pack makes a folder (or, where OUT ends with .tar.xz, an archive of one) with the programs of a build, the libraries that they need beside the C
and C++ ones, and tests/. --cpu: the CPU device too. --tool: another program, such as etcd for the steps that need it. --also: other people's
programs, built, with a commands.txt that `compat.py commands` reads: its commands run where the kit is unpacked, and find
FOLDER there as also/. --fuzz: the fuzzers that were
built in DIR, a build folder of the fuzz preset, for the step `fuzz`, which needs no GPU; --seeds: further inputs, as fuzz_long.py
takes them; --only-fuzz: without the programs of a build, so that none is needed.

run, from the unpacked folder, does one step after the other, those with + between them at once, and prints a line each:
what it was, how it ended, how long it took, and its last line. What they said goes to FOLDER/report.txt. A step that would
begin after --limit does not; one that still runs then is ended. `fuzz` takes --fuzz-seconds (300), --fuzz-jobs processes
(as many as the machine has cores) and --fuzz-what, the fuzzers with their shares. Exit status 0: all ended well.
"""

import argparse
import concurrent.futures
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent
KIT = TESTS.parent  # where it is unpacked

# Everywhere, or the driver's.
NOT_CARRIED = ("linux-vdso", "ld-linux", "libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so", "libstdc++.so",
               "libgcc_s.so", "libresolv.so", "libcuda.so")
PROGRAMS = ("consortd", "consort-worker", "consortctl", "api_test", "board_links", "delaying_proxy", "vm_front_bench")
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
FUZZ_TOOLS = ("fuzz_long.py", "run_fuzz.py")
WRAPPER = """#!/bin/sh
kit=$(dirname "$(readlink -f "$0")")/..
LD_LIBRARY_PATH=$kit/carried${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$kit/libexec/%s" "$@"
"""

# {device}, {out}, {kit} and what --fuzz-... say are filled in; {seeds} is nothing where the kit has none.
BENCH = "--build {kit} --device {device}"
STEPS = {
    "programs": "tests/e2e/programs_test.py",
    "api": "tests/integration/api_unix.py rings --device={device} --shards=4",
    "also": "tests/compat/compat.py commands {kit}/also/commands.txt --build {kit} --device {device}",
    "real": "tests/gpu/compare_real.py --build {kit} --device {device} --jobs 4 --logs {out}/real",
    "real-fast": "tests/gpu/compare_real.py --build {kit} --device {device} --logs {out}/real --only mlp,gpt2,cupy,jax,graph,conv",
    "nccl": "tests/gpu/compare_real.py --build {kit} --device {device} --jobs 4 --logs {out}/nccl --only nccl",
    "held": "tests/gpu/hold_real.py --build {kit} --device {device}",
    "migrate": "tests/e2e/migrate_test.py",
    "chains": "tests/e2e/chains_test.py",
    "checkpoint": "tests/e2e/checkpoint_test.py",
    "keeper": "tests/e2e/keeper_test.py",
    "redo": "tests/e2e/redo_test.py",
    "binding": "tests/e2e/binding_test.py",
    "peers": "tests/e2e/peer_test.py",
    "peers-api": "tests/integration/api_unix.py rings --device={device} --devices=2 --gtest_filter=Peer*",
    "remoting": f"tests/bench/compare.py {BENCH} --runs 3 --beside=--launch-chains=off",
    "crowd": f"tests/bench/crowd.py {BENCH} --runs 1",
    "eight": f"tests/bench/sharing.py {BENCH} --traces --native eight",
    "weights": f"tests/bench/sharing.py {BENCH} weights",
    "interactive": f"tests/bench/sharing.py {BENCH} interactive",
    "pairs": f"tests/bench/sharing.py {BENCH} pairs --native --seconds 1 --plots {{out}}",
    "admission": f"tests/bench/admission.py {BENCH} --out {{out}}/admission",
    "swapping": f"tests/bench/swapping.py {BENCH}",
    "moving": f"tests/bench/moving.py {BENCH}",
    "placement": f"tests/bench/placement.py {BENCH} --out {{out}}/placement",
    "remote": f"tests/bench/remote.py {BENCH} --quick --gpt2 python3",
    "vmfront": "bin/vm_front_bench --device {device}",
    "fuzz": "tools/fuzz_long.py --build {kit} --seconds {fuzz_seconds} --jobs {fuzz_jobs} {seeds} --out {out}/fuzz {fuzz_what}",
}


class Trouble(Exception):
    """What is told to whoever called, without a trace."""


def needed_libraries(binary):
    """Paths of the shared libraries that it is loaded with and that are not everywhere."""
    said = subprocess.run(["ldd", binary], capture_output=True, text=True, check=False).stdout
    paths = []
    for line in said.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow and not name.startswith(NOT_CARRIED):
            if rest.startswith("not found"):
                raise Trouble(f"{binary} needs {name}, which is not there")
            paths.append(pathlib.Path(rest.split(" (")[0]))
    return paths


class Packer:
    def __init__(self, kit):
        self._kit = kit

    def _carry(self, binary):
        (self._kit / "carried").mkdir(exist_ok=True)
        for path in needed_libraries(binary):
            shutil.copy(path.resolve(), self._kit / "carried" / path.name)

    def program(self, path, folder="bin"):
        """A program that finds its libraries here, wherever this is."""
        if not path.exists():
            raise Trouble(f"{path} is not there: build it first (./dev build release)")
        for name in (folder, "libexec"):
            (self._kit / name).mkdir(exist_ok=True)
        shutil.copy(path, self._kit / "libexec" / path.name)
        wrapper = self._kit / folder / path.name
        wrapper.write_text(WRAPPER % path.name, "utf-8")
        wrapper.chmod(0o755)
        self._carry(path)

    def library(self, path):
        (self._kit / "lib").mkdir(exist_ok=True)
        shutil.copy(path.resolve(), self._kit / "lib" / path.name)
        self._carry(path)

    def folder(self, path, name):
        shutil.copytree(path, self._kit / name, symlinks=True, dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("__pycache__", "*.o", "*.d", "*_runs"))


def pack_fuzzers(packer, kit, build, seeds):
    """Those that were built, laid out as in the build folder, so that fuzz_long.py finds them."""
    lines = []
    targets = build / "fuzz_targets.txt"
    for line in targets.read_text("utf-8").splitlines() if targets.exists() else ():
        name, folder = line.split(" ", 1)
        if not (build / "fuzz" / name).exists():
            continue
        packer.program(build / "fuzz" / name, "fuzz")
        inputs = f"inputs/{name}-{len(lines)}"
        packer.folder(build / folder, inputs)
        lines.append(f"{name} {inputs}\n")
    if not lines:
        raise Trouble(f"no fuzzer is built in {build}: ./dev build fuzz fuzz_targets")
    (kit / "fuzz_targets.txt").write_text("".join(lines), "utf-8")
    for name in FUZZ_TOOLS:
        (kit / "tools").mkdir(exist_ok=True)
        shutil.copy(TESTS.parent / "tools" / name, kit / "tools")
    if seeds:
        packer.folder(seeds, "seeds")


def pack_build(packer, kit, build, cpu):
    for name in PROGRAMS:
        packer.program(build / "bin" / name)
    for name in LIBRARIES + (("libconsort-cpu.so",) if cpu else ()):
        packer.library(build / "lib" / name)
    for name in ("programs", "bench"):
        packer.folder(build / name, name)
    # Scripts say by it which build they measured.
    shutil.copy(build / "CMakeCache.txt", kit)


def pack(options):
    if options.out.exists():
        raise Trouble(f"{options.out} exists")
    if options.only_fuzz and not options.fuzz:
        raise Trouble("--only-fuzz needs --fuzz DIR, a build folder of the fuzz preset")
    archive = options.out.name.endswith(".tar.xz")
    with tempfile.TemporaryDirectory(prefix="kit-", dir=options.out.parent) as folder:
        kit = pathlib.Path(folder, "kit")
        kit.mkdir()
        packer = Packer(kit)
        if not options.only_fuzz:
            pack_build(packer, kit, options.build, options.cpu)
        for name in options.tool:
            found = shutil.which(name)
            if found is None:
                raise Trouble(f"there is no program {name}")
            packer.program(pathlib.Path(found))
        packer.folder(TESTS, "tests")
        if options.also:
            packer.folder(options.also, "also")
        if options.fuzz:
            pack_fuzzers(packer, kit, options.fuzz, options.seeds)
        if archive:
            subprocess.run(["tar", "-C", folder, "-cJf", options.out, "kit"], env=dict(os.environ, XZ_OPT="-6 -T0"), check=True)
        else:
            kit.rename(options.out)
    print(options.out)
    return 0


class Runner:
    def __init__(self, options):
        self._options = options
        self._end = time.monotonic() + options.limit
        self._writing = threading.Lock()
        self._environment = dict(
            os.environ, CONSORT_BUILD=str(KIT), CONSORT_TEST_DEVICE=options.device, PYTHONDONTWRITEBYTECODE="1",
            PATH=f"{KIT / 'bin'}:{os.environ['PATH']}")

    def _run(self, name):
        """(status or why there is none, seconds, what it said)"""
        left = self._end - time.monotonic()
        if left <= 0:
            return "no time", 0.0, ""
        seeds = f"--seeds {KIT / 'seeds'}" if (KIT / "seeds").is_dir() else ""
        words = STEPS[name].format(kit=KIT, device=self._options.device, out=self._options.out, seeds=seeds,
                                   fuzz_seconds=self._options.fuzz_seconds, fuzz_jobs=self._options.fuzz_jobs,
                                   fuzz_what=self._options.fuzz_what).split()
        begun = time.monotonic()
        python = [sys.executable] if words[0].endswith(".py") else []
        process = subprocess.Popen([*python, *words], cwd=KIT, env=self._environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            said, _ = process.communicate(timeout=left)
            status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            status = "cut off"
        return status, time.monotonic() - begun, said.decode(errors="replace")

    def step(self, name):
        status, seconds, said = self._run(name)
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        with self._writing:
            with open(self._options.out / "report.txt", "a", encoding="utf-8") as report:
                report.write(f"=== {name}: {status}, {seconds:.1f} s\n{said}\n")
            result = "ok" if status == 0 else f"status {status}" if isinstance(status, int) else status
            print(f"| {name:12} | {result:9} | {seconds:7.1f} | {(lines or [''])[-1][:100]} |", flush=True)
        return status == 0


def run(options):
    unknown = [name for group in options.steps for name in group.split("+") if name not in STEPS]
    if unknown:
        raise Trouble(f"there is no step {unknown[0]}; there are: {' '.join(STEPS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    options.out = options.out.resolve()
    runner = Runner(options)
    print(f"| {'step':12} | {'ended':9} | seconds | last line |\n|{'-' * 14}|{'-' * 11}|--------:|-----------|", flush=True)
    well = []
    for group in options.steps:
        names = group.split("+")
        with concurrent.futures.ThreadPoolExecutor(len(names)) as threads:
            well += threads.map(runner.step, names)
    return 0 if all(well) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("out", type=lambda text: pathlib.Path(text).resolve())
    packing.add_argument("--build", type=pathlib.Path, default=KIT / "build" / "release")
    packing.add_argument("--cpu", action="store_true")
    packing.add_argument("--tool", action="append", default=[])
    packing.add_argument("--also", type=pathlib.Path)
    packing.add_argument("--fuzz", type=pathlib.Path)
    packing.add_argument("--seeds", type=pathlib.Path)
    packing.add_argument("--only-fuzz", action="store_true")
    running = commands.add_parser("run")
    running.add_argument("steps", nargs="+")
    running.add_argument("--out", type=pathlib.Path, default=pathlib.Path("kit-out"))
    running.add_argument("--limit", type=float, default=3600)
    running.add_argument("--device", choices=("nvidia", "cpu"), default="nvidia")
    running.add_argument("--fuzz-seconds", type=int, default=300)
    running.add_argument("--fuzz-jobs", type=int, default=os.cpu_count())
    running.add_argument("--fuzz-what", default="", metavar="'NAME[=SHARE] ...'")
    commands.add_parser("steps")
    options = parser.parse_args()
    try:
        if options.command == "steps":
            print(*(f"{name:12} {command}" for name, command in STEPS.items()), sep="\n")
            return 0
        return pack(options) if options.command == "pack" else run(options)
    except Trouble as trouble:
        print(f"kit.py: {trouble}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
