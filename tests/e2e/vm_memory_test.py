#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/vm_memory_test.py: a virtual machine that shares memory with its host (consortd --vm-memory).

Skipped with the reason where QEMU or a kernel cannot be had. Asserts what is copied and how often a machine
leaves its guest, never speed.
"""

import json
import os
import pathlib
import re
import signal
import tempfile
import unittest

import stack
import vm
import vm_test

MEMORY = "256MiB"

PROGRAMS = ("vector_add", "histogram", "streams", "async_events", "callbacks", "pinned_memory", "copies",
            "fork_child", "driver_api", "big_copy", "graphs", "error_handling")


def setUpModule():
    vm_test.setUpModule()


class SharedMemory(vm_test.VmCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="consort-test-")
        self.addCleanup(folder.cleanup)
        self.memories = pathlib.Path(folder.name)

    def start(self, *arguments, size=MEMORY, **options):
        self.daemon = self.enterContext(stack.Daemon(
            self.folder, ("guest",), metrics="127.0.0.1:0",
            arguments=("--vm-memory", size, "--vm-memory-files", self.memories, *arguments), **options))
        return self.daemon

    def memory(self):
        return self.memories / "consort-guest"

    def start_sharing(self, guest_commands, programs, **options):
        return self.start_guest("6.12", guest_commands, programs, "guest", shared_memory=self.memory(), **options)

    def test_programs_use_it(self):
        self.start(device="cpu")
        # It goes on until its input ends.
        managed = vm.Command("managed_variables", ("sh", "-c", "/usr/bin/managed_variables </dev/null"))
        names = (*PROGRAMS, "managed_variables")
        guest = self.start_sharing([*vm_test.commands(PROGRAMS), managed], names)
        self.expect_success(guest, names)
        sessions = self.daemon.wait_for_account(lambda all: {session["application"] for session in all} >= set(names))
        self.assertEqual({session["channel"] for session in sessions}, {"vhost-user+rings"}, self.text(guest))
        managed = next(session for session in sessions if session["application"] == "managed_variables")
        self.assertGreater(managed["kernel_launches"], 0, "a machine has managed memory then")

    def test_host_memory_of_one_vgpu_is_the_others_too(self):
        """The API suite's cases about that, of which none is skipped; registered memory is not shared in machines."""
        self.start("--devices", "2", device="cpu")
        suite = vm.Command(
            "api_test", ("sh", "-c", "/usr/bin/api_test --gtest_color=no --gtest_filter=PeerHost*:PeerLater*-*Registered* && echo PASS"),
            {"CONSORT_TEST_LIBCUDA": "/usr/lib/libcuda.so.1"})
        guest = self.start_sharing([suite], [], files=[("/usr/bin/api_test", stack.BUILD / "bin" / "api_test")])
        self.expect_success(guest, ["api_test"])
        self.assertFalse([line for line in guest.output() if "SKIPPED" in line or "0 tests" in line], self.text(guest))

    def test_launches_do_not_leave_the_machine(self):
        """A kick makes a virtual CPU exit: beyond those of the program's start and end there is one where the worker
        slept, and it does not sleep while launches come."""
        launches = {"few": 1000, "many": 11000}
        tenants = self.folder / "tenants.toml"
        # Its worker looks for 20 ms before it sleeps.
        tenants.write_text('[[tenant]]\nname = "guest"\nstream_priority = "high"\n', encoding="ascii")
        self.start("--tenants", tenants, device="cpu")
        commands = [vm.Command(name, ("/usr/bin/many_launches", str(count), "1")) for name, count in launches.items()]
        kicks = {}
        guest = self.start_sharing(commands, ["many_launches"],
                                   on_line=lambda _, line: self.note_kicks(line, kicks))
        self.expect_success(guest, launches)
        more = kicks["many"] - 2 * kicks["few"]
        print(f"kicks with 1000 launches {kicks['few']}, with 11000 {kicks['many'] - kicks['few']}")
        self.assertLess(more, 100, "of 10000 more launches")

    def note_kicks(self, line, kicks):
        if line.startswith("RESULT "):
            kicks[line.split()[1]] = self.counted()["kicks", 'vm="guest"']

    def test_bulk_data_never_crosses_the_stream(self):
        """Pinned memory is copied by nobody, pageable memory by the program's side alone."""
        self.start(size="512MiB", device="cpu")
        command = vm.Command("big_copy", ("/usr/bin/big_copy", "128"), timeout_s=250)
        guest = self.start_sharing([command], ["big_copy"])
        self.expect_success(guest, ["big_copy"])
        session = self.daemon.wait_for_account(lambda all: len(all) == 1)[0]
        self.assertGreaterEqual(session["bytes_to_device"], 256 << 20)
        self.assertGreaterEqual(session["bytes_to_host"], 256 << 20)
        counted = self.counted()
        copied = sum(value for (name, _), value in counted.items() if name == "copied_bytes")
        by_worker = int(re.search(r"session \d+: (\d+) bytes of \d+ of copies by a CPU", self.daemon.log()).group(1))
        print(f"{copied:.0f} bytes over the stream, {by_worker} by a CPU of the worker, of "
              f"{session['bytes_to_device'] + session['bytes_to_host']} bytes of copies")
        self.assertLess(copied, vm_test.GREETINGS_BYTES)
        self.assertLess(by_worker, vm_test.GREETINGS_BYTES)

    def test_what_is_full_is_as_if_there_were_none(self):
        """The smallest there is has room for one program's rings."""
        names = ("vector_add", "big_copy")
        self.start(size="16MiB", device="cpu")
        guest = self.start_sharing(vm_test.commands(names), names)
        self.expect_success(guest, names)
        said = [line for line in guest.output() if line.startswith("consort: ")]
        self.assertEqual(len(said), 1, self.text(guest))
        self.assertRegex(said[0], "memory that this machine shares with its host is full")

    def test_without_room_for_rings_a_program_goes_without(self):
        self.start(size="16MiB", device="cpu")
        command = vm.Command("two", ("sh", "-c", "head -n 1 /dev/ttyS0 | /usr/bin/wanderer 1 >/tmp/said & "
                                     "until grep -q round /tmp/said; do sleep 0.1; done; "
                                     "/usr/bin/vector_add && wait $! && cat /tmp/said"))
        guest = self.start_sharing([command], ["wanderer", "vector_add"])
        sessions = self.daemon.wait_for_account(lambda all: len(all) == 1, timeout_s=120)
        self.assertEqual((sessions[0]["application"], sessions[0]["channel"]), ("vector_add", "vhost-user"), self.text(guest))
        self.assertGreater(self.lent(), 0)
        guest.type("go on")
        guest.wait()
        sessions = self.daemon.wait_for_account(lambda all: len(all) == 2)
        self.assertEqual((sessions[1]["application"], sessions[1]["channel"]), ("wanderer", "vhost-user+rings"))
        self.assertRegex(self.daemon.log(), "no room for rings in its shared memory")
        stack.wait_for(lambda: self.lent() == 0, "all of the memory to be back", 30)

    def test_memory_that_is_not_this_daemons_is_not_used(self):
        """As after consortd's restart under a machine that runs."""
        self.start(device="cpu")
        with open(self.memory(), "r+b") as file:
            file.seek(8)
            file.write(bytes(range(1, 17)))
        guest = self.start_sharing(vm_test.commands(["pinned_memory"]), ["pinned_memory"])
        self.expect_success(guest, ["pinned_memory"])
        session = self.daemon.wait_for_account(lambda all: len(all) == 1)[0]
        self.assertEqual((session["channel"], session["end"]), ("vhost-user", "closed"))
        self.assertRegex(self.daemon.log(), "sees shared memory that is not this VM's")

    def lent(self):
        return json.loads(self.daemon.control("vms", "--output", "json"))[0]["shared_memory_lent_bytes"]

    def await_launches(self, more_than=0):
        stack.wait_for(lambda: self.session() and self.session()["kernel_launches"] > more_than, "a program that computes", 120)
        return self.session()

    def test_a_program_moves_goes_into_a_checkpoint_and_outlives_its_worker(self):
        """Its rings and its pinned memory stay where they are."""
        self.start("--devices", "2", "--keep-memory", "on", device="cpu")
        command = vm.Command("wanderer", ("sh", "-c", "(printf 1; head -n 1 /dev/ttyS0) | /usr/bin/wanderer 2 steps"),
                             timeout_s=250)
        guest = self.start_sharing([command], ["wanderer"])
        guest.wait_for("round 0", 120)
        for device in (1, 0):
            self.daemon.control("migrate", "wanderer", "--to", str(device))
            self.assertEqual(self.session()["device"], device)
        self.daemon.control("checkpoint", "wanderer", self.folder / "checkpoint")
        self.daemon.control("restore", "wanderer")
        stack.wait_for(lambda: self.session()["outlives_worker"], "a program at rest")
        os.kill(self.session()["worker_pid"], signal.SIGKILL)
        stack.wait_for(lambda: re.search(r"goes on in worker \d+", self.daemon.log()), "a program that goes on")
        guest.type("12345")
        self.expect_success(guest, ["wanderer"])
        last = self.daemon.wait_for_account(lambda all: len(all) == 5)[-1]
        self.assertEqual((last["channel"], last["end"]), ("vhost-user+rings", "closed"))

    def test_consortd_is_upgraded_under_its_programs(self):
        self.start(device="cpu")
        commands = [vm.Command("wanderer", ("sh", "-c", "(printf 1; head -n 1 /dev/ttyS0) | /usr/bin/wanderer 2 steps")),
                    vm.Command("pinned_memory", ("/usr/bin/pinned_memory",))]
        guest = self.start_sharing(commands, ["wanderer", "pinned_memory"])
        guest.wait_for("round 0", 120)
        self.daemon.control("upgrade")
        guest.type("12345")
        self.expect_success(guest, ["wanderer", "pinned_memory"])
        sessions = self.daemon.wait_for_account(lambda all: len(all) == 2)
        self.assertEqual({(session["channel"], session["end"]) for session in sessions}, {("vhost-user+rings", "closed")})
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log_tail())
        self.assertFalse(self.memory().exists())

    def test_a_worker_that_dies_gives_all_back(self):
        self.start(size="16MiB", device="cpu")
        names = ("vector_add",)
        command = vm.Command("wanderer", ("sh", "-c", "head -n 1 /dev/ttyS0 | /usr/bin/wanderer 1 && exit 1; /usr/bin/vector_add"))
        guest = self.start_sharing([command], ["wanderer", "vector_add"])
        os.kill(self.await_launches()["worker_pid"], signal.SIGKILL)
        self.daemon.wait_for_account(lambda all: len(all) == 1)
        guest.type("go on")
        guest.wait()
        sessions = self.daemon.wait_for_account(lambda all: len(all) == 2)
        self.assertEqual([(session["application"], session["end"]) for session in sessions],
                         [("wanderer", "worker died"), *((name, "closed") for name in names)])
        # The machine has room for one program's rings only.
        self.assertEqual(sessions[1]["channel"], "vhost-user+rings", self.text(guest))


if __name__ == "__main__":
    unittest.main(verbosity=2)
