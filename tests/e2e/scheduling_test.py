#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/scheduling_test.py: an operator changes how a device is shared while unmodified programs use it:
consortctl policy, tenant set and top, the metrics that come of it, and a trace that gives the same decisions again.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request

import stack
from tenants import Tenant, busy_programs, daemon_with, write_file

PATIENCE_SECONDS = 60
# Of a share over one second; a share over a longer time is shares_test's.
TOLERANCE = 0.1
POLICIES = ("las", "slowdown", "ps", "fcfs", "sjf", "credit", "idle", "none", "tfs")
TWO = (Tenant("one", 1, 200_000), Tenant("two", 1, 400_000))


class Scheduling(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="scheduling-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, tenants=TWO, arguments=(), **options):
        return self.enterContext(daemon_with(self.folder, tenants, arguments, **options))

    def top(self, daemon):
        return json.loads(daemon.control("top", "--once", "--output", "json"))

    def wait_for(self, look, what):
        """What `look` returns first that is true, and after how many seconds."""
        begin = time.monotonic()
        while True:
            found = look()
            if found:
                return found, time.monotonic() - begin
            self.assertLess(time.monotonic() - begin, PATIENCE_SECONDS, f"waited for {what}")
            time.sleep(0.1)

    def wait_for_shares(self, daemon, wanted):
        def look():
            shares = {share["tenant"]: share for share in self.top(daemon)["shares"]}
            return shares if all(
                name in shares and abs(shares[name]["share"] - share) < TOLERANCE
                and abs(shares[name].get("target", 0) - share) < 0.001 for name, share in wanted.items()) else None
        return self.wait_for(look, f"shares {wanted}")

    def test_a_weight_counts_at_once_and_after_a_restart(self):
        daemon = self.start()
        with busy_programs(daemon, self.folder, TWO):
            self.wait_for_shares(daemon, {"one": 0.5, "two": 0.5})
            daemon.control("tenant", "set", "two", "--weight", "4")
            _, seconds = self.wait_for_shares(daemon, {"one": 0.2, "two": 0.8})
            print(f"\n    a weight showed in the shares after {seconds:.1f} s", end="")
            text = daemon.control("top", "--once")
            self.assertRegex(text, r"two +0 +4 +[\d.]+ % +80\.0 %")
            self.assertRegex(text, r"two +busy +0 +[\d.]+ % +kernel ")
        self.assertIn("set the weight of two to 4 (was 1)", daemon.log())
        self.assertEqual(daemon.stop(), 0)
        daemon = self.start()
        self.assertRegex(daemon.control("tenant", "list"), r"two +4 ")
        daemon.control("tenant", "reset", "two")
        self.assertRegex(daemon.control("tenant", "list"), r"two +1 ")
        self.assertIn("1 to 10000", daemon.control("tenant", "set", "two", "--weight", "10001", status=64))

    def test_the_tenants_file_is_read_again(self):
        daemon = self.start()
        with busy_programs(daemon, self.folder, TWO):
            self.wait_for_shares(daemon, {"one": 0.5, "two": 0.5})
            more = (TWO[0], Tenant("two", 4, 400_000), Tenant("new", 1, 200_000))
            write_file(self.folder, more, "tfs")
            daemon.signal(signal.SIGHUP)
            self.wait_for_shares(daemon, {"one": 0.2, "two": 0.8})
            write_file(self.folder, more, "credit")
            daemon.signal(signal.SIGHUP)
            self.wait_for(lambda: daemon.control("policy") == "credit\n", "the policy of the file")
            with busy_programs(daemon, self.folder, more[2:]):
                self.wait_for(lambda: "new" in {session["tenant"] for session in self.top(daemon)["sessions"]}, "new")
            path = pathlib.Path(write_file(self.folder, TWO, "tfs"))
            path.write_text(path.read_text("utf-8").replace("weight = 1", "weight = 0"), "utf-8")
            daemon.signal(signal.SIGHUP)
            self.wait_for(lambda: "weight wants a whole number" in daemon.log(), "the mistake to be told")
            self.assertEqual(daemon.control("policy"), "credit\n")

    def test_policies_change_while_programs_run_and_no_work_is_lost(self):
        daemon = self.start()
        with busy_programs(daemon, self.folder, TWO):
            for policy in POLICIES:
                daemon.control("policy", policy)
                self.assertEqual(daemon.control("policy"), policy + "\n")
                before = {session["tenant"]: session["kernel_launches"] for session in self.top(daemon)["sessions"]}
                self.wait_for(lambda before=before: all(
                    session["kernel_launches"] > before[session["tenant"]] + 3
                    for session in self.top(daemon)["sessions"]), f"both to go on under {policy}")
        self.assertIn("set the policy to las (was tfs)", daemon.log())
        self.assertIn("known: none, tfs", daemon.control("policy", "fairest", status=64))
        daemon.control("policy", "las")
        self.assertEqual(daemon.stop(), 0)
        daemon = self.start()
        self.assertEqual(daemon.control("policy"), "las\n")
        daemon.control("policy", "default")
        self.assertEqual(daemon.control("policy"), "tfs\n")

    def test_a_tenant_with_a_process_of_its_own_shares_no_worker(self):
        tenants = (*TWO, Tenant("walled", 1, 200_000, more='isolation = "process"\nstream_priority = "high"'))
        daemon = self.start(tenants)
        with busy_programs(daemon, self.folder, tenants, may_end=True):
            workers = {session["tenant"]: session["worker_pid"] for session in self.top(daemon)["sessions"]}
            self.assertEqual(workers["one"], workers["two"])
            self.assertNotEqual(workers["one"], workers["walled"])
            os.kill(workers["one"], signal.SIGKILL)
            self.wait_for(lambda: [s["tenant"] for s in self.top(daemon)["sessions"]] == ["walled"], "the others to end")
            before = self.top(daemon)["sessions"][0]["kernel_launches"]
            self.wait_for(lambda: self.top(daemon)["sessions"][0]["kernel_launches"] > before, "it to go on")
        # With its last session its worker ends, which is no failure.
        self.wait_for(lambda: not pathlib.Path(f"/proc/{workers['walled']}").exists(), "its worker to end")
        self.assertEqual(re.findall(rf"worker {workers['walled']} (?:is gone|cannot go on)", daemon.log()), [])
        with busy_programs(daemon, self.folder, tenants[2:]):
            self.assertNotIn(self.top(daemon)["sessions"][0]["worker_pid"], workers.values())

    def test_a_partition_has_multiprocessors_of_its_own(self):
        tenants = (Tenant("part", 1, 200_000, more='isolation = "partition"'),)
        daemon = self.start(tenants)
        with busy_programs(daemon, self.folder, tenants):
            before = self.top(daemon)["sessions"][0]["kernel_launches"]
            self.wait_for(lambda: self.top(daemon)["sessions"][0]["kernel_launches"] > before, "it to go on")
        self.assertRegex(daemon.log(), r"session \d+: [1-9]\d* multiprocessors of its own")

    def test_a_trace_gives_the_same_decisions_again(self):
        daemon = self.start(arguments=("--trace", self.folder))
        with busy_programs(daemon, self.folder, TWO):
            self.wait_for_shares(daemon, {"one": 0.5, "two": 0.5})
            daemon.control("tenant", "set", "two", "--weight", "4")
            self.wait_for_shares(daemon, {"one": 0.2, "two": 0.8})
            daemon.control("policy", "las")
            before = self.top(daemon)["sessions"][0]["batches"]
            self.wait_for(lambda: self.top(daemon)["sessions"][0]["batches"] > before, "batches under las")
        self.assertEqual(daemon.stop(), 0)
        trace, = self.folder.glob("device-0-*.trace")
        replay = subprocess.run([stack.BUILD / "bin" / "consort-sim", "--replay", trace], capture_output=True, text=True,
                                timeout=PATIENCE_SECONDS)
        self.assertEqual(replay.returncode, 0, replay.stdout + replay.stderr)
        self.assertRegex(replay.stdout, r"\d\d\d+ decisions, 0 different")
        other = subprocess.run([stack.BUILD / "bin" / "consort-sim", "--replay", trace, "--policy", "fcfs"],
                               capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        self.assertEqual(other.returncode, 1, other.stdout + other.stderr)

    def test_a_trace_is_switched_on_and_off_while_programs_run(self):
        daemon = self.start(arguments=("--trace-folder", self.folder / "traces"))
        self.assertEqual(daemon.control("trace", "show"), "nothing is recorded\n")
        self.assertIn("no traces are being recorded", daemon.control("trace", "stop", status=1))
        replayed = []

        def replay(path):
            done = subprocess.run([stack.BUILD / "bin" / "consort-sim", "--replay", path], capture_output=True, text=True,
                                  timeout=PATIENCE_SECONDS)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            decisions = int(re.search(r"(\d+) decisions, 0 different", done.stdout).group(1))
            self.assertGreater(decisions, 0)
            replayed.append(decisions)

        def files():
            return json.loads(daemon.control("trace", "show", "--output", "json"))["files"]

        with busy_programs(daemon, self.folder, TWO):
            self.wait_for_shares(daemon, {"one": 0.5, "two": 0.5})
            self.assertIn("recording", daemon.control("trace", "start"))
            self.assertIn("traces are being recorded", daemon.control("trace", "start", status=1))
            daemon.control("tenant", "set", "two", "--weight", "4")
            self.wait_for_shares(daemon, {"one": 0.2, "two": 0.8})
            self.assertIn("stopped", daemon.control("trace", "stop"))
            first, = files()
            at_once = pathlib.Path(first["path"]).read_bytes()
            before = self.top(daemon)["sessions"][0]["batches"]
            self.wait_for(lambda: self.top(daemon)["sessions"][0]["batches"] > before, "work to go on")
            # A second one begins with applications that are there, and ends by itself.
            daemon.control("trace", "start", "--max-bytes", "64KiB")
            second, _ = self.wait_for(lambda: next((file for file in files() if "ended" in file), None), "the file to be full")
            self.assertEqual(second["ended"], "its file is full")
            self.assertLessEqual(second["bytes"], 64 << 10)
            daemon.control("trace", "stop")
        self.assertEqual(at_once, pathlib.Path(first["path"]).read_bytes())
        for file in (first, second):
            replay(file["path"])
        self.assertNotEqual(first["path"], second["path"])
        self.assertIn("a trace's file has a bound from 4KiB", daemon.control("trace", "start", "--max-bytes", "1", status=64))

    def test_metrics_tell_shares_targets_and_waiting(self):
        daemon = self.start(metrics="127.0.0.1:0")
        with busy_programs(daemon, self.folder, TWO):
            self.wait_for_shares(daemon, {"one": 0.5, "two": 0.5})

            def scrape():
                with urllib.request.urlopen(daemon.metrics_url(), timeout=PATIENCE_SECONDS) as answer:
                    return answer.read().decode("ascii")

            def values(text, name):
                return [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name)]

            text, _ = self.wait_for(
                lambda: next((text for text in [scrape()]
                              if sum(values(text, "consort_queueing_delay_seconds_count{")) > 10), None),
                "batches that waited")
        self.assertEqual(values(text, 'consort_tenant_share_target_ratio{tenant="one"'), [0.5])
        self.assertAlmostEqual(sum(values(text, "consort_tenant_share_ratio{")), 1)
        self.assertEqual(values(text, 'consort_scheduler_info{policy="tfs"}'), [1])
        self.assertEqual(values(text, 'consort_device_sessions_in_phase{device="0",phase="kernel"}'), [2])
        buckets = values(text, 'consort_queueing_delay_seconds_bucket{tenant="one"')
        self.assertEqual(buckets, sorted(buckets))
        promtool = shutil.which("promtool")
        if not promtool:
            self.skipTest("no promtool on this machine (Debian: prometheus)")
        judged = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
        self.assertEqual((judged.returncode, judged.stdout + judged.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main(verbosity=2)
