#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/metrics_test.py: consortd's metrics and status as Prometheus and a program read them,
while a CUDA program runs and after it."""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.parse
import urllib.request

import prometheus
import stack
from stack import PATIENCE_SECONDS, wait_for
from vm import die_with_parent

# A CUDA program that copies COPY_BYTES to the device, says so, and stays until its input ends.
COPY_BYTES = 1 << 20
PROGRAM = f"""
import ctypes, sys
NOT_SUPPORTED = 801
cuda = ctypes.CDLL("libcuda.so.1")
def check(result):
    assert result == 0, result
context, device, address = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
check(cuda.cuInit(0))
lacking = cuda.cuCheckpointProcessGetRestoreThreadId
assert lacking(1, None) == NOT_SUPPORTED
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t({COPY_BYTES})))
check(cuda.cuMemcpyHtoD_v2(address, bytes({COPY_BYTES}), ctypes.c_size_t({COPY_BYTES})))
check(cuda.cuCtxSynchronize())
for _ in range(4):
    assert lacking(1, None) == NOT_SUPPORTED
print("copied", flush=True)
sys.stdin.read()
"""


def parse(text):
    """Exposition text -> {(name, frozenset of labels): value}, strictly."""
    samples = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        found = re.fullmatch(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)', line)
        assert found, line
        labels = frozenset(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', found.group(2) or ""))
        samples[found.group(1), labels] = float(found.group(3))
    return samples


def total(samples, name, **labels):
    """The sum of the samples of that name that have these labels."""
    return sum(value for (sample, its), value in samples.items()
               if sample == name and set(labels.items()) <= its)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE_SECONDS)
        self._path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Metrics(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "other").mkdir()
        self.daemon = self.enterContext(stack.Daemon(self.folder, metrics="127.0.0.1:0"))

    def scrape(self):
        with urllib.request.urlopen(self.daemon.metrics_url(), timeout=PATIENCE_SECONDS) as answer:
            self.assertTrue(answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"))
            return answer.read().decode("ascii")

    def status(self):
        connection = UnixConnection(self.daemon.admin_socket)
        self.addCleanup(connection.close)
        connection.request("GET", "/api/v1/status", headers={"Connection": "close"})
        answer = connection.getresponse()
        self.assertEqual(answer.status, 200)
        return json.loads(answer.read())

    def start_program(self):
        """PROGRAM, which has copied and is still there."""
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=self.daemon.local_environment(), preexec_fn=die_with_parent)
        self.addCleanup(program.stdin.close)
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        self.assertEqual(program.stdout.readline(), "copied\n", self.daemon.log_tail())
        return program

    def test_counters_move_while_a_program_runs_and_stay_when_it_has_gone(self):
        before = parse(self.scrape())
        self.assertEqual(total(before, "consort_device_up", device="0"), 1)
        self.assertEqual(total(before, "consort_calls_total"), 0)
        program = self.start_program()

        def copied():
            samples = parse(self.scrape())
            bytes_ = total(samples, "consort_transfer_bytes_total", tenant="local",
                           direction="to_device")
            return samples if bytes_ >= COPY_BYTES else None

        during = wait_for(copied, "the copy to be counted while the program is there")
        applications = {dict(labels)["application"] for (sample, labels), value in during.items()
                        if sample == "consort_sessions" and value == 1}
        self.assertEqual(len(applications), 1)
        self.assertIn("python", applications.pop())
        self.assertEqual(total(during, "consort_device_sessions", device="0"), 1)
        self.assertEqual(total(during, "consort_windows_used"), 1)
        self.assertGreater(total(during, "consort_calls_total", tenant="local"), 0)
        self.assertGreater(total(during, "consort_round_trips_total", tenant="local"), 0)

        session, = self.status()["sessions"]
        self.assertEqual(session["pid"], program.pid)
        self.assertEqual(session["tenant"], "local")
        self.assertGreaterEqual(session["bytes_to_device"], COPY_BYTES)

        program.stdin.close()
        self.assertEqual(program.wait(), 0)
        account, = self.daemon.wait_for_account(lambda sessions: sessions)
        after = parse(self.scrape())
        self.assertEqual(total(after, "consort_sessions"), 0)
        self.assertEqual(total(after, "consort_windows_used"), 0)
        self.assertEqual(total(after, "consort_sessions_started_total"), 1)
        self.assertEqual(total(after, "consort_calls_total"), account["calls"])
        self.assertEqual(total(after, "consort_transfer_bytes_total", direction="to_device"),
                         account["bytes_to_device"])
        for sample, value in during.items():
            if sample[0].endswith("_total"):
                self.assertGreaterEqual(after[sample], value, sample)

    def test_what_a_killed_workers_sessions_used_stays_counted(self):
        program = self.start_program()
        used = wait_for(lambda: self.status()["tenants"][0]["calls"], "the first report")
        os.kill(self.status()["devices"][0]["worker_pid"], signal.SIGKILL)
        account, = self.daemon.wait_for_account(lambda sessions: sessions)
        self.assertEqual(account["end"], "worker died")
        self.assertGreaterEqual(account["calls"], used)
        wait_for(lambda: total(parse(self.scrape()), "consort_device_up") == 1, "another worker")
        after = parse(self.scrape())
        self.assertGreaterEqual(total(after, "consort_calls_total"), used)
        self.assertEqual(total(after, "consort_worker_starts_total"), 2)
        program.stdin.close()

    def test_an_open_session_is_in_the_account_before_it_ends(self):
        with stack.Daemon(self.folder / "other", arguments=("--account-every", "1")) as daemon:
            program = subprocess.Popen(
                [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, env=daemon.local_environment(), preexec_fn=die_with_parent)
            self.addCleanup(program.stdin.close)
            self.addCleanup(program.stdout.close)
            self.addCleanup(program.wait)
            self.addCleanup(program.kill)
            self.assertEqual(program.stdout.readline(), "copied\n", daemon.log_tail())

            def told(lines, key):
                return sum(line[key] for line in lines)

            # The memory that it holds goes on to count, the copy is told once.
            lines = daemon.wait_for_account(
                lambda lines: len(lines) >= 3 and told(lines, "memory_byte_seconds") > 2 * COPY_BYTES)
            self.assertEqual({line["end"] for line in lines}, {"open"})
            self.assertEqual(told(lines, "bytes_to_device"), COPY_BYTES)
            daemon.signal(signal.SIGKILL)
        # What was told survives, and the report reads it.
        done = subprocess.run(
            [stack.BUILD / "bin" / "consortctl", "report", "-o", "json", "--period", "all",
             "--account", self.folder / "other" / "account.jsonl"],
            capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        row, = json.loads(done.stdout)["rows"]
        self.assertEqual((row["tenant"], row["sessions"]), ("local", 0))
        self.assertEqual(row["bytes_to_device"], COPY_BYTES)
        self.assertGreater(row["memory_byte_seconds"], 2 * COPY_BYTES)

    def test_unsupported_functions_are_counted_by_name(self):
        program = self.start_program()
        # Once before the process has a session, and then up to the fourth call.
        wait_for(lambda: total(parse(self.scrape()), "consort_unsupported_calls_total",
                               function="cuCheckpointProcessGetRestoreThreadId") == 4,
                 "four calls")
        program.stdin.close()

    def test_kernels_are_counted(self):
        done = subprocess.run([stack.PROGRAMS / "vector_add"], env=self.daemon.local_environment(),
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        self.assertEqual(done.returncode, 0, self.daemon.log_tail())
        self.daemon.wait_for_account(lambda sessions: sessions)
        samples = parse(self.scrape())
        self.assertGreater(total(samples, "consort_kernel_launches_total",
                                 application="vector_add"), 0)
        self.assertGreater(total(samples, "consort_kernel_seconds_total",
                                 application="vector_add"), 0)

    def test_promtool_finds_nothing_to_say(self):
        promtool = shutil.which("promtool")
        if not promtool:
            self.skipTest("no promtool on this machine (Debian: prometheus)")
        self.start_program()
        wait_for(lambda: self.status()["tenants"][0]["calls"], "the first report")
        judged = subprocess.run([promtool, "check", "metrics"], input=self.scrape(),
                                capture_output=True, text=True, timeout=60)
        self.assertEqual((judged.returncode, judged.stdout + judged.stderr), (0, ""))

    def test_a_prometheus_reads_them(self):
        if not prometheus.PROGRAM:
            self.skipTest("no prometheus on this machine (Debian: prometheus)")
        target = urllib.parse.urlparse(self.daemon.metrics_url()).netloc
        with prometheus.Prometheus(self.folder, target) as server:
            wait_for(lambda: server.value('up{job="consort"}') == 1, "Prometheus to read the metrics")
            self.start_program()
            wait_for(lambda: (server.value('sum(consort_transfer_bytes_total{direction="to_device"})') or 0)
                     >= COPY_BYTES, "Prometheus to see the copy")
            self.assertEqual(server.value("sum(consort_sessions)"), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
