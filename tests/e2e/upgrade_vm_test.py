#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/upgrade_vm_test.py: consortd's binary is exchanged while a machine runs on its vsock device.

Skipped with the reason where QEMU or a kernel cannot be had. The machine's programs check each word that they compute;
they end when a line is typed on its serial port.
"""

import unittest

import stack
import upgrades
import vm

PROGRAMS = ("wanderer", "big_copy", "vector_add")


class UpgradeUnderAMachine(upgrades.UpgradeCase):
    def setUp(self):
        self.kernel = vm.kernel_or_skip("6.12")

    def boot(self):
        self.start(vms=("web-1",))
        # Bulk data flows until the wanderer has ended, one copy after the other.
        working = """
            while [ ! -e /tmp/ended ]; do /usr/bin/big_copy 4 >/tmp/copied || exit 1; done &
            head -n 1 /dev/ttyS0 | /usr/bin/wanderer 4 >/tmp/wandered
            status=$?
            touch /tmp/ended
            [ $status = 0 ] || cat /tmp/wandered
            wait $! && exit $status"""
        idle = "(printf 123456789; head -n 1 /dev/ttyS0) | /usr/bin/wanderer 1 steps"
        commands = [
            vm.Command("wanderer", ("sh", "-c", working), timeout_s=300),
            vm.Command("idle", ("sh", "-c", idle)),
            vm.Command("vector_add", ("/usr/bin/vector_add",)),
        ]
        initramfs = self.folder / "initramfs"
        vm.build_initramfs(self.kernel, stack.guest_files(PROGRAMS), vm.guest_script(commands), initramfs)
        guest = self.enterContext(vm.Vm(self.kernel, initramfs, self.daemon.vm_socket("web-1"), memory_mib=512,
                                        timeout_s=380))
        guest.wait_up(timeout_s=180)
        return guest, [command.name for command in commands]

    def session_of(self, program):
        found = [session for session in self.status()["sessions"] if session["application"] == program]
        return found[0] if found else None

    def test_its_programs_run_on(self):
        guest, names = self.boot()
        session = self.works_on("wanderer", 0)
        vms = self.status()["vms"]
        # In the middle of computing and copying, twice in a row, and again.
        for _ in range(2):
            for _ in range(2):
                self.install("consortd")
                self.upgrade()
            self.assertEqual(self.status()["vms"], vms)
            now = self.works_on("wanderer", session["kernel_launches"])
            for same in ("id", "tenant", "vm", "application", "pid", "device", "worker_pid", "started"):
                self.assertEqual(now[same], session[same], same)
            session = now
        self.assertRegex(self.daemon.log(), "web-1.sock goes on with [1-9]")
        guest.type("end")
        # While its programs only wait.
        guest.wait_for("round 8", timeout_s=120)
        self.upgrade()
        guest.type("go on")
        end = guest.wait()
        text = f"\n{guest.tail(60)}\n{self.daemon.log_tail()}"
        self.assertEqual({name: result.status for name, result in guest.results().items()}, {name: 0 for name in names}, text)
        self.assertEqual(end.status, 0, text)
        self.assertEqual({line["end"] for line in self.daemon.account()}, {"closed"})
        self.assertEqual(self.status()["devices"][0]["worker_starts"], 1)
        self.stop()


if __name__ == "__main__":
    unittest.main()
