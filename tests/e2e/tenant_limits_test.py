#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/tenant_limits_test.py: what a tenant may use and how fast, as tenants.toml says and as consortctl changes
it, with unmodified programs on CPU devices. Rates are judged by what cannot be: more than they allow."""

import json
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request

import stack
from tenants import Tenant, busy_programs, daemon_with, write_file

PATIENCE_SECONDS = 60
BURST_SECONDS = 0.1  # kRateBurst
LAUNCHES = 50
COPIES = 32 << 20
BIG_COPY_MIB = 16


class TenantLimits(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="limits-")))

    def start(self, tenants, arguments=(), **options):
        return self.enterContext(daemon_with(self.folder, tenants, arguments, **options))

    def run_program(self, daemon, tenant, *command):
        return subprocess.run([stack.PROGRAMS / command[0], *command[1:]], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=PATIENCE_SECONDS,
                              env=daemon.local_environment(f"{self.folder}/{tenant}.sock") | {"CONSORT_LOG": "on"})

    def tenant(self, daemon, name):
        tenants = json.loads(daemon.control("tenants", "--output", "json"))
        return next(tenant for tenant in tenants if tenant["tenant"] == name)

    def test_programs_see_and_use_only_their_tenants_gpus(self):
        daemon = self.start((Tenant("one", 1, 0, more="gpus = [1]"), Tenant("two", 1, 0, more="gpus = [2, 0]"),
                             Tenant("elsewhere", 1, 0, more='gpus = ["NVIDIA H200"]')), ("--devices", "3"))
        for tenant, devices in (("one", [1]), ("two", [0, 2])):
            done = self.run_program(daemon, tenant, "many_devices")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn(f"{len(devices)} devices\n", done.stdout)
            account = daemon.wait_for_account(
                lambda lines, tenant=tenant, count=len(devices): len([x for x in lines if x["tenant"] == tenant]) == count)
            used = sorted(line["device_index"] for line in account if line["tenant"] == tenant)
            self.assertEqual(used, devices)
        none = self.run_program(daemon, "elsewhere", "many_devices")
        self.assertIn("tenant elsewhere may not use a GPU of this host, only NVIDIA H200", none.stderr)
        daemon.control("tenant", "set", "elsewhere", "--gpus", "0,2")
        self.assertIn("2 devices\n", self.run_program(daemon, "elsewhere", "many_devices").stdout)
        daemon.control("tenant", "set", "elsewhere", "--gpus", "all")
        self.assertIn("3 devices\n", self.run_program(daemon, "elsewhere", "many_devices").stdout)
        self.assertIn("set the list of GPUs of elsewhere to all (was 0, 2)", daemon.log())
        self.assertIn("gpus names 0 twice", daemon.control("tenant", "set", "one", "--gpus", "0,0", status=64))
        self.assertIn("nothing to set", daemon.control("tenant", "set", "one", status=64))
        self.assertIn("is in no pool", daemon.control("tenant", "set", "one", "--weight", "2", "--pool", status=1))

    def test_launches_wait_for_their_limit_and_go_on_without_it(self):
        tenants = (Tenant("slow", 1, 100, more=f"max_launches_per_second = {LAUNCHES}"),)
        daemon = self.start(tenants, metrics="127.0.0.1:0")
        begin = time.monotonic()
        with busy_programs(daemon, self.folder, tenants):
            def launched():
                count = self.tenant(daemon, "slow")["kernel_launches"]
                return count, (time.monotonic() - begin + BURST_SECONDS) * LAUNCHES + 2

            count, most = stack.wait_for(lambda: next((x for x in [launched()] if x[0] > LAUNCHES), None), "launches")
            self.assertLessEqual(count, most)
            stack.wait_for(lambda: self.tenant(daemon, "slow")["rate_waited_seconds"] > 0, "waiting to be told")
            with urllib.request.urlopen(daemon.metrics_url(), timeout=PATIENCE_SECONDS) as answer:
                metrics = answer.read().decode("ascii")
            self.assertRegex(metrics, r'consort_rate_wait_seconds_total\{tenant="slow",[^}]*\} 0*\.?0*[1-9]')
            # Lifted, it launches more than it ever could have.
            daemon.control("tenant", "set", "slow", "--max-launches-per-second", "none")
            stack.wait_for(lambda: (lambda count, most: count > most)(*launched()), "launches without a limit")
            self.assertIn("set the limit of launches a second of slow to none (was 50)", daemon.log())
            # The file's again.
            daemon.control("tenant", "reset", "slow")
            before = self.tenant(daemon, "slow")["rate_waited_seconds"]
            stack.wait_for(lambda: self.tenant(daemon, "slow")["rate_waited_seconds"] > before, "the limit of the file")
            write_file(self.folder, (Tenant("slow", 1, 100),), "tfs")
            daemon.signal(signal.SIGHUP)
            stack.wait_for(lambda: "max_launches_per_second" not in self.tenant(daemon, "slow"), "the file to be read")
            start = launched()[0]
            stack.wait_for(lambda: launched()[0] > start + 10 * LAUNCHES, "launches without a limit in the file")

    def test_copies_wait_for_their_limit_and_bring_the_same_bytes(self):
        daemon = self.start((Tenant("slow", 1, 0, more=f'max_copy_bytes_per_second = "{COPIES >> 20}MiB"'),))
        self.assertRegex(daemon.control("tenant", "list"), r"slow +1 +all +default +- +32\.0 MiB ")
        begin = time.monotonic()
        done = self.run_program(daemon, "slow", "big_copy", str(BIG_COPY_MIB))
        seconds = time.monotonic() - begin
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        line, = daemon.wait_for_account(lambda lines: len(lines) == 1)
        copied = line["bytes_to_device"] + line["bytes_to_host"]
        self.assertGreaterEqual(copied, 4 * BIG_COPY_MIB << 20)
        # The last copy is paid for by nobody.
        self.assertGreaterEqual(seconds, (copied - (BIG_COPY_MIB << 20)) / COPIES - BURST_SECONDS)
        self.assertGreater(self.tenant(daemon, "slow")["rate_waited_seconds"], 0)

    def test_place_says_why_a_program_has_its_device(self):
        tenants = (Tenant("one", 1, 100, more="gpus = [1]"), Tenant("any", 1, 100))
        daemon = self.start(tenants, ("--devices", "2"))
        with busy_programs(daemon, self.folder, tenants):
            places = {place["tenant"]: place for place in json.loads(daemon.control("place", "busy", "-o", "json"))}
            self.assertEqual([places[name]["device"] for name in ("one", "any")], [1, 0])
            self.assertEqual(places["one"]["why"],
                             "the program uses device 0 of 1 that it sees: its tenant may use 1 only")
            self.assertEqual(places["any"]["why"],
                             "the program uses device 0 of 2 that it sees: its tenant may use all 2 of this host")
            pid = str(places["one"]["pid"])
            self.assertRegex(daemon.control("place", pid), rf"one +busy +{pid} +0 +\S+ +1 .* here +the program uses")
        daemon.wait_for_account(lambda lines: len(lines) == len(tenants))
        self.assertIn("consortctl apps", daemon.control("place", "busy", status=1))

    def test_another_tenant_does_not_wait(self):
        tenants = (Tenant("slow", 1, 100, more=f"max_launches_per_second = {LAUNCHES}"), Tenant("free", 1, 100))
        daemon = self.start(tenants)
        begin = time.monotonic()
        with busy_programs(daemon, self.folder, tenants):
            def ahead():
                slow, free = (self.tenant(daemon, name)["kernel_launches"] for name in ("slow", "free"))
                most = (time.monotonic() - begin + BURST_SECONDS) * LAUNCHES + 2
                self.assertLessEqual(slow, most)
                return slow > LAUNCHES and free > most
            stack.wait_for(ahead, "the other one to be ahead")
            self.assertEqual(self.tenant(daemon, "free")["rate_waited_seconds"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
