#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/integration/api_unix_cpu.py CHANNEL [--devices=N] [gtest options]: the driver API suite (tests/api) over the guest
library, a consortd of its own on a UNIX socket, and the CPU device. No virtual machine.

CHANNEL is rings or stream: what the guest library is told to use, and what every session must have used. Every
case runs in a process of its own, and the suite is spread over SHARDS processes with a consortd each, so that
no case sees the memory use of another. api_suite.py says which failures are known.

Environment: CONSORT_BUILD, the build folder (default build/dev). Options go to api_test, for instance
--gtest_filter=Memory*; a known failure that the filter leaves out is then not missed.
"""

import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "e2e")]

import api_suite  # noqa: E402  found by the line above
import stack  # noqa: E402

SHARDS = 2
# The whole suite takes about two minutes on two cores; ctest's own limit is longer, so that this one reports.
SHARD_SECONDS = 840
# What consortd's account calls the channel.
ACCOUNT_NAMES = {"rings": "unix+rings", "stream": "unix"}


def run_shard(index, channel, daemon_arguments, arguments):
    """Runs one part of the suite. Returns ({case: its entry in gtest's report}, trouble as text or "")."""
    with tempfile.TemporaryDirectory(prefix="api-") as folder:
        report = pathlib.Path(folder) / "report.json"
        with stack.Daemon(folder, device="cpu", verbose=0, arguments=daemon_arguments) as daemon:
            environment = daemon.local_environment() | {
                "CONSORT_TEST_LIBCUDA": str(stack.LIBRARY), "CONSORT_TEST_ISOLATE": "1",
                "CONSORT_CHANNEL": channel,
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
            cases = api_suite.cases_of(json.loads(report.read_text()))
            if not daemon.is_running():
                return cases, f"shard {index}: consortd has ended\n{daemon.log_tail()}"
            status = daemon.stop()
            if status != 0:
                return cases, f"shard {index}: consortd stopped with status {status}\n{daemon.log_tail()}"
            used = {session["channel"] for session in daemon.account()}
            if used - {ACCOUNT_NAMES[channel]}:
                return cases, f"shard {index}: sessions over {sorted(used)}, not {ACCOUNT_NAMES[channel]}"
    return cases, ""


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in ACCOUNT_NAMES:
        print(__doc__, file=sys.stderr)
        return 2
    channel = sys.argv[1]
    devices = [argument for argument in sys.argv[2:] if argument.startswith("--devices=")]
    arguments = [argument for argument in sys.argv[2:] if argument not in devices]
    # The daemons must be started from threads that stay (stack.Daemon): the pool's do, until both have ended.
    with concurrent.futures.ThreadPoolExecutor(SHARDS) as pool:
        parts = list(pool.map(lambda index: run_shard(index, channel, devices, arguments), range(SHARDS)))
    return api_suite.report(parts, channel, complete=not arguments)


if __name__ == "__main__":
    sys.exit(main())
