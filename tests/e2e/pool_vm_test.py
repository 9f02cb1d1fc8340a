#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/pool_vm_test.py: virtual machines of hosts without a GPU, whose programs run on GPUs of a third host.

Hosts a, b and c, an etcd member and a consortd on each; a and b have a machine and no GPU, c has CPU devices. Skipped
with the reason where namespaces, etcd, QEMU or a kernel cannot be had.
"""

import unittest

import network
import pool_test
import stack
import vm

PROGRAMS = ("vector_add", "copies", "callbacks")


@unittest.skipIf(network.why_not(), network.why_not())
class TwoMachines(unittest.TestCase):
    def setUp(self):
        self.kernel = vm.kernel_or_skip("6.12")
        self.hosts = pool_test.make_hosts(self, 3, members=3)
        self.near = {name: self.hosts.start(host, devices=0, vms=[name])
                     for host, name in enumerate(("left", "right"))}
        self.far = self.hosts.start(2, devices=2)
        self.hosts.wait_for_nodes(0, 1, 2)

    def boot(self, name, commands, programs):
        initramfs = self.hosts.folder / f"{name}.initramfs"
        vm.build_initramfs(self.kernel, stack.guest_files(programs), vm.guest_script(commands), initramfs)
        return self.enterContext(vm.Vm(self.kernel, initramfs, self.near[name].vm_socket(name), memory_mib=512))

    def said(self, *guests):
        return "\n" + "\n".join([*(guest.tail(60) for guest in guests),
                                 *(daemon.log_tail() for daemon in (*self.near.values(), self.far))])

    def test_programs_of_two_machines_compute_on_the_third_hosts_gpus(self):
        commands = [vm.Command(name, (f"/usr/bin/{name}",)) for name in PROGRAMS]
        # Each machine keeps a program on a GPU to its end, one that only waits.
        holds = vm.Command("holds", ("sh", "-c", "sleep 1000 | /usr/bin/busy 1 1000 4 wait >/tmp/said & "
                                     "until grep -q ready /tmp/said; do sleep 0.1; done"))
        guests = {name: self.boot(name, [holds, *commands], (*PROGRAMS, "busy")) for name in self.near}
        for name, guest in guests.items():
            with self.subTest(name):
                end = guest.wait()
                statuses = {of: result.status for of, result in guest.results().items()}
                self.assertEqual(statuses, {of: 0 for of in ("holds", *PROGRAMS)}, self.said(guest))
                self.assertEqual(guest.output().count("PASS"), len(PROGRAMS), self.said(guest))
                self.assertEqual(end.status, 0, self.said(guest))
        wanted = {(name, program) for name in self.near for program in (*PROGRAMS, "busy")}
        sessions = self.far.wait_for_account(
            lambda all: {(line["vm"], line["application"]) for line in all} >= wanted)
        self.assertEqual({line["channel"] for line in sessions}, {"pool"})
        # While a program has one GPU, the next one gets the other.
        self.assertEqual({line["device_index"] for line in sessions}, {0, 1})
        for program in ("vector_add", "callbacks"):
            for name in self.near:
                launches = sum(line["kernel_launches"] for line in sessions
                               if (line["vm"], line["application"]) == (name, program))
                self.assertGreater(launches, 0, f"{program} of {name}")
        for daemon in self.near.values():
            self.assertEqual(daemon.account(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
