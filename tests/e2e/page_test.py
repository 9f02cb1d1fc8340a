#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/page_test.py: consortd's page in a headless Chromium, while CUDA programs run: it is live, fits a desktop and
a phone, is readable in light and dark, can be used without a mouse, and says nothing on its console.

With CONSORT_SCREENSHOTS, a folder, it leaves pictures there.
"""

import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

import browser
import stack
from vm import die_with_parent

TENANTS = {"research": 2, "render": 1}

# Contrast of every text with what is behind it, by WCAG 2.1 (relative luminance); those below what AA asks.
CONTRAST = r"""
(() => {
  const channel = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const parse = (text) => text.match(/[\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const bad = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !node.checkVisibility() || node.closest("noscript, script")) continue;
    const style = getComputedStyle(node);
    const front = luminance(parse(node.closest("svg") ? style.fill : style.color));
    const back = luminance(behind(node));
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (ratio < 4.5) bad.push(walk.currentNode.textContent.trim() + " " + ratio.toFixed(2));
  }
  return bad;
})()
"""

# What has no name for somebody who does not see it.
NAMELESS = """
[...document.querySelectorAll("button, a, table, [role=img], [role=toolbar], section")].filter((node) =>
  !(node.textContent.trim() || node.getAttribute("aria-label") || node.getAttribute("aria-labelledby"))).map((node) => node.outerHTML)
"""


def text_of(selector):
    return f'document.querySelector("{selector}").textContent'


@unittest.skipUnless(browser.PROGRAM, "no chromium on this machine (Debian: chromium)")
class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="page-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        tenants = cls.folder / "tenants.toml"
        tenants.write_text("".join(
            f'[[tenant]]\nname = "{name}"\nweight = {weight}\nsocket = "{cls.folder}/{name}.sock"\n'
            for name, weight in TENANTS.items()), "utf-8")
        (cls.folder / "vms.d").mkdir()
        cls.daemon = cls.enterClassContext(stack.Daemon(
            cls.folder, device="cpu", metrics="127.0.0.1:0",
            arguments=("--tenants", str(tenants), "--devices", "2", "--vm-files", str(cls.folder / "vms.d"))))
        cls.browser = cls.enterClassContext(browser.Browser())

    def setUp(self):
        self.browser.errors.clear()
        self.browser.look(1280, 900, "light")
        self.browser.open(self.daemon.page_url())
        self.browser.wait("document.body && Number(document.body.dataset.answers) > 1", "two answers")

    def tearDown(self):
        self.assertEqual(self.browser.errors, [])

    def start_program(self, tenant, device=0):
        """Endless kernels."""
        program = subprocess.Popen(
            [stack.PROGRAMS / "busy", "1000", "300000", "4"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            env=dict(self.daemon.local_environment(self.folder / f"{tenant}.sock"), CUDA_VISIBLE_DEVICES=str(device)),
            preexec_fn=die_with_parent)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        return program

    def test_shows_what_happens_while_it_happens(self):
        page = self.browser
        self.assertEqual(page.run(text_of("#sum-applications")), "0")
        program = self.start_program("research")
        row = f'[...document.querySelectorAll("#sessions tbody tr")].find((row) => row.textContent.includes("pid {program.pid}"))'
        page.wait(f'{row}?.textContent.includes("research")', "the application's row")
        page.wait(f'{row}.querySelector(".phase").dataset.phase === "computing"', "its phase")
        page.wait(f'parseFloat({row}.querySelector(".use").textContent) > 0', "its device time")
        page.wait(f'/[1-9].*MiB/.test({row}.textContent)', "its memory")
        page.wait(text_of("#sum-applications") + ' === "1"', "the number of applications")
        page.wait('parseFloat(document.querySelector("#devices .busy").textContent) > 0', "the device to be busy")
        tenant = '[...document.querySelectorAll("#tenants tbody tr")].find((row) => row.dataset.name === "research")'
        page.wait(f'parseFloat({tenant}?.querySelector(".now").textContent) === 100', "all of the share")
        self.assertEqual(page.run(f'{tenant}.querySelector(".weight").textContent'), "2")
        page.wait('document.querySelector("#plot .area")', "the plot")
        program.kill()
        page.wait(text_of("#sum-applications") + ' === "0"', "the application to go")
        page.wait(f'{row} === undefined', "its row to go")

    def test_a_new_machine_and_a_dead_worker_are_events(self):
        page = self.browser
        (self.folder / "vms.d" / "web-7.toml").write_text('tenant = "research"\n', "utf-8")
        self.daemon.signal(signal.SIGHUP)
        page.wait(text_of("#events") + '.includes("virtual machine web-7 of tenant research")', "the machine's event")
        page.wait(text_of("#sum-vms") + ' === "1"', "the number of machines")
        worker = page.run('fetch("/api/v1/page").then((answer) => answer.json()).then((all) => all.status.devices[1].worker_pid)')
        os.kill(worker, signal.SIGKILL)
        page.wait('document.querySelector("#events [data-level=error]")?.textContent.includes("device 1: its worker died")',
                  "the worker's event")
        page.wait(text_of("#events") + '.includes("device 1 is ready again")', "another worker")

    def test_works_by_keyboard(self):
        page = self.browser
        self.start_program("research", device=1)
        page.wait(text_of("#sum-applications") + ' !== "0"', "an application")
        page.press("Tab", number=9)
        self.assertEqual(page.run("document.activeElement.className"), "skip")
        for _ in range(2):
            page.press("Tab", number=9)
        self.assertEqual(page.run("document.activeElement.className"), "device")
        page.press("ArrowRight", number=39)
        focused = "document.activeElement.getAttribute('aria-label')"
        self.assertTrue(page.run(focused).startswith("Device 1, "), page.run(focused))
        page.press("ArrowLeft", number=37)
        self.assertTrue(page.run(focused).startswith("Device 0, "), page.run(focused))
        page.press("Enter", number=13)
        page.wait(text_of("#filter") + ' === "of device 0 only"', "the filter")
        page.wait(text_of("#no-sessions") + ' === "No application is open on device 0."', "no application there")
        page.press("Enter", number=13)
        page.wait('document.querySelectorAll("#sessions tbody tr").length === 1', "all applications again")
        page.press("Tab", number=9)
        page.press("Tab", number=9)
        page.press("Enter", number=13)
        self.assertEqual(page.run('document.querySelector("#range-coarse").getAttribute("aria-pressed")'), "true")
        page.run('document.querySelector("#range-fine").click()')
        page.wait('document.querySelector("#plot .area")', "the plot")
        page.press("Tab", number=9)
        self.assertEqual(page.run("document.activeElement.id"), "plot")
        page.press("ArrowLeft", number=37)
        page.wait('/^\\d\\d:\\d\\d:\\d\\d/.test(' + text_of("#plot-say") + ')', "the moment's words")
        page.press("Escape", number=27)
        page.wait(text_of("#plot-say") + '.startsWith("Point at the plot")', "the moment to be let go")
        page.press("Tab", number=9)
        self.assertEqual(page.run("document.activeElement.id"), "find")
        page.press("Tab", number=9)
        page.press("Enter", number=13)
        self.assertEqual(page.run('document.querySelector("#sessions th").getAttribute("aria-sort")'), "ascending")

    def test_fits_and_is_readable_everywhere(self):
        page = self.browser
        for tenant in TENANTS:
            self.start_program(tenant)
        page.wait(text_of("#sum-applications") + ' === "2"', "the applications")
        page.wait('document.querySelectorAll("#tenants tbody tr").length === 2', "the tenants")
        pictures = os.environ.get("CONSORT_SCREENSHOTS")
        for name, width, height, mobile in (("desktop", 1280, 900, False), ("phone", 390, 844, True), ("small", 320, 568, True)):
            for scheme in ("light", "dark"):
                with self.subTest(f"{name} {scheme}"):
                    page.look(width, height, scheme, mobile)
                    page.wait(f"innerWidth === {width}", "the size")
                    self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width)
                    dark = page.run("parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]) < 128")
                    self.assertEqual(dark, scheme == "dark")
                    self.assertEqual(page.run(CONTRAST), [])
                    self.assertEqual(page.run(NAMELESS), [])
                    if pictures:
                        page.screenshot(f"{pictures}/{name}-{scheme}.png")

    def test_the_colours_can_be_chosen(self):
        page = self.browser
        is_dark = "parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]) < 128"
        # Light, dark, as the system says; and that is light, then dark.
        for dark in (False, True, False):
            page.run('document.querySelector("#theme").click()')
            self.assertEqual(page.run(is_dark), dark)
        page.look(1280, 900, "dark")
        page.wait(is_dark, "the system's colours")
        page.run('document.querySelector("#theme").click()')
        self.assertFalse(page.run(is_dark))
        page.run('document.querySelector("#theme").click(); document.querySelector("#theme").click()')

    def test_says_when_the_daemon_is_gone_and_takes_up_with_the_next(self):
        with tempfile.TemporaryDirectory(prefix="page-") as folder:
            with stack.Daemon(folder, device="cpu", metrics="127.0.0.1:0") as daemon:
                url = daemon.page_url()
                self.browser.open(url)
                self.browser.wait('document.querySelector("#live")?.dataset.state === "live"', "it to be live")
                self.assertEqual(daemon.stop(), 0)
            self.browser.wait('document.querySelector("#live").dataset.state === "lost"', "it to be lost")
            # The requests that failed are no mistake of the page.
            self.browser.errors[:] = [error for error in self.browser.errors if "ERR_CONNECTION_REFUSED" not in error]
            with stack.Daemon(folder, device="cpu", metrics=url.split("/")[2]):
                self.browser.wait('document.querySelector("#live").dataset.state === "live"', "it to be live again")
                self.browser.wait('document.querySelectorAll("#events li").length > 0', "its events")


if __name__ == "__main__":
    unittest.main(verbosity=2)
