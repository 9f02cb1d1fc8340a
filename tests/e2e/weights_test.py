#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/weights_test.py: a tenant's weight, changed with `consortctl tenant set` while programs keep a device busy,
is what tenants get two seconds later, and metrics, page and `consortctl top` all show it.

What each of the three says that tenants had is taken over a window that begins SETTLED_SECONDS after the command has ended:
of metrics and of top the growth of device seconds, of the page the samples that it plots. These are shares of the device
time that was used, so they do not depend on how fast the machine is or what else it does. What top and the page show as the
share of the moment must come near it.
"""

import json
import pathlib
import re
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
LOOK_SECONDS = 0.2
# Of a share, as the larger part of it: 25 % may show as 24.25 % to 25.75 %.
TOLERANCE = 0.03
# Of all device time, what is shown of one second.
MOMENT_TOLERANCE = 0.1
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

    def device_seconds(self):
        """What /metrics says that each tenant had so far."""
        with urllib.request.urlopen(self.daemon.metrics_url(), timeout=PATIENCE_SECONDS) as answer:
            text = answer.read().decode("ascii")
        return {name: sum(float(value) for value in re.findall(
            rf'^consort_device_seconds_total{{tenant="{name}",[^}}]*}} (\S+)$', text, re.MULTILINE)) for name in self.names}

    def top(self):
        return json.loads(self.daemon.control("top", "--once", "--output", "json"))

    def used_by_top(self):
        sessions = self.top()["sessions"]
        return {name: sum(session["device_seconds"] for session in sessions if session["tenant"] == name) for name in self.names}

    def latest_sample(self):
        """The number of the page's latest one, at least as new as this moment."""
        seen = self.page.run("document.body.dataset.answers")
        self.page.wait(f'Number(document.body.dataset.answers) > {seen}', "what consortd says now")
        return self.page.run("state.fine[state.fine.length - 1].number")

    def used_by_page(self, first, last):
        """What its samples after `first` up to `last` say of tenants."""
        return {name: self.page.run(f"state.fine.filter((sample) => sample.number > {first} && sample.number <= {last})"
                                    f'.reduce((sum, sample) => sum + (sample.tenants["{name}"] || [0])[0], 0)')
                for name in self.names}

    names = tuple(tenant.name for tenant in TENANTS)

    def measure(self):
        """{who says it: {tenant: its share}} of a window that begins now."""
        metrics, top, sample = self.device_seconds(), self.used_by_top(), self.latest_sample()
        time.sleep(WINDOW_SECONDS)
        more, top_more, last = self.device_seconds(), self.used_by_top(), self.latest_sample()
        used = {"metrics": {name: more[name] - metrics[name] for name in self.names},
                "top": {name: top_more[name] - top[name] for name in self.names},
                "page": self.used_by_page(sample, last)}
        return {view: {name: each[name] / sum(each.values()) for name in self.names} for view, each in used.items()}

    def promised(self, weight):
        return {"one": 1 / (1 + weight), "two": weight / (1 + weight)}

    def wrong(self, weight):
        """Sets the weight of two; what views say of the time afterwards that is not what it promises."""
        self.daemon.control("tenant", "set", "two", "--weight", str(weight))
        wanted = self.promised(weight)
        time.sleep(SETTLED_SECONDS)
        found = self.measure()
        print(f"\n    weight {weight}, two is promised {100 * wanted['two']:.2f} %:", "; ".join(
            f"{view} " + " ".join(f"{name} {100 * share:.2f} %" for name, share in shares.items())
            for view, shares in found.items()), end="")
        return [f"{view} says {share:.4f} of {name}, promised is {wanted[name]:.4f}" for view, shares in found.items()
                for name, share in shares.items() if abs(share / wanted[name] - 1) > TOLERANCE]

    def wait_for_the_moment(self, wanted):
        """Until what top and the page show as the present share is as promised."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        waits = {"top", "page"}
        while waits:
            shown = {"top": {share["tenant"]: share["share"] for share in self.top()["shares"]},
                     "page": {name: float(text.split("\u2009")[0]) / 100 for name, text in self.page.run(
                         '[...document.querySelectorAll("#tenants tbody tr")].map('
                         '(row) => [row.dataset.name, row.querySelector(".now").textContent])')}}
            for view, shares in shown.items():
                if all(abs(shares.get(name, 0) - share) <= MOMENT_TOLERANCE for name, share in wanted.items()):
                    waits.discard(view)
            self.assertLess(time.monotonic(), deadline, f"{waits} do not show {wanted}, but {shown}")
            time.sleep(LOOK_SECONDS)

    def test_a_weight_is_what_metrics_page_and_top_show_two_seconds_later(self):
        """More tries, each another change: where the machine keeps kernels of the CPU device from running, what was
        submitted before takes long, and is paid back after the window. A wrong scheduler is wrong each time."""
        tries = []
        with busy_programs(self.daemon, self.folder, TENANTS):
            self.page.wait('document.querySelectorAll("#tenants tbody tr").length === 2', "both tenants")
            for weight in (3, 1, 3, 1, 3):
                tries.append(self.wrong(weight))
                if not tries[-1]:
                    self.wait_for_the_moment(self.promised(weight))
                    break
        self.assertEqual(self.page.errors, [])
        self.assertEqual(tries[-1], [], tries)


if __name__ == "__main__":
    unittest.main(verbosity=2)
