#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/vm_transfer_test.py: a machine is moved to another QEMU and another consortd, then saved and restored with the
first, while programs in it compute: they check each word themselves.

Skipped with the reason where QEMU or a kernel cannot be had. The programs end when lines are typed on its serial port.
"""

import json
import pathlib
import tempfile
import unittest

import stack
import vm

MACHINE = "web-1"
# For programs in an emulated machine to find its new device.
RETURN_SECONDS = 180
IDLE_ROUNDS = 4


class MachineOnTheMove(unittest.TestCase):
    def setUp(self):
        self.kernel = vm.kernel_or_skip("6.12")
        folder = tempfile.TemporaryDirectory(prefix="vms-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # One computes all the time; one waits for its user.
        commands = [vm.Command("busy", ("sh", "-c", "while [ ! -e /tmp/end ]; do sleep 0.1; done | /usr/bin/wanderer 4"), timeout_s=300),
                    vm.Command("idle", ("sh", "-c", f"(printf {'1' * IDLE_ROUNDS}; head -n 1 /dev/ttyS0; touch /tmp/end)"
                                        " | /usr/bin/wanderer 1 steps"), timeout_s=300)]
        self.names = [command.name for command in commands]
        self.initramfs = self.folder / "initramfs"
        vm.build_initramfs(self.kernel, stack.guest_files(("wanderer",)), vm.guest_script(commands, concurrent=True), self.initramfs)

    def daemon(self, name):
        folder = self.folder / name
        folder.mkdir()
        return self.enterContext(stack.Daemon(folder, vms=(MACHINE,), device="cpu"))

    def machine(self, daemon, name, incoming):
        """A QEMU of that machine; `incoming`: that waits, without its vsock device."""
        started = vm.Vm(self.kernel, self.initramfs, None if incoming else daemon.vm_socket(MACHINE), memory_mib=256,
                        qmp=self.monitor(name), timeout_s=380, incoming=incoming)
        self.enterContext(started)
        stack.wait_for(self.monitor(name).exists, "QEMU's monitor")
        return started

    def monitor(self, name):
        return self.folder / f"{name}.qmp"

    def sessions(self, daemon):
        return json.loads(daemon.control("status", "--output", "json"))["sessions"]

    def works(self, daemon):
        """Once both programs are there and one of them computes."""
        def launches():
            sessions = self.sessions(daemon)
            both = len(sessions) == 2 and {session["state"] for session in sessions} == {"open"}
            return both and sum(session["kernel_launches"] for session in sessions)
        try:
            seen = stack.wait_for(launches, "both programs", RETURN_SECONDS)
            stack.wait_for(lambda: launches() > seen, "a program that computes", RETURN_SECONDS)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.sessions(daemon)}\n{daemon.log_tail()}") from late

    def gone(self, daemon, machine):
        self.assertEqual(self.sessions(daemon), [])
        machine.wait()

    def test_its_programs_go_with_it(self):
        here, there = self.daemon("here"), self.daemon("there")
        first = self.machine(here, "first", incoming=False)
        first.wait_up(timeout_s=180)
        self.works(here)
        # Live, to another QEMU and another consortd.
        second = self.machine(there, "second", incoming=True)
        said = here.control("vm", "migrate", MACHINE, str(self.folder / "moved"), "--qmp", str(self.monitor("first")),
                            "--to-qmp", str(self.monitor("second")), "--to-admin-socket", str(there.admin_socket),
                            "--uri", f"unix:{self.folder}/link")
        self.assertIn(f"{MACHINE} goes on", said)
        self.gone(here, first)
        self.works(there)
        # What cannot be saved goes on as it was: here a folder that is another's.
        (self.folder / "taken").mkdir()
        (self.folder / "taken" / "thesis.tex").write_text("years of work", "utf-8")
        self.assertIn("is not empty", self.save(there, "second", "taken", status=1))
        self.works(there)
        # Into a folder, and back to the first consortd.
        self.assertIn(f"{MACHINE} is in {self.folder}/saved", self.save(there, "second", "saved"))
        self.gone(there, second)
        third = self.machine(here, "third", incoming=True)
        said = here.control("vm", "restore", MACHINE, str(self.folder / "saved"), "--qmp", str(self.monitor("third")))
        self.assertIn(f"{MACHINE} goes on", said)
        self.works(here)
        third.type("go on")
        third.wait()
        text = f"\n{third.tail(60)}\n{here.log_tail()}"
        self.assertEqual({name: result.status for name, result in third.results().items()}, {name: 0 for name in self.names}, text)

    def save(self, daemon, qemu, folder, status=0):
        return daemon.control("vm", "save", MACHINE, str(self.folder / folder), "--qmp", str(self.monitor(qemu)), status=status)


if __name__ == "__main__":
    unittest.main(verbosity=2)
