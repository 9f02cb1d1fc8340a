#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/full_host_test.py: what operators look at, with 64 devices and 1,000 applications (full_host.py): nothing is
missing, the page goes on and stays of a size that a browser and a person can take, and metrics grow with what there is and
no more. How long each takes is full_host_bench's.

With CONSORT_SCREENSHOTS, a folder, it leaves pictures there.
"""

import collections
import json
import os
import re
import tempfile
import time
import unittest
import urllib.request

import browser
from full_host import APPLICATIONS, DEVICES, NAMES, TENANTS, full_host

SECONDS = 120
NODES_MOST = 6000  # of the page's document, with every list shown
SESSIONS_AT_FIRST = 20
SESSIONS_MOST = 200


def text_of(selector):
    return f'document.querySelector("{selector}").textContent'


def fetch(url):
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        return answer.read().decode("ascii")


def samples(text):
    """(name, {label: value}, value) of each line."""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line).groups()
        yield name, dict(re.findall(r'(\w+)="([^"]*)"', labels or "")), float(value)


@unittest.skipUnless(browser.PROGRAM, "no chromium on this machine (Debian: chromium)")
class FullHost(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="full-")
        cls.addClassCleanup(folder.cleanup)
        cls.host = cls.enterClassContext(full_host(folder.name))
        cls.page = cls.enterClassContext(browser.Browser())

    def open(self):
        page = self.page
        page.errors.clear()
        page.look(1280, 900, "light")
        page.open(self.host.daemon.page_url())
        page.wait("document.body && Number(document.body.dataset.answers) > 3", "some answers", SECONDS)
        return page

    def test_1_all_are_in_the_metrics_and_labels_are_bounded(self):
        text = fetch(self.host.daemon.metrics_url())
        values = collections.defaultdict(list)
        for name, labels, value in samples(text):
            values[name].append((labels, value))
        self.assertEqual(sum(value for _, value in values["consort_sessions"]), APPLICATIONS)
        self.assertEqual(sum(value for _, value in values["consort_device_up"]), DEVICES)
        self.assertEqual(len(values["consort_device_up"]), DEVICES)
        self.assertEqual({labels["tenant"] for labels, _ in values["consort_sessions"]},
                         {f"tenant-{number}" for number in range(TENANTS)})
        # Nothing that a session has for itself, such as a pid, makes a series.
        self.assertEqual(len({labels["application"] for labels, _ in values["consort_sessions"]}), NAMES)
        self.assertEqual({label for each in values.values() for labels, _ in each for label in labels},
                         {"application", "device", "direction", "driver", "kind", "le", "model", "phase", "policy", "reason", "result",
                          "tenant", "tier", "uuid", "version"})
        again = fetch(self.host.daemon.metrics_url())
        self.assertEqual(len(text.splitlines()), len(again.splitlines()))

    def test_2_all_are_in_consortctl(self):
        status = json.loads(self.host.daemon.control("status", "--output", "json"))
        self.assertEqual({session["pid"] for session in status["sessions"]}, set(range(1000, 1000 + APPLICATIONS)))
        self.assertEqual([device["state"] for device in status["devices"]], ["ready"] * DEVICES)
        # Each has a window of one slot or more.
        self.assertGreaterEqual(status["windows_used"], APPLICATIONS)
        self.assertEqual(len(re.findall(r"(?m)^ *\d+  tenant-\d+ +tenant-\d+ +python3-", self.host.daemon.control("status"))), APPLICATIONS)
        self.assertEqual(len(json.loads(self.host.daemon.control("apps", "--tenant", "tenant-7", "--output", "json"))), APPLICATIONS // TENANTS)
        before = {session["id"]: session["device_seconds"] for session in status["sessions"]}

        def all_busy_went_on():
            after = {session["id"]: session["device_seconds"] for session in
                     json.loads(self.host.daemon.control("top", "--once", "--output", "json"))["sessions"]}
            busy = [number for number, seconds in after.items() if seconds > 0]
            return len(busy) >= APPLICATIONS / 2 and all(after[number] > before[number] for number in busy)

        deadline = time.monotonic() + SECONDS
        while not all_busy_went_on():
            self.assertLess(time.monotonic(), deadline, "reports stand still")

    def test_3_the_page_is_live_and_small(self):
        page = self.open()
        self.assertEqual(page.run(text_of("#sum-applications")), str(APPLICATIONS))
        self.assertEqual(page.run(text_of("#sum-tenants")), f"of {TENANTS}\u00a0tenants")
        self.assertEqual(page.run('document.querySelectorAll("#devices .device").length'), DEVICES)
        page.wait('[...document.querySelectorAll("#devices .busy")].filter((node) => parseFloat(node.textContent) > 90).length'
                  f" === {DEVICES}", "all devices to be busy", SECONDS)
        rows = 'document.querySelectorAll("#sessions tbody tr").length'
        self.assertEqual(page.run(rows), SESSIONS_AT_FIRST)
        page.run('for (const id of ["sessions", "tenants", "events"]) document.querySelector("#more-" + id).click()')
        page.wait(f"{rows} === {SESSIONS_MOST}", "the busiest")
        self.assertEqual(page.run('document.querySelectorAll("#tenants tbody tr").length'), TENANTS)
        page.wait(text_of("#filter") + f' === "the busiest {SESSIONS_MOST} of {APPLICATIONS}"', "the words for it")
        # It goes on with all of them shown.
        page.run("window.begun = Number(document.body.dataset.answers)")
        page.run('window.first = document.querySelector("#sessions td:last-child").textContent')
        page.wait("Number(document.body.dataset.answers) > window.begun + 3", "more answers", SECONDS)
        page.wait('document.querySelector("#sessions td:last-child").textContent !== window.first', "a row to change", SECONDS)
        self.assertEqual(page.run('document.querySelector("#live").dataset.state'), "live")
        self.assertLess(page.run('document.querySelectorAll("*").length'), NODES_MOST)
        self.assertEqual(page.errors, [])

    def test_4_the_page_finds_one_among_all(self):
        page = self.open()

        def find(text):
            page.run(f'document.querySelector("#find").value = {json.dumps(text)};'
                     'document.querySelector("#find").dispatchEvent(new Event("input"))')

        rows = '[...document.querySelectorAll("#sessions tbody tr")]'
        find("1777")
        page.wait(f'{rows}.length === 1 && {rows}[0].textContent.includes("pid 1777")', "the one of that pid", SECONDS)
        find("TENANT-17")
        page.wait(text_of("#filter") + f' === "{APPLICATIONS // TENANTS} found"', "a tenant's", SECONDS)
        self.assertTrue(page.run(f'{rows}.every((row) => row.textContent.includes("tenant-17"))'))
        find("no such / 100%")
        page.wait(f'{rows}.length === 0 && ' + text_of("#no-sessions") + ' === "No such application is open."', "none", SECONDS)
        find("")
        page.run('document.querySelectorAll("#devices .device")[5].click()')
        page.wait(text_of("#filter") + ' === "of device 5 only"', "the device's words", SECONDS)
        # 5, 69, 133 and so on below 1,000.
        page.wait(f'{rows}.length === {len(range(5, APPLICATIONS, DEVICES))}', "all of the device's", SECONDS)
        page.run('document.querySelectorAll("#devices .device")[5].click()')
        self.assertEqual(page.errors, [])

    def test_5_the_page_fits_everywhere(self):
        page = self.open()
        pictures = os.environ.get("CONSORT_SCREENSHOTS")
        for name, width, height, scheme in (("desktop", 1280, 900, "light"), ("desktop", 1280, 900, "dark"),
                                            ("phone", 390, 844, "light"), ("phone", 390, 844, "dark")):
            page.look(width, height, scheme, name == "phone")
            page.wait(f"innerWidth === {width}", "the size")
            self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width)
            if pictures:
                page.screenshot(f"{pictures}/full-{name}-{scheme}.png")

    def test_6_when_they_end_they_are_gone(self):
        page = self.open()
        self.host.load.kill()
        page.wait(text_of("#sum-applications") + ' === "0"', "all to end", SECONDS)
        self.assertEqual(sum(value for name, _, value in samples(fetch(self.host.daemon.metrics_url()))
                             if name in ("consort_sessions", "consort_windows_used")), 0)
        self.assertEqual(len(self.host.daemon.wait_for_account(lambda lines: len(lines) >= APPLICATIONS, SECONDS)), APPLICATIONS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
