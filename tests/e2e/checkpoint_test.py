#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/checkpoint_test.py: unmodified programs that are taken off their device into a folder, wait, and go on from
it on the same device or another: they notice nothing, and each word that they compute is checked by themselves."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import time
import unittest

import stack
import wanderers

ROUNDS = 4


class Checkpoint(wanderers.TestCase):
    def state_of(self, program):
        return [(session["state"], session["device"]) for session in self.sessions() if session["pid"] == program.pid]

    def saved(self, name="saved"):
        return pathlib.Path(self.folder) / name

    def checkpoint(self, program, name="saved", status=0):
        return self.daemon.control("checkpoint", f"pid:{program.pid}", str(self.saved(name)), status=status)

    def restore(self, program, *arguments, status=0):
        return self.daemon.control("restore", f"pid:{program.pid}", *arguments, status=status)

    def data_of(self, folder):
        [data] = folder.glob("data-*")
        return data

    def test_a_program_waits_in_a_folder_and_goes_on_where_it_is_told(self):
        self.start()
        program = self.wanderer()
        device = 0
        for turn in range(ROUNDS):
            time.sleep(self.random.random() * 0.2)
            said = self.checkpoint(program)
            self.assertRegex(said, rf"wanderer: device {device} to checkpoint {self.saved()}, stopped for [0-9.]+ ms")
            self.assertEqual(self.state_of(program), [("held", device)])
            # Nothing of it is on a device.
            status = json.loads(self.daemon.control("status", "--output", "json"))
            self.assertEqual([entry["sessions"] for entry in status["devices"]], [0, 0])
            self.assertEqual([entry["memory_used_bytes"] for entry in status["devices"]], [0, 0])
            self.assertRegex(self.daemon.control("apps"), r"wanderer .* held ")
            self.assertRegex(self.daemon.control("status"), rf"HELD SESSION +APPLICATION +CHECKPOINT\n +\d+ +wanderer +{self.saved()}\n")
            # Every other time back to where it was.
            device = 1 if turn % 4 == 1 else 0 if turn % 4 == 3 else device
            self.restore(program, *(("--to", str(device)) if turn % 2 else ()))
            self.assertEqual(self.state_of(program), [("open", device)])
        self.passes(program)
        lines = self.daemon.wait_for_account(lambda lines: len(lines) == ROUNDS + 1)
        self.assertEqual([line["end"] for line in lines], ["held"] * ROUNDS + ["closed"])
        self.assertEqual([line["device_index"] for line in lines], [0, 0, 1, 1, 0])
        self.assertRegex(self.daemon.log(), r"uid \d+ told session \d+ to go into the checkpoint /")
        self.assertRegex(self.daemon.log(), r"uid \d+ told session \d+ to go from the checkpoint /")

    def test_a_program_without_shared_memory_waits_and_goes_on(self):
        self.start()
        program = self.wanderer("4", CONSORT_CHANNEL="stream")
        for device in ("1", "0"):
            self.checkpoint(program)
            self.restore(program, "--to", device)
        self.passes(program)
        lines = self.daemon.wait_for_account(lambda lines: len(lines) == 3)
        self.assertEqual({line["channel"] for line in lines}, {"unix"})

    def test_several_wait_while_others_have_the_device(self):
        self.start("--device-memory", "64MiB")
        # Some 40 MiB each.
        first, second = self.wanderer("48"), None
        self.checkpoint(first, "first")
        second = self.wanderer("48")
        said = self.restore(first, status=1)
        self.assertIn("stays on checkpoint", said)
        self.assertIn("the device has not the memory that it needs", said)
        self.assertEqual(self.state_of(first), [("held", 0)])
        self.checkpoint(second, "second")
        self.restore(first)
        self.restore(second, "--to", "1")
        for program in (first, second):
            self.passes(program)

    def test_a_damaged_checkpoint_is_refused_and_a_good_copy_taken(self):
        self.start()
        program, other = self.wanderer("4"), self.wanderer("4")
        self.checkpoint(program)
        self.checkpoint(other, "other")
        good = self.saved("good")
        shutil.copytree(self.saved(), good)
        data = self.data_of(self.saved())
        whole = data.read_bytes()

        def refused(text, *arguments):
            said = self.restore(program, *arguments, status=1)
            self.assertIn("stays on checkpoint", said)
            self.assertIn(text, said)
            self.assertEqual(self.state_of(program), [("held", 0)])

        for where in (len(whole) // 2, len(whole) - 1):
            data.write_bytes(whole[:where] + bytes([whole[where] ^ 1]) + whole[where + 1:])
            refused("is damaged")
            self.assertIn("is damaged", self.daemon.control("checkpoint", "--show", str(self.saved()), status=1))
        data.write_bytes(whole[:-1])
        refused(f"it has {len(whole) - 1} bytes; the manifest says {len(whole)}")
        data.unlink()
        refused("it is missing")
        (self.saved() / "manifest").write_bytes(b"hello")
        refused("it is no manifest of a checkpoint")
        (self.saved() / "manifest").unlink()
        refused("there is no checkpoint")
        refused("it is another checkpoint than that with which the application was held", str(self.saved("other")))
        self.restore(program, str(good), "--to", "1")
        self.restore(other)
        for each in (program, other):
            self.passes(each)

    def test_says_what_is_in_it(self):
        self.start()
        program = self.wanderer("4")
        self.checkpoint(program)
        said = self.daemon.control("checkpoint", "--show", str(self.saved()))
        for line in (r"application +wanderer", rf"pid +{program.pid}", r"device +0, ", r"modules +2 with 2 kernels, [1-9]",
                     r"pinned +[1-9]\d* bytes", r"memory +[1-9]\d+ bytes", r"written +20\S+Z for uid \d+"):
            self.assertRegex(said, rf"(?m)^{line}")
        self.restore(program)
        # It has gone on since.
        self.assertIn("no application", self.restore(program, status=64))
        self.passes(program)

    def test_orders_that_make_no_sense_are_refused_and_cost_nothing(self):
        self.start()
        program, held = self.wanderer("4"), self.wanderer("4")
        self.checkpoint(held, "held")
        papers = self.saved("papers")
        papers.mkdir()
        (papers / "thesis.tex").write_text("years of work", "utf-8")
        for folder, text in ((self.saved("no") / "such", "No such file or directory"),
                             (papers, "it has files that are no checkpoint's, such as thesis.tex"),
                             (self.saved("held"), "an application that is held has its checkpoint there")):
            said = self.daemon.control("checkpoint", f"pid:{program.pid}", str(folder), status=1)
            self.assertIn("it stays on device 0: ", said)
            self.assertIn(text, said)
        for command, text in ((("checkpoint", "nobody", "/tmp/x"), "no application nobody is open"),
                              (("checkpoint",), "an application and a folder are wanted"),
                              (("restore", f"pid:{program.pid}"), "is held"),
                              (("restore", f"pid:{held.pid}", "--to", "7"), "there is no device 7"),
                              (("migrate", f"pid:{held.pid}", "--to", "1"), "is open")):
            self.assertIn(text, self.daemon.control(*command, status=64))
        self.restore(held)
        # Once it has gone on, its folder is free.
        self.checkpoint(program, "held")
        self.restore(program)
        for each in (program, held):
            self.passes(each)

    def test_what_cannot_be_made_again_stays_and_goes_on(self):
        self.start()
        program = self.wanderer("4", "textures")
        self.assertIn("stays on device 0: it has arrays, textures or surfaces", self.checkpoint(program, status=1))
        self.assertFalse(self.saved().exists())
        self.passes(program)

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to mount a small file system")
    def test_a_full_disk_leaves_the_old_checkpoint_and_the_program_where_they_are(self):
        self.start()
        disk = self.saved("disk")
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        program = self.wanderer("4")
        self.checkpoint(program, "disk/saved")
        before = self.daemon.control("checkpoint", "--show", str(disk / "saved"))
        self.restore(program)
        with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        said = self.checkpoint(program, "disk/saved", status=1)
        self.assertIn("No space left on device", said)
        self.assertEqual(self.state_of(program), [("open", 0)])
        self.assertEqual(self.daemon.control("checkpoint", "--show", str(disk / "saved")), before)
        (disk / "filler").unlink()
        self.checkpoint(program, "disk/saved")
        self.restore(program, "--to", "1")
        self.passes(program)

    def test_a_program_that_ends_while_it_is_held_is_forgotten(self):
        self.start()
        program, other = self.wanderer("4"), self.wanderer("4")
        self.checkpoint(program)
        program.kill()
        stack.wait_for(lambda: self.state_of(program) == [], "the end of what was held")
        self.assertRegex(self.daemon.log(), r"held in \S+, ended: its program has ended")
        # Neither its folder nor its addresses are kept.
        self.checkpoint(other)
        self.restore(other)
        self.passes(other)
        self.daemon.wait_for_account(lambda lines: [line["end"] for line in lines] == ["held", "held", "closed"])

    def test_workers_that_die_take_nothing_that_is_held(self):
        self.start()
        program = self.wanderer("4")
        self.checkpoint(program)
        for device in json.loads(self.daemon.control("status", "--output", "json"))["devices"]:
            os.kill(device["worker_pid"], 9)
        stack.wait_for(lambda: all(device["worker_starts"] > 1 and device["state"] == "ready" for device in json.loads(
            self.daemon.control("status", "--output", "json"))["devices"]), "other workers")
        self.restore(program, "--to", "1")
        self.passes(program)

    def test_a_tenant_with_a_process_of_its_own_comes_back_to_it(self):
        file, socket = self.one_tenant("walled", 'isolation = "process"\n')
        self.start("--tenants", str(file))
        program = self.wanderer("4", CONSORT_ENDPOINT=f"unix:{socket}")
        [session] = self.sessions()
        self.checkpoint(program)
        self.restore(program)
        self.checkpoint(program)
        os.kill(session["worker_pid"], 9)
        stack.wait_for(lambda: self.daemon.consortctl("restore", "wanderer").returncode == 0, "another worker")
        [again] = self.sessions()
        self.assertNotEqual(again["worker_pid"], session["worker_pid"])
        self.passes(program)

    def test_a_daemon_that_ends_lets_go_of_what_is_held(self):
        self.start()
        program = self.wanderer("4")
        self.checkpoint(program)
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log_tail())
        output, _ = program.communicate(timeout=60)
        self.assertNotEqual(program.returncode, 0, output)
        # The folder is whole all the same.
        self.daemon.control("checkpoint", "--show", str(self.saved()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
