#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/vm_test.py: virtual machines without a GPU run unmodified CUDA programs.

Skipped with the reason where QEMU or a kernel cannot be had. Asserts behaviour, never speed.
"""

import json
import os
import pathlib
import re
import signal
import tempfile
import unittest
import urllib.request

import stack
import vm

# One at a time in the guest of the newest kernel; fork_child and error_handling among them.
PROGRAMS = ("vector_add", "matrix_multiply", "reduction", "histogram", "black_scholes", "streams",
            "async_events", "callbacks", "pinned_memory", "copies", "device_query",
            "constant_symbols", "threads", "threads_default_stream", "fork_child", "driver_api",
            "occupancy_attributes", "two_units", "big_copy", "graphs", "stream_ordered_memory",
            "error_handling")

# For the older kernel, whose vsock copies every send.
PROGRAMS_OF_OLD_KERNEL = ("vector_add", "matrix_multiply", "histogram", "streams", "callbacks",
                          "big_copy")

# A launch of many_launches on the wire: header, eleven words, and arguments of 12 bytes in two.
FRAME_BYTES = 16 + 11 * 8 + 16
# Its code, as nvcc makes it, and what its runtime asks at the start, at most.
PROGRAM_BYTES = 512 * 1024
# What goes before a session's channel, and queries, at most.
GREETINGS_BYTES = 64 * 1024


def setUpModule():
    try:
        vm.qemu()
    except vm.Unavailable as reason:
        raise unittest.SkipTest(str(reason))


def commands(names):
    return [vm.Command(name, (f"/usr/bin/{name}",)) for name in names]


def repeat(name, *arguments):
    """A command that runs the program until it fails."""
    loop = f"while /usr/bin/{name} {' '.join(arguments)}; do :; done; exit 1"
    return vm.Command(f"{name}_loop", ("sh", "-c", loop))


class VmCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start_daemon(self, *vms):
        self.daemon = self.enterContext(stack.Daemon(self.folder, vms))
        return self.daemon

    def start_guest(self, flavour, guest_commands, programs, name=None, concurrent=False, shared_memory=None,
                    on_line=None, files=()):
        """A running guest on the VM socket of that name; without a name it has no vsock device. shared_memory, on_line: as Vm
        has them. files: (guest path, host path) of more than the programs."""
        kernel = vm.kernel_or_skip(flavour)
        initramfs = self.folder / f"{name}.initramfs"
        vm.build_initramfs(kernel, stack.guest_files(programs) | dict(files),
                           vm.guest_script(guest_commands, concurrent), initramfs)
        return self.enterContext(vm.Vm(
            kernel, initramfs, self.daemon.vm_socket(name) if name else None, memory_mib=768,
            qmp=self.folder / f"{name}.qmp", shared_memory=shared_memory, on_line=on_line))

    def text(self, *guests):
        """What everybody said, for a failure's message."""
        parts = [guest.tail(60) for guest in guests]
        if hasattr(self, "daemon"):
            parts.append(self.daemon.log_tail())
        return "\n" + "\n".join(parts)

    def expect_success(self, guest, names):
        end = guest.wait()
        statuses = {name: result.status for name, result in guest.results().items()}
        self.assertEqual(statuses, {name: 0 for name in names}, self.text(guest))
        self.assertEqual(guest.output().count("PASS"), len(names), self.text(guest))
        self.assertEqual(end.status, 0, self.text(guest))
        self.assertFalse(end.timed_out)

    def session(self):
        """The only one that there is; None: there is none."""
        return (json.loads(self.daemon.control("status", "--output", "json"))["sessions"] or [None])[0]

    def counted(self):
        """What the metrics count of machines: values by name and labels."""
        with urllib.request.urlopen(self.daemon.metrics_url(), timeout=stack.PATIENCE_SECONDS) as answer:
            text = answer.read().decode("ascii")
        found = re.findall(r"^consort_vm_(\w+)_total{(.*)} (\S+)$", text, re.MULTILINE)
        return {(name, labels): float(value) for name, labels, value in found}


class OneGuest(VmCase):
    def check_programs(self, flavour, names):
        daemon = self.start_daemon("guest")
        guest = self.start_guest(flavour, commands(names), names, "guest")
        self.expect_success(guest, names)
        sessions = daemon.wait_for_account(
            lambda all: {session["application"] for session in all} >= set(names))
        self.assertEqual({session["vm"] for session in sessions}, {"guest"})
        for session in sessions:
            self.assertTrue(session["channel"].startswith("vhost-user"), session)
        for name in set(names) - {"copies", "device_query"}:
            launches = sum(session["kernel_launches"] for session in sessions
                           if session["application"] == name)
            self.assertGreater(launches, 0, name)
        self.assertEqual(daemon.stop(), 0, daemon.log_tail())

    def test_all_programs_on_6_12(self):
        self.check_programs("6.12", PROGRAMS)

    def test_programs_on_6_1(self):
        self.check_programs("6.1", PROGRAMS_OF_OLD_KERNEL)

    def test_programs_at_once_in_one_guest(self):
        names = ("vector_add", "reduction", "callbacks", "pinned_memory")
        self.start_daemon("guest")
        guest = self.start_guest("6.12", commands(names), names, "guest", concurrent=True)
        self.expect_success(guest, names)

    def test_a_launch_leaves_the_machine_at_most_once_and_is_copied_once_by_the_device(self):
        """A kick makes a virtual CPU exit: there may be one for each packet, and none where the device looks on."""
        launches, others = 10000, 1000
        self.daemon = self.enterContext(stack.Daemon(self.folder, ("guest",), metrics="127.0.0.1:0"))
        guest = self.start_guest("6.12", [vm.Command("many_launches", ("/usr/bin/many_launches", str(launches), "1"))],
                                 ["many_launches"], "guest")
        self.expect_success(guest, ["many_launches"])
        counted = self.counted()
        kicks = counted["kicks", 'vm="guest"']
        interrupts = counted["interrupts", 'vm="guest"']
        copied = counted["copied_bytes", 'vm="guest",direction="from_guest",by="device"']
        print(f"a launch: {kicks / launches:.3f} kicks, {interrupts / launches:.3f} interrupts, "
              f"{copied / launches:.0f} bytes")
        self.assertGreater(kicks, 0)
        self.assertLess(kicks, launches + others)
        # What the requests take on the wire, with the program's code and start.
        self.assertGreater(copied, launches * FRAME_BYTES)
        self.assertLess(copied, launches * FRAME_BYTES + PROGRAM_BYTES)
        # Greetings; the launches go through memory.
        self.assertLess(counted["copied_bytes", 'vm="guest",direction="from_guest",by="other_end"'], GREETINGS_BYTES)

    def test_bulk_data_is_copied_once_each_way(self):
        self.daemon = self.enterContext(stack.Daemon(self.folder, ("guest",), metrics="127.0.0.1:0"))
        guest = self.start_guest("6.12", commands(["big_copy"]), ["big_copy"], "guest")
        self.expect_success(guest, ["big_copy"])
        session = self.daemon.wait_for_account(lambda all: len(all) == 1)[0]
        counted = self.counted()
        for direction, bulk in (("from_guest", session["bytes_to_device"]), ("to_guest", session["bytes_to_host"])):
            copied = {by: counted["copied_bytes", f'vm="guest",direction="{direction}",by="{by}"'] for by in ("device", "other_end")}
            print(f"{direction}: {sum(copied.values()) / bulk:.4f} copies of {bulk} bytes")
            self.assertGreaterEqual(copied["device"], bulk)
            self.assertLess(copied["device"], 1.02 * bulk + PROGRAM_BYTES)
            self.assertLess(copied["other_end"], GREETINGS_BYTES)

    def test_a_program_moves_to_the_hosts_other_device_and_back(self):
        """Its stream's memory goes from worker to worker, with what the machine has put there meanwhile."""
        self.daemon = self.enterContext(stack.Daemon(self.folder, ("guest",), device="cpu", arguments=("--devices", "2")))
        command = vm.Command("wanderer", ("sh", "-c", "head -n 1 /dev/ttyS0 | /usr/bin/wanderer 4"), timeout_s=200)
        guest = self.start_guest("6.12", [command], ["wanderer"], "guest")

        stack.wait_for(lambda: self.session() and self.session()["kernel_launches"] > 0, "a program that computes", 120)
        for device in (1, 0):
            self.daemon.control("migrate", "wanderer", "--to", str(device))
            self.assertEqual(self.session()["device"], device)
            launches = self.session()["kernel_launches"]
            stack.wait_for(lambda: self.session()["kernel_launches"] > launches, "a program that goes on", 60)
        guest.type("go on")
        self.expect_success(guest, ["wanderer"])

    def test_a_paused_guest_goes_on_where_it_was(self):
        self.start_daemon("guest")
        guest = self.start_guest("6.12", commands(["big_copy", "vector_add"]),
                                 ["big_copy", "vector_add"], "guest")
        guest.wait_for("big_copy: pageable")  # the pinned part is under way
        guest.qmp_command("stop")
        self.assertEqual(guest.qmp_command("query-status")["status"], "paused")
        guest.qmp_command("cont")
        self.expect_success(guest, ["big_copy", "vector_add"])


    def test_a_program_outlives_its_workers(self):
        """Of a machine that shares no memory: what goes between it and a worker is kept in the device's."""
        kills = 3
        self.daemon = self.enterContext(stack.Daemon(self.folder, ("guest",), device="cpu", arguments=("--keep-memory", "on")))
        steps = f"(printf 1; for i in $(seq {kills}); do read line </dev/ttyS0; printf 1; done)"
        command = vm.Command("wanderer", ("sh", "-c", f"{steps} | /usr/bin/wanderer 2 steps"), timeout_s=250)
        guest = self.start_guest("6.12", [command], ["wanderer"], "guest")
        for kill in range(kills):
            guest.wait_for(f"round {kill}", 120)
            stack.wait_for(lambda: self.session() and self.session()["outlives_worker"], f"a program at rest{self.text(guest)}")
            os.kill(self.session()["worker_pid"], signal.SIGKILL)
            stack.wait_for(lambda went_on=kill + 1: len(re.findall(r"goes on in worker \d+", self.daemon.log())) == went_on,
                           f"a program that goes on{self.text(guest)}")
            guest.type("go on")
        self.expect_success(guest, ["wanderer"])
        sessions = self.daemon.wait_for_account(lambda all: len(all) == kills + 1)
        self.assertEqual([(session["channel"], session["end"]) for session in sessions],
                         [("vhost-user", "worker died")] * kills + [("vhost-user", "closed")])
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log_tail())


class TwoGuests(VmCase):
    def test_a_killed_guest_does_not_disturb_the_other(self):
        daemon = self.start_daemon("victim", "survivor")
        victim = self.start_guest("6.12", [repeat("big_copy", "8")], ["big_copy"], "victim")
        names = ("big_copy", "matrix_multiply", "streams", "callbacks", "copies")
        survivor = self.start_guest("6.12", commands(names), names, "survivor")
        survivor.wait_up()
        victim.wait_for("big_copy: pageable")
        victim.kill()
        self.expect_success(survivor, names)
        sessions = daemon.wait_for_account(
            lambda all: {session["vm"] for session in all} == {"victim", "survivor"})
        for session in sessions:
            if session["vm"] == "survivor":
                self.assertEqual(session["end"], "closed", session)
        lost = rf"frontend of {re.escape(str(daemon.vm_socket('victim')))} (has gone|dropped)"
        self.assertRegex(daemon.log(), lost)
        # The same VM started again, as its owner would, finds its device.
        again = self.start_guest("6.1", commands(["vector_add"]), ["vector_add"], "victim")
        self.expect_success(again, ["vector_add"])
        self.assertEqual(daemon.stop(), 0, daemon.log_tail())


class NoBackend(VmCase):
    """A guest without our device: the program is told that there is no GPU, a person why."""

    def check(self, flavour):
        guest = self.start_guest(flavour, commands(["vector_add"]), ["vector_add"])
        end = guest.wait()
        self.assertEqual(end.status, 1, self.text(guest))
        self.assertEqual(guest.results()["vector_add"].status, 1, self.text(guest))
        # A program must not hang for long before it learns this.
        self.assertLess(guest.results()["vector_add"].seconds, 10, self.text(guest))
        output = guest.output()
        self.assertEqual(sum("cudaErrorNoDevice" in line for line in output), 1, self.text(guest))
        ours = [line for line in output if line.startswith("consort: ")]
        self.assertEqual(len(ours), 1, self.text(guest))
        self.assertRegex(ours[0], r"^consort: no GPU: .*vsock:2:7000")

    def test_on_6_12(self):
        self.check("6.12")

    def test_on_6_1(self):
        self.check("6.1")


if __name__ == "__main__":
    unittest.main(verbosity=2)
