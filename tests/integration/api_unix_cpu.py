#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/integration/api_unix_cpu.py: the driver API suite (tests/api) over the guest library, a consortd of
its own on a UNIX socket, and the CPU device. No virtual machine.

Every case runs in a process of its own, and the suite is spread over SHARDS processes with a consortd each,
so that no case sees the memory use of another. A case listed in tests/api/known_failures.txt (`Suite.Name  reason`,
a line each) must fail: one that passes, or that does not exist, is an error.

Environment: CONSORT_BUILD, the build folder (default build/dev). Arguments go to api_test, for instance
--gtest_filter=Memory*; a known failure that the filter leaves out is then not missed.
"""

import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

import stack  # noqa: E402  found by the line above

SHARDS = 2
# The whole suite takes about two minutes on two cores; ctest's own limit is longer, so that this one reports.
SHARD_SECONDS = 840
KNOWN_FAILURES = HERE.parent / "api" / "known_failures.txt"


def read_known_failures(text):
    """{case: reason} of the lines of known_failures.txt; ValueError for a line without a reason."""
    known = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        case, _, reason = line.strip().partition(" ")
        if not reason.strip():
            raise ValueError(f"known_failures.txt:{number}: {case} has no reason")
        known[case] = reason.strip()
    return known


def run_shard(index, arguments):
    """Runs one part of the suite. Returns ({case: its entry in gtest's report}, trouble as text or "")."""
    with tempfile.TemporaryDirectory(prefix="api-") as folder:
        report = pathlib.Path(folder) / "report.json"
        with stack.Daemon(folder, device="cpu", verbose=0) as daemon:
            environment = daemon.local_environment() | {
                "CONSORT_TEST_LIBCUDA": str(stack.LIBRARY), "CONSORT_TEST_ISOLATE": "1",
                "GTEST_TOTAL_SHARDS": str(SHARDS), "GTEST_SHARD_INDEX": str(index)}
            try:
                done = subprocess.run(
                    [stack.BUILD / "bin" / "api_test", "--gtest_color=no", f"--gtest_output=json:{report}",
                     *arguments],
                    env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    text=True, errors="replace", timeout=SHARD_SECONDS, check=False)
            except subprocess.TimeoutExpired as late:
                said = (late.stdout or b"").decode(errors="replace")
                return {}, f"shard {index} took more than {SHARD_SECONDS} s; it said\n{said[-4000:]}"
            if not report.exists():
                return {}, f"shard {index} ended with status {done.returncode}:\n{done.stdout[-4000:]}"
            cases = {f"{suite['name']}.{case['name']}": case
                     for suite in json.loads(report.read_text())["testsuites"] for case in suite["testsuite"]}
            if not daemon.is_running():
                return cases, f"shard {index}: consortd has ended\n{daemon.log_tail()}"
            status = daemon.stop()
            if status != 0:
                return cases, f"shard {index}: consortd stopped with status {status}\n{daemon.log_tail()}"
    return cases, ""


def judge(cases, known, complete):
    """Sorts gtest's entries. Returns (names passed, names skipped, problems as texts)."""
    passed, skipped, problems = [], [], []
    for name, case in sorted(cases.items()):
        if case["result"] == "SUPPRESSED" or case["status"] == "NOTRUN":
            continue
        failures = [failure["failure"] for failure in case.get("failures", [])]
        if failures and name not in known:
            problems.append(f"FAILED {name}\n" + "\n".join(failures))
        elif failures:
            print(f"fails, as known: {name}: {known[name]}")
        elif name in known:
            problems.append(f"PASSED {name}, which is in known_failures.txt: take it out")
        elif case["result"] == "SKIPPED":
            skipped.append(name)
        else:
            passed.append(name)
    if complete:
        problems += [f"{name} of known_failures.txt does not exist" for name in sorted(set(known) - set(cases))]
    return passed, skipped, problems


def main():
    arguments = sys.argv[1:]
    known = read_known_failures(KNOWN_FAILURES.read_text("utf-8"))
    # The daemons must be started from threads that stay (stack.Daemon): the pool's do, until both have ended.
    with concurrent.futures.ThreadPoolExecutor(SHARDS) as pool:
        results = list(pool.map(lambda index: run_shard(index, arguments), range(SHARDS)))
    cases = {name: case for part, _ in results for name, case in part.items()}
    troubles = [trouble for _, trouble in results if trouble]
    passed, skipped, problems = judge(cases, known, complete=not arguments and not troubles)
    for problem in troubles + problems:
        print(problem, end="\n\n")
    if skipped:
        print("skipped by the suite itself: " + " ".join(skipped))
    failing = [problem.split("\n")[0] for problem in problems]
    print("\n".join(failing))
    print(f"api_test: {len(passed)} passed, {len(skipped)} skipped, {len(problems)} not as wanted, "
          f"{len(known)} known failures")
    return 0 if passed and not troubles and not problems else 1


if __name__ == "__main__":
    sys.exit(main())
