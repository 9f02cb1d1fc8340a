#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/peer_test.py: unmodified programs whose devices work on each other's memory, and what that means for
operators: they stay where they are, and a worker that dies takes no other one with it."""

import itertools
import os
import re
import signal
import subprocess
import unittest

import stack
import wanderers

# By peer access of contexts, and by mappings that both devices have, in two processes.
PROGRAMS = ("peer_access", "peer_mappings")
# What a program is told whose device's worker has died.
TOLD = ("cudaErrorDevicesUnavailable", "cudaErrorDeviceUninitialized", "cudaErrorUnknown",
        "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_UNKNOWN")
# peer_access copies 64 MiB 21 times between its devices; what it reads back to compare is some 30 MiB.
BYTES_TO_HOST_MAX = 256 << 20


class Peers(wanderers.TestCase):
    def run_program(self, name="peer_access", **settings):
        return subprocess.run([stack.PROGRAMS / name], env=dict(self.daemon.local_environment(), **settings),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)

    def passes_now(self, name="peer_access"):
        done = self.run_program(name)
        said = f"\n{done.stdout}{done.stderr}\n{self.daemon.log_tail()}"
        self.assertEqual(done.returncode, 0, said)
        self.assertEqual(done.stdout.splitlines()[-1:], ["PASS"], said)
        self.assertNotIn("skipped", done.stdout)
        return done.stdout

    def workers(self):
        """A process a device; None where one has died and the next is not there yet."""
        return [device.get("worker_pid") for device in self.status()["devices"]]

    def test_two_devices_work_on_each_others_memory(self):
        self.start()
        print(f"\n    {self.passes_now().splitlines()[:-1]}", end="")
        lines = self.daemon.wait_for_account(lambda lines: len(lines) == 2)
        self.assertEqual({line["device_index"] for line in lines}, {0, 1})
        # Copies between the two did not go through the program.
        self.assertLess(sum(line["bytes_to_host"] for line in lines), BYTES_TO_HOST_MAX)
        self.assertLess(sum(line["bytes_to_device"] for line in lines), BYTES_TO_HOST_MAX)
        # Nothing of it is left: another one has the addresses.
        self.passes_now()

    def test_what_a_program_maps_is_reached_by_both_devices(self):
        self.start()
        for _ in range(3):
            self.passes_now("peer_mappings")

    def two_rings(self, *endpoints):
        """Two programs at a time, of so many processes each as there are devices: kernels that wait for those of other
        devices, and have to share theirs."""
        programs = [subprocess.Popen([stack.PROGRAMS / "peer_ring", "hold"],
                                     env=dict(self.daemon.local_environment(), CONSORT_ENDPOINT=endpoint),
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                    for endpoint in endpoints]
        for program in programs:
            self.addCleanup(program.communicate)
            self.addCleanup(program.kill)
        ranks = min(4, len(self.status()["devices"]))
        stack.wait_for(lambda: sum(session["kernel_launches"] > 3 for session in self.sessions()) == 2 * ranks,
                       "rounds of both")
        for program in programs:
            self.assertEqual(self.passes(program).splitlines()[0], f"{ranks} ranks")

    def test_processes_add_up_in_a_ring_of_their_devices(self):
        self.start(devices=4)
        said = self.passes_now("peer_ring").splitlines()[0]
        print(f"\n    {said}", end="")
        self.assertEqual(said, f"{min(4, len(self.status()['devices']))} ranks")

    @unittest.skipIf(os.environ.get("CONSORT_TEST_DEVICE") == "nvidia",
                     "in one worker the driver loads a kernel when those of all have ended (docs/COMPATIBILITY.md, gaps)")
    def test_two_rings_share_workers(self):
        self.start(devices=4)
        self.two_rings(*2 * [f"unix:{self.daemon.socket}"])

    def test_two_rings_of_tenants_with_processes_of_their_own(self):
        file, sockets = self.tenants(("one", "two"), 'isolation = "process"\n')
        self.start("--tenants", str(file), devices=4)
        self.two_rings(*(f"unix:{socket}" for socket in sockets))

    def test_several_programs_do_so_at_once(self):
        self.start()
        programs = [self.wanderer("hold", name=name) for name in 2 * PROGRAMS]
        for program in programs:
            self.passes(program)

    def test_tenants_with_processes_of_their_own(self):
        file, socket = self.one_tenant("own", 'isolation = "process"\n')
        self.start("--tenants", str(file))
        for name in PROGRAMS:
            done = self.run_program(name, CONSORT_ENDPOINT=f"unix:{socket}")
            self.assertEqual(done.returncode, 0, f"{done.stdout}{done.stderr}\n{self.daemon.log_tail()}")
            self.assertNotIn("skipped", done.stdout)

    def test_without_another_device_it_says_so(self):
        self.start()
        for name in PROGRAMS:
            done = self.run_program(name, CUDA_VISIBLE_DEVICES="1")
            self.assertEqual(done.stdout.splitlines(), ["skipped: it needs two GPUs", "PASS"])

    def test_where_it_is_off_no_access_is_given(self):
        self.start("--peer-access", "off")
        self.assertIn("skipped: the GPUs do not reach each other's memory", self.run_program().stdout)
        self.assertIn("CUDA_ERROR_INVALID_DEVICE", self.run_program("peer_mappings").stdout)

    def test_it_stays_where_it_is(self):
        self.start("--keep-memory", "on")
        program = self.wanderer("hold", name="peer_access")
        for session in [session for session in self.sessions() if session["pid"] == program.pid]:
            said = self.daemon.control("migrate", str(session["id"]), "--to", str(1 - session["device"]), status=1)
            self.assertRegex(said, "it uses memory of two devices together")
        self.assertFalse(any(session["outlives_worker"] for session in self.sessions()))
        self.passes(program)

    def test_there_is_no_upgrade_meanwhile(self):
        self.start()
        program = self.wanderer("hold", name="peer_access")
        said = self.daemon.consortctl("upgrade")
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("applications use memory of two devices together", f"{said.stdout}{said.stderr}")
        self.passes(program)

    def test_a_worker_that_dies_takes_no_other_with_it(self):
        self.start()
        for name, dies in itertools.product(PROGRAMS, (0, 1)):
            program = self.wanderer("hold", name=name)
            workers = self.workers()
            os.kill(workers[dies], signal.SIGKILL)
            output, _ = program.communicate(timeout=120)
            self.assertEqual(program.returncode, 1, output)
            self.assertTrue(any(error in output for error in TOLD), f"{output}\n{self.daemon.log_tail()}")
            stack.wait_for(lambda: self.workers()[dies] not in (None, 0, workers[dies]), "another worker")
            self.assertEqual(self.workers()[1 - dies], workers[1 - dies], self.daemon.log_tail())
            self.assertIsNone(re.search("no new sessions here", self.daemon.log()), self.daemon.log_tail())
            self.passes_now(name)

    def test_swapped_memory_is_not_reached(self):
        self.start("--device-memory", "1GiB", "--swap-pageable", "1GiB")
        self.assertIn("skipped: the GPUs do not reach each other's memory", self.run_program().stdout)


if __name__ == "__main__":
    unittest.main()
