#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/integration/api_cpu_driver.py [gtest options]: the driver API suite (tests/api) on the CPU driver itself,
as a worker loads it: no guest library, no channel, no consortd.

Cases of functions that it does not export are skipped: the guest answers those. Every case runs in a process of
its own. api_suite.py says which failures are known.

Environment: CONSORT_BUILD, the build folder (default build/dev). Options go to api_test.
"""

import os
import pathlib
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
        environment = dict(os.environ, CONSORT_TEST_LIBCUDA=str(stack.BUILD / "lib" / "libconsort-cpu.so"),
                           CONSORT_TEST_SUBSET="1", CONSORT_TEST_ISOLATE="1")
        return api_suite.run_part(stack.BUILD / "bin" / "api_test", arguments, environment, folder, SUITE_SECONDS, "the suite")


def main():
    arguments = sys.argv[1:]
    return api_suite.report([run(arguments)], "driver", complete=not arguments)


if __name__ == "__main__":
    sys.exit(main())
