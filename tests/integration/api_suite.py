# SPDX-License-Identifier: Apache-2.0
"""tests/integration/api_suite.py: what the runs of the driver API suite (tests/api) over different channels, and
on the CPU driver itself, share: the cases that are known to fail, and the judgement of a run.

tests/api/known_failures.txt has a line each, `Suite.Name  reason`, or `Suite.Name (CHANNEL ...)  reason` for a
case that fails over those only: rings, stream, vm, or driver for the CPU driver without a channel. A case listed for a channel must fail there: one
that passes, or that does not exist, is an error.
"""

import json
import pathlib
import re
import subprocess

CHANNELS = ("rings", "stream", "vm", "driver")
KNOWN_FAILURES = pathlib.Path(__file__).resolve().parent.parent / "api" / "known_failures.txt"


def read_known_failures(text, channel):
    """{case: reason} for `channel`; ValueError for a line without a reason or with an unknown channel."""
    known = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"(\S+)(?: \(([^)]*)\))?\s+([^\s(].*)", line.strip())
        if not match:
            raise ValueError(f"known_failures.txt:{number}: no `Suite.Name  reason`")
        case, channels, reason = match.groups()
        unknown = set((channels or "").split()) - set(CHANNELS)
        if unknown:
            raise ValueError(f"known_failures.txt:{number}: no channel {sorted(unknown)[0]!r}; {CHANNELS}")
        if channels is None or channel in channels.split():
            known[case] = reason
    return known


def cases_of(report):
    """{case: its entry} of gtest's JSON report."""
    return {f"{suite['name']}.{case['name']}": case
            for suite in report["testsuites"] for case in suite["testsuite"]}


def run_part(program, arguments, environment, folder, seconds, what):
    """Runs api_test, which `what` names in texts. Returns ({case: its entry in gtest's report}, trouble as text or "")."""
    report = pathlib.Path(folder) / "report.json"
    try:
        done = subprocess.run([program, "--gtest_color=no", f"--gtest_output=json:{report}", *arguments],
                              env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"").decode(errors="replace")
        return {}, f"{what} took more than {seconds} s; it said\n{said[-4000:]}"
    if not report.exists():
        return {}, f"{what} ended with status {done.returncode}:\n{done.stdout[-4000:]}"
    return cases_of(json.loads(report.read_text())), ""


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


def report(parts, channel, complete, device="cpu"):
    """Prints what a run has shown; `parts` are (cases, trouble as text or "") of its shards. Failures are known of the CPU device only.
    The exit status."""
    known = read_known_failures(KNOWN_FAILURES.read_text("utf-8"), channel) if device == "cpu" else {}
    cases = {name: case for part, _ in parts for name, case in part.items()}
    troubles = [trouble for _, trouble in parts if trouble]
    passed, skipped, problems = judge(cases, known, complete=complete and not troubles)
    for problem in troubles + problems:
        print(problem, end="\n\n")
    if skipped:
        print("skipped by the suite itself: " + " ".join(skipped))
    print("\n".join(problem.split("\n")[0] for problem in problems))
    print(f"api_test over {channel}: {len(passed)} passed, {len(skipped)} skipped, {len(problems)} not as wanted, "
          f"{len(known)} known failures")
    return 0 if passed and not troubles and not problems else 1
