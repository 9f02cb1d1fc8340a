#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/weights_test.py: a tenant's weight, changed with `consortctl tenant set` while programs keep a device busy,
is what tenants get two seconds later, and metrics, page and `consortctl top` all show it.

What each of the three shows is read over a window that begins SETTLED_SECONDS after the command has ended: metrics as
rates of the device seconds over the window, as Prometheus takes them; page and top as the mean of what they showed. It is
a share of the device time that was used, so it does not depend on how fast the machine is or what else it does.
"""

import json
import pathlib
import re
import subprocess
import tempfile
import time
import unittest
import urllib.request

import browser
import stack
from tenants import Tenant, busy_programs, write_file

PATIENCE_SECONDS = 60
SETTLED_SECONDS = 2.0
WINDOW_SECONDS = 8.0
LOOK_SECONDS = 0.25
# Of a share, as the larger part of it: 25 % may show as 24.25 % to 25.75 %.
TOLERANCE = 0.03
# Unequal kernels: a device that shares by turns alone would not give these shares. Each is long enough for a program
# to have many waiting while the machine keeps it from running: who has no work has no share.
TENANTS = (Tenant("one", 1, 2_000_000), Tenant("two", 1, 5_000_000))


@unittest.skipUnless(browser.PROGRAM, "no chromium on this machine (Debian: chromium)")
class Weights(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weights-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        path = write_file(self.folder, TENANTS, "tfs")
        self.daemon = self.enterContext(stack.Daemon(
            self.folder, device="cpu", metrics="127.0.0.1:0",
            arguments=("--tenants", path, "--state", self.folder / "state.json")))
        self.page = self.enterContext(browser.Browser())
        self.page.look(1280, 900, "light")
        self.page.open(self.daemon.page_url())
        self.page.wait("document.body && Number(document.body.dataset.answers) > 1", "two answers")

    def control(self, *words):
        done = subprocess.run([stack.BUILD / "bin" / "consortctl", "--admin-socket", self.daemon.admin_socket, *words],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def device_seconds(self):
        """What /metrics says that each tenant had so far."""
        with urllib.request.urlopen(self.daemon.metrics_url(), timeout=PATIENCE_SECONDS) as answer:
            text = answer.read().decode("ascii")
        return {name: sum(float(value) for value in re.findall(
            rf'^consort_device_seconds_total{{tenant="{name}",[^}}]*}} (\S+)$', text, re.MULTILINE)) for name in self.names}

    def top(self):
        shares = json.loads(self.control("top", "--once", "--output", "json"))["shares"]
        return {share["tenant"]: share["share"] for share in shares}

    def shown(self):
        """By the page's table of tenants."""
        rows = self.page.run('[...document.querySelectorAll("#tenants tbody tr")].map('
                             '(row) => [row.dataset.name, row.querySelector(".now").textContent])')
        return {name: float(text.split("\u2009")[0]) / 100 for name, text in rows}

    names = tuple(tenant.name for tenant in TENANTS)

    def measure(self):
        """{who shows it: {tenant: its share}} of a window that begins now."""
        looks = {"top": [], "page": []}
        before = self.device_seconds()
        end = time.monotonic() + WINDOW_SECONDS
        self.page.run("window.begun = document.body.dataset.answers")
        self.page.wait("document.body.dataset.answers !== window.begun", "what consortd says from now on")
        while time.monotonic() < end:
            looks["top"].append(self.top())
            looks["page"].append(self.shown())
            time.sleep(LOOK_SECONDS)
        after = self.device_seconds()
        used = {name: after[name] - before[name] for name in self.names}
        found = {"metrics": {name: used[name] / sum(used.values()) for name in self.names}}
        for view, each in looks.items():
            found[view] = {name: sum(look.get(name, 0) for look in each) / len(each) for name in self.names}
        return found

    def wrong(self, weight):
        """Sets the weight of two; what views show afterwards that is not what it promises."""
        self.control("tenant", "set", "two", "--weight", str(weight))
        wanted = {"one": 1 / (1 + weight), "two": weight / (1 + weight)}
        time.sleep(SETTLED_SECONDS)
        found = self.measure()
        print(f"\n    weight {weight}, two is promised {100 * wanted['two']:.2f} %:", "; ".join(
            f"{view} " + " ".join(f"{name} {100 * share:.2f} %" for name, share in shares.items())
            for view, shares in found.items()), end="")
        return [f"{view} shows {share:.4f} of {name}, promised is {wanted[name]:.4f}" for view, shares in found.items()
                for name, share in shares.items() if abs(share / wanted[name] - 1) > TOLERANCE]

    def test_a_weight_is_what_metrics_page_and_top_show_two_seconds_later(self):
        """Two more tries, each another change: where the machine keeps kernels of the CPU device from running, what was
        submitted before takes long, and is paid back after the window. A wrong scheduler is wrong each time."""
        tries = []
        with busy_programs(self.daemon, self.folder, TENANTS):
            self.page.wait('document.querySelectorAll("#tenants tbody tr").length === 2', "both tenants")
            for weight in (3, 1, 3):
                tries.append(self.wrong(weight))
                if not tries[-1]:
                    break
        self.assertEqual(self.page.errors, [])
        self.assertEqual(tries[-1], [], tries)


if __name__ == "__main__":
    unittest.main(verbosity=2)
