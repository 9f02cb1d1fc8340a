#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/integration/api_unix.py CHANNEL [--device=cpu|nvidia] [--devices=N|FILE] [--shards=N] [gtest options]: the driver API suite
(tests/api) over the guest library, a consortd of its own on a UNIX socket, and a device, the CPU's if none is named. No virtual machine.

CHANNEL is rings or stream: what the guest library is told to use, and what every session must have used. Every
case runs in a process of its own, and the suite is spread over so many processes (2) with a consortd each, so that
no case sees the memory use of another. api_suite.py says which failures are known.

Environment: CONSORT_BUILD, the build folder (default build/dev). Options go to api_test, for instance
--gtest_filter=Memory*; a known failure that the filter leaves out is then not missed.
"""

import argparse
import concurrent.futures
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "e2e")]

import api_suite  # noqa: E402  found by the line above
import stack  # noqa: E402

# The whole suite takes about two minutes on two cores; ctest's own limit is longer, so that this one reports.
SHARD_SECONDS = 840
# What consortd's account calls the channel.
ACCOUNT_NAMES = {"rings": "unix+rings", "stream": "unix"}


def run_shard(index, options, arguments):
    """Runs one part of the suite. Returns ({case: its entry in gtest's report}, trouble as text or "")."""
    channel = options.channel
    devices = ["--devices", options.devices] if options.devices else []
    with tempfile.TemporaryDirectory(prefix="api-") as folder:
        with stack.Daemon(folder, device=options.device, verbose=0, arguments=devices) as daemon:
            environment = daemon.local_environment() | {
                "CONSORT_TEST_LIBCUDA": str(stack.LIBRARY), "CONSORT_TEST_ISOLATE": "1",
                "CONSORT_CHANNEL": channel,
                "GTEST_TOTAL_SHARDS": str(options.shards), "GTEST_SHARD_INDEX": str(index)}
            cases, trouble = api_suite.run_part(stack.BUILD / "bin" / "api_test", arguments, environment, folder, SHARD_SECONDS,
                                                f"shard {index}")
            if trouble:
                return cases, trouble
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("channel", choices=ACCOUNT_NAMES)
    parser.add_argument("--device", choices=("cpu", "nvidia"), default="cpu")
    parser.add_argument("--devices", help="as consortd's")
    parser.add_argument("--shards", type=int, default=2)
    options, arguments = parser.parse_known_args()
    # The daemons must be started from threads that stay (stack.Daemon): the pool's do, until all have ended.
    with concurrent.futures.ThreadPoolExecutor(options.shards) as pool:
        parts = list(pool.map(lambda index: run_shard(index, options, arguments), range(options.shards)))
    return api_suite.report(parts, options.channel, complete=not arguments, device=options.device)


if __name__ == "__main__":
    sys.exit(main())
