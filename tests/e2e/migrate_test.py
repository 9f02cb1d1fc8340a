#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/migrate_test.py: unmodified programs that go from one device to another while they run: they notice
nothing, and each word that they compute is checked by themselves. CONSORT_TEST_SEED sets the moments."""

import json
import os
import re
import subprocess
import time
import unittest

import stack
import wanderers

MOVES = 8


class Migrate(wanderers.TestCase):
    def migrate(self, program, device):
        """Where it has just come from its addresses may be in use until all is cleared away."""
        def try_it():
            done = self.daemon.consortctl("migrate", f"pid:{program.pid}", "--to", str(device))
            if "addresses are another application's" in done.stderr:
                return False
            self.assertEqual(done.returncode, 0, f"{done.stdout}{done.stderr}\n{self.daemon.log_tail()}")
            return True

        stack.wait_for(try_it, "free addresses")
        self.assertEqual(self.device_of(program), [device])

    def test_a_program_goes_back_and_forth_and_notices_nothing(self):
        self.start()
        program = self.wanderer()
        self.assertEqual(self.device_of(program), [0])
        for move in range(1, MOVES + 1):
            time.sleep(self.random.random() * 0.2)
            self.migrate(program, move % 2)
        self.passes(program)
        # A line of the account a stay; together they are all that it did.
        lines = self.daemon.wait_for_account(lambda lines: len(lines) == MOVES + 1)
        self.assertEqual([line["device_index"] for line in lines], [move % 2 for move in range(MOVES + 1)])
        self.assertEqual([line["end"] for line in lines], ["moved"] * MOVES + ["closed"])
        self.assertEqual({line["application"] for line in lines}, {"wanderer"})
        self.assertGreater(lines[-1]["calls"], 0)

    def test_addresses_of_some_variables_stay_good_wherever_the_driver_has_them(self):
        self.start()
        program = self.wanderer()
        for move in range(1, 3):
            self.migrate(program, move % 2)
        self.passes(program)
        for name in ("multipliers", "alone"):
            places = re.findall(fr"the module variable \S*{name} was at (\w+) and is at (\w+); the program knows it at (\w+)",
                                self.daemon.log())
            self.assertEqual(len(places), 2, self.daemon.log_tail())
            self.assertEqual(places[0][2], places[1][2])
            self.assertNotEqual(places[0][0], places[0][1])

    def test_an_address_of_what_kernels_write_keeps_a_program_where_it_is(self):
        self.start()
        program = self.wanderer("4", "address")
        said = self.daemon.control("migrate", "wanderer", "--to", "1", status=1)
        self.assertRegex(said, r"stays on device 0: the program knows the address of the module variable \S*table, "
                         "which is another there")
        self.assertEqual(self.device_of(program), [0])
        self.passes(program)

    def test_contents_go_from_device_to_device(self):
        """But for what was made after the other side had been told of all memory: this one makes none meanwhile."""
        self.start()
        program = subprocess.Popen([stack.PROGRAMS / "working_set", "24", "20", "2", "100"],
                                   env=self.daemon.local_environment(), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        self.addCleanup(program.kill)
        stack.wait_for(lambda: any(session["kernel_launches"] > 8 for session in self.sessions()), "a program that computes")
        for move in range(1, 4):
            self.migrate(program, move % 2)
        output, _ = program.communicate(timeout=120)
        self.assertEqual(program.returncode, 0, f"{output}\n{self.daemon.log_tail()}")
        log = self.daemon.log()
        all_bytes = re.findall(r"stopped for [0-9.]+ ms, ([0-9.]+) GiB", log)
        self.assertEqual(len(all_bytes), 3, log)
        self.assertEqual(re.findall(r"([0-9.]+) GiB from device to device", log), all_bytes, log)

    def test_several_programs_move_past_each_other(self):
        self.start()
        programs = [self.wanderer("4") for _ in range(3)]
        for _ in range(MOVES):
            program = self.random.choice(programs)
            self.migrate(program, 1 - self.device_of(program)[0])
        for program in programs:
            self.passes(program)

    def test_managed_variables_stay_where_the_program_has_them(self):
        self.start()
        program = self.wanderer(name="managed_variables")
        for move in range(1, 5):
            time.sleep(self.random.random() * 0.1)
            self.migrate(program, move % 2)
        self.passes(program)

    def test_what_cannot_move_stays_with_its_reason_and_goes_on(self):
        self.start()
        program = self.wanderer("4", "textures")
        said = self.daemon.control("migrate", "wanderer", "--to", "1", status=1)
        self.assertIn("stays on device 0: it has arrays, textures or surfaces", said)
        self.assertEqual(self.device_of(program), [0])
        self.passes(program)
        [line] = self.daemon.wait_for_account(lambda lines: len(lines) == 1)
        self.assertEqual(line["end"], "closed")

    def test_orders_that_make_no_sense_are_refused(self):
        self.start()
        program = self.wanderer("4")
        for command, text in (
                (("migrate", "wanderer", "--to", "0"), "on device 0 already"),
                (("migrate", "wanderer", "--to", "2"), "there is no device 2"),
                (("migrate", "nobody", "--to", "1"), "no application nobody is open"),
                (("drain", "7"), "there is no device 7")):
            self.assertIn(text, self.daemon.control(*command, status=64))
        self.passes(program)

    def test_a_device_without_the_memory_does_not_get_it(self):
        self.start("--device-memory", "64MiB")
        # Some 20 MiB each; then one of 40.
        programs = [self.wanderer("24") for _ in range(2)]
        for program in programs:
            self.migrate(program, 1)
        programs.append(self.wanderer("48"))
        said = self.daemon.control("migrate", f"pid:{programs[-1].pid}", "--to", "1", status=1)
        self.assertIn("the device has not the memory that it needs", said)
        for program in programs:
            self.passes(program)

    def test_memory_that_is_swapped_out_moves_too(self):
        self.start("--device-memory", "40MiB", "--swap-pageable", "256MiB")
        programs = [subprocess.Popen([stack.PROGRAMS / "working_set", "17", "12", "2", "100"],
                                     env=self.daemon.local_environment(), stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True) for _ in range(4)]
        stack.wait_for(lambda: len(self.sessions()) == 4, "four programs")
        moved = 0
        for session in self.sessions():
            moved += self.daemon.consortctl("migrate", str(session["id"]), "--to", "1").returncode == 0
        self.assertGreater(moved, 0, self.daemon.log_tail())
        for program in programs:
            output, _ = program.communicate(timeout=120)
            self.assertEqual(program.returncode, 0, f"{output}\n{self.daemon.log_tail()}")

    def test_a_device_is_drained_and_takes_applications_again(self):
        self.start()
        programs = [self.wanderer("4") for _ in range(2)]
        said = self.daemon.control("drain", "0")
        self.assertEqual(said.count("device 0 to device 1"), 2, said)
        status = json.loads(self.daemon.control("status", "--output", "json"))
        self.assertEqual([device["state"] for device in status["devices"]], ["drained", "ready"])
        # A new one asks for device 0 and gets the other.
        programs.append(self.wanderer("4"))
        self.assertEqual([self.device_of(program) for program in programs], [[1]] * 3)
        self.daemon.control("undrain", "0")
        programs.append(self.wanderer("4"))
        self.assertEqual(self.device_of(programs[-1]), [0])
        for program in programs:
            self.passes(program)

    def test_a_drain_tells_what_stays(self):
        self.start()
        goes, stays = self.wanderer("4"), self.wanderer("4", "textures")
        said = self.daemon.control("drain", "0", status=1)
        self.assertIn("wanderer stays: it has arrays, textures or surfaces", said)
        self.assertIn("1 application stays on device 0", said)
        self.assertEqual([self.device_of(goes), self.device_of(stays)], [[1], [0]])
        for program in (goes, stays):
            self.passes(program)

    def test_a_worker_that_dies_takes_only_its_own(self):
        """The session is on device 0 until it has gone over, and on device 1 from then on."""
        self.start()
        program = self.wanderer("4")
        self.migrate(program, 1)
        status = json.loads(self.daemon.control("status", "--output", "json"))
        os.kill(status["devices"][0]["worker_pid"], 9)
        stack.wait_for(lambda: json.loads(self.daemon.control("status", "--output", "json"))["devices"][0]["worker_starts"] > 1,
                       "another worker")
        self.passes(program)


if __name__ == "__main__":
    unittest.main(verbosity=2)
