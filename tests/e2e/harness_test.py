#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/harness_test.py: the virtual machine harness itself, with nothing of Consort in it."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import vm

HANG = "sleep 1000\n"


def setUpModule():
    try:
        vm.qemu()
    except vm.Unavailable as reason:
        raise unittest.SkipTest(str(reason))


class Harness(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def make(self, flavour, script, files=None, **options):
        kernel = vm.kernel_or_skip(flavour)
        vm.build_initramfs(kernel, files or {}, script, self.folder / "initramfs")
        return vm.Vm(kernel, self.folder / "initramfs", **options)

    def check_runs_programs(self, flavour):
        script = vm.guest_script([
            vm.Command("static", ("/opt/busybox", "true")),
            vm.Command("dynamic", ("/opt/ls", "/proc/self/exe"), {"LC_ALL": "C"}),
            vm.Command("status", ("sh", "-c", "printf no-newline; exit 3")),
            vm.Command("environment", ("sh", "-c", 'test "$A" = "b c"'), {"A": "b c"}),
            vm.Command("late", ("sleep", "60"), timeout_s=1),
        ])
        files = {"/opt/busybox": shutil.which("busybox"),
                 "/opt/ls": shutil.which("ls")}
        with self.make(flavour, script, files) as guest:
            guest.wait_up()
            end = guest.wait()
        statuses = {name: result.status for name, result in guest.results().items()}
        self.assertEqual(statuses, {"static": 0, "dynamic": 0, "status": 3, "environment": 0,
                                    "late": 143}, guest.tail())
        self.assertEqual((end.status, end.qemu_status, end.timed_out), (2, 0, False), guest.tail())
        self.assertIn("/proc/self/exe", guest.output())

    def test_runs_programs_on_6_1(self):
        self.check_runs_programs("6.1")

    def test_runs_programs_on_6_12(self):
        self.check_runs_programs("6.12")

    def test_watchdog_ends_a_guest_that_hangs(self):
        with self.make("6.1", HANG, timeout_s=3) as guest:
            end = guest.wait()
        self.assertTrue(end.timed_out)
        self.assertIsNone(end.status)
        self.assertEqual(end.qemu_status, -signal.SIGKILL)

    def test_waiting_for_what_never_comes_shows_the_serial_lines(self):
        with self.make("6.1", "echo something else\nexit 0\n") as guest:
            with self.assertRaisesRegex(vm.VmError, "(?s)QEMU ended.*something else"):
                guest.wait_for("never printed")

    def test_qemu_that_cannot_start_is_reported(self):
        with self.make("6.1", HANG, vsock_socket=self.folder / "nobody-listens") as guest:
            end = guest.wait()
        self.assertIsNone(end.status)
        self.assertNotEqual(end.qemu_status, 0)
        self.assertIn("nobody-listens", guest.tail())

    def test_qemu_does_not_outlive_a_killed_harness(self):
        guest = self.make("6.1", HANG)
        del guest  # only to have the initramfs, and to skip where there is no kernel
        program = ("import sys, vm\n"
                   "g = vm.Vm(vm.fetch_kernel('6.1'), sys.argv[1])\n"
                   "g.start(); print(g.process_id(), flush=True); g.wait()\n")
        harness = subprocess.Popen([sys.executable, "-c", program, self.folder / "initramfs"],
                                   stdout=subprocess.PIPE, text=True,
                                   cwd=pathlib.Path(__file__).parent)
        self.addCleanup(harness.stdout.close)
        child = int(harness.stdout.readline())
        self.assertEqual(pathlib.Path(f"/proc/{child}/comm").read_text("ascii")[:4], "qemu")
        harness.kill()
        harness.wait()
        deadline = time.monotonic() + 20
        while is_running(child) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(is_running(child))

    def test_a_library_that_is_nowhere_is_named(self):
        with self.assertRaisesRegex(vm.Unavailable, "libnowhere.so.1"):
            source = self.folder / "x.c"
            source.write_text("int x(void) { return 0; }\n", "ascii")
            library = self.folder / "libnowhere.so.1"
            subprocess.run(["gcc", "-shared", "-Wl,-soname,libnowhere.so.1", "-o", library, source],
                           check=True)
            main = self.folder / "main.c"
            main.write_text("int x(void);\nint main(void) { return x(); }\n", "ascii")
            subprocess.run(["gcc", "-o", self.folder / "main", main, library], check=True)
            library.unlink()
            self.make("6.1", HANG, {"/usr/bin/main": self.folder / "main"})


def is_running(process_id):
    try:
        state = pathlib.Path(f"/proc/{process_id}/stat").read_text("ascii").rpartition(")")[2]
    except FileNotFoundError:
        return False
    return state.split()[0] != "Z"  # a zombie waits for whoever inherited it


if __name__ == "__main__":
    os.chdir(pathlib.Path(__file__).parent)
    unittest.main(verbosity=2)
