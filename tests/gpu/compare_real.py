#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/compare_real.py: real programs natively and through Consort, and what differs.

    tests/gpu/compare_real.py [--build DIR] [--endpoint E --library-dir DIR] [--only NAMES] [--logs DIR]
                              [--python PYTHON] [--seconds N] [--repeat N] [--jobs N] [COMMAND-LINE-FILE]

Every program of this folder, or every line of the file (shell words; `name: command`), is run twice: with the
driver that the loader finds, and with Consort's library. Without --endpoint a consortd of the build is
started, on the machine's GPU, for each program anew. A program says its results in lines; those that begin
with `time` are left out, the others are compared. The table says

    PASS   both ended with 0 and said the same
    CLOSE  both ended with 0 and their numbers agree within 1e-5 relative
    DIFF   both ended with 0 and their results differ: the worst outcome
    FAIL   it ran natively and not through Consort
    NATIVE it does not run natively on this machine: nothing is said of Consort

and what Consort's library said that it does not support. Exit status 0: no DIFF and no FAIL.
"""

import argparse
import concurrent.futures
import glob
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
RELATIVE_TOLERANCE = 1e-5
WORST_FIRST = ("DIFF", "FAIL", "CLOSE", "PASS")
FEATURES = ("conv", "graph", "async", "segments", "compile", "streams", "pinned")


def own_programs(python):
    programs = {}
    for script in ("pytorch_mlp", "pytorch_gpt2", "pytorch_llama", "cupy_check", "triton_check", "jax_check"):
        programs[script] = [python, str(HERE / f"{script}.py")]
    gpus = len(glob.glob("/dev/nvidia[0-9]*"))
    for ranks in [1] + [ranks for ranks in (2, 4, 8) if ranks <= gpus]:
        programs[f"pytorch_nccl_{ranks}"] = [python, str(HERE / "pytorch_nccl.py"), str(ranks)]
    for feature in FEATURES:
        programs[f"pytorch_{feature}"] = [python, str(HERE / "pytorch_features.py"), feature]
    return programs


def programs_of_file(path):
    programs = {}
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, colon, command = line.partition(": ")
            if not colon:
                name, command = shlex.split(line)[0].rsplit("/", 1)[-1], line
            programs[name.strip()] = shlex.split(command)
    return programs


class Outcome:
    def __init__(self, status, said, errors, seconds):
        self.status, self.said, self.errors, self.seconds = status, said, errors, seconds

    def results(self):
        return [line for line in self.said.splitlines() if not line.startswith("time")]


def run(command, environment, seconds):
    started = time.monotonic()
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=seconds, check=False)
        return Outcome(done.returncode, done.stdout, done.stderr, time.monotonic() - started)
    except subprocess.TimeoutExpired as late:
        def text(output):
            return (output or b"").decode(errors="replace") if not isinstance(output, str) else output
        return Outcome(124, text(late.stdout), text(late.stderr) + f"\nmore than {seconds} s",
                       time.monotonic() - started)
    except OSError as error:
        return Outcome(127, "", str(error), 0.0)


def close(a, b):
    """Whether two lists of lines are equal but for small differences of numbers. Digests are left out."""
    a, b = ([line for line in lines if not line.startswith("digest")] for lines in (a, b))
    if not a or [NUMBER.sub("#", line) for line in a] != [NUMBER.sub("#", line) for line in b]:
        return False
    for x, y in zip(NUMBER.findall("\n".join(a)), NUMBER.findall("\n".join(b))):
        if abs(float(x) - float(y)) > RELATIVE_TOLERANCE * max(abs(float(x)), abs(float(y))):
            return False
    return True


def judge(native, through):
    if native.status != 0:
        return "NATIVE"
    if through.status != 0:
        return "FAIL"
    if native.results() == through.results():
        return "PASS"
    return "CLOSE" if close(native.results(), through.results()) else "DIFF"


def through_consort(command, arguments, folder):
    """Runs the command with Consort's library. Returns its Outcome and the daemon's log."""
    if arguments.endpoint:
        path = os.environ.get("LD_LIBRARY_PATH", "")
        environment = dict(os.environ, CONSORT_ENDPOINT=arguments.endpoint,
                           LD_LIBRARY_PATH=f"{arguments.library_dir}:{path}".rstrip(":"))
        return run(command, environment, arguments.seconds), ""
    sys.path.insert(0, str(HERE.parent / "e2e"))
    import stack
    with stack.Daemon(folder, device=arguments.device) as daemon:
        outcome = run(command, daemon.local_environment(), arguments.seconds)
        daemon.stop()
        return outcome, daemon.log()


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:140] if lines else ""


def compare(name, command, arguments):
    """Runs a program both ways; returns (verdict, its row of the table)."""
    native = run(command, dict(os.environ), arguments.seconds)
    verdict, through, log = "NATIVE", None, ""
    for _ in range(arguments.repeat if native.status == 0 else 0):
        with tempfile.TemporaryDirectory(prefix="consort-") as folder:
            outcome, log_now = through_consort(command, arguments, folder)
        judged = judge(native, outcome)
        if through is None or WORST_FIRST.index(judged) < WORST_FIRST.index(verdict):
            verdict, through, log = judged, outcome, log_now
    unsupported = sorted({line for line in (through.errors if through else "").splitlines()
                          if line.startswith("consort") and "support" in line})
    said = "; ".join(unsupported) or {"FAIL": last_line(through.errors) if through else "",
                                      "NATIVE": last_line(native.errors)}.get(verdict, "")
    if arguments.logs:
        for kind, outcome in (("native", native), ("consort", through)):
            if outcome:
                (arguments.logs / f"{name}.{kind}.txt").write_text(
                    f"status {outcome.status}\n--- output\n{outcome.said}\n--- errors\n{outcome.errors}\n")
        (arguments.logs / f"{name}.consortd.log").write_text(log)
    seconds = f"{through.seconds:9.1f}" if through else f"{'':9}"
    return verdict, f"| {name:22} | {verdict:6} | {native.seconds:8.1f} | {seconds} | {said} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=pathlib.Path, help="command lines instead of this folder's programs")
    parser.add_argument("--build", type=pathlib.Path, help="build folder (default: CONSORT_BUILD or build/dev)")
    parser.add_argument("--endpoint", help="of a consortd that runs already, as CONSORT_ENDPOINT")
    parser.add_argument("--library-dir", help="folder of Consort's libcuda.so.1, with --endpoint")
    parser.add_argument("--device", default="nvidia", choices=("auto", "nvidia", "cpu"))
    parser.add_argument("--only", help="names or parts of names, comma separated")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--repeat", type=int, default=1, help="runs through Consort; the worst counts")
    parser.add_argument("--jobs", type=int, default=1, help="programs at once; then seconds are no measure")
    parser.add_argument("--logs", type=pathlib.Path, help="folder for everything that was said")
    arguments = parser.parse_args()
    if bool(arguments.endpoint) != bool(arguments.library_dir):
        parser.error("--endpoint and --library-dir go together")
    if arguments.build:
        os.environ["CONSORT_BUILD"] = str(arguments.build.resolve())
    programs = programs_of_file(arguments.file) if arguments.file else own_programs(arguments.python)
    if arguments.only:
        wanted = arguments.only.split(",")
        programs = {name: command for name, command in programs.items() if any(part in name for part in wanted)}
    if not programs:
        parser.error("no program is left")
    if arguments.logs:
        arguments.logs.mkdir(parents=True, exist_ok=True)

    verdicts = {}
    print(f"| {'program':22} | {'result':6} | native s | Consort s | said |")
    print(f"|{'-' * 24}|{'-' * 8}|---------:|----------:|------|")
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as threads:
        compared = threads.map(lambda named: compare(*named, arguments), programs.items())
        for name, (verdict, row) in zip(programs, compared):
            verdicts[name] = verdict
            print(row, flush=True)
    counts = {kind: list(verdicts.values()).count(kind) for kind in ("PASS", "CLOSE", "DIFF", "FAIL", "NATIVE")}
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 1 if counts["DIFF"] or counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
