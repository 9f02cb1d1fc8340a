#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/integration/api_cpu_driver.py [gtest options]: the driver API suite (tests/api) on the CPU driver itself,
as a worker loads it: no guest library, no channel, no consortd.

Cases of functions that it does not export are skipped: the guest answers those. Every case runs in a process of
its own. api_suite.py says which failures are known.

Environment: CONSORT_BUILD, the build folder (default build/dev). Options go to api_test.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "e2e")]

import api_suite  # noqa: E402  found by the line above
import stack  # noqa: E402

# ctest's own limit is longer, so that this one reports.
SUITE_SECONDS = 840


def run(arguments):
    """Returns ({case: its entry in gtest's report}, trouble as text or "")."""
    with tempfile.TemporaryDirectory(prefix="api-") as folder:
        report = pathlib.Path(folder) / "report.json"
        environment = dict(os.environ, CONSORT_TEST_LIBCUDA=str(stack.BUILD / "lib" / "libconsort-cpu.so"),
                           CONSORT_TEST_SUBSET="1", CONSORT_TEST_ISOLATE="1")
        try:
            done = subprocess.run(
                [stack.BUILD / "bin" / "api_test", "--gtest_color=no", f"--gtest_output=json:{report}", *arguments],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", timeout=SUITE_SECONDS, check=False)
        except subprocess.TimeoutExpired as late:
            said = (late.stdout or b"").decode(errors="replace")
            return {}, f"the suite took more than {SUITE_SECONDS} s; it said\n{said[-4000:]}"
        if not report.exists():
            return {}, f"the suite ended with status {done.returncode}:\n{done.stdout[-4000:]}"
        return api_suite.cases_of(json.loads(report.read_text())), ""


def main():
    arguments = sys.argv[1:]
    return api_suite.report([run(arguments)], "driver", complete=not arguments)


if __name__ == "__main__":
    sys.exit(main())
