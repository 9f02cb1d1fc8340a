#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/upgrade_test.py: consortd's binary is exchanged while programs run. The programs check each word that they
compute."""

import json
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import unittest
import urllib.request

import stack
import upgrades


class Upgrade(upgrades.UpgradeCase):
    def wanderer(self, door=None):
        """A program that computes and checks until its input ends; `door`: a tenant's own."""
        program = subprocess.Popen([stack.PROGRAMS / "wanderer", "4"], env=self.daemon.local_environment(door),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def end():
            program.kill()
            program.communicate()

        self.addCleanup(end)
        self.works_on(program, 0)
        return program

    def passes(self, program):
        output, _ = program.communicate(timeout=120)  # which ends its input
        self.assertEqual(program.returncode, 0, f"{output}\n{self.daemon.log_tail()}")

    def vector_add(self):
        done = subprocess.run([stack.PROGRAMS / "vector_add"], env=self.daemon.local_environment(), capture_output=True,
                              text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, f"{done.stdout}{done.stderr}\n{self.daemon.log_tail()}")

    def test_programs_run_on_across_two_upgrades(self):
        self.start("--devices", "2")
        old = self.wanderer()
        self.daemon.control("tenant", "set", "local", "--weight", "7")
        self.daemon.control("policy", "las")
        session = self.session_of(old)
        device = self.status()["devices"][0]
        for _ in range(2):
            self.install("consortd")
            self.upgrade()
            # The same process, with the same worker: its service manager sees nothing.
            self.assertEqual(self.daemon.pid, self.pid)
            now = self.works_on(old, session["kernel_launches"])
            for same in ("id", "tenant", "application", "pid", "device", "worker_pid", "started", "why"):
                self.assertEqual(now[same], session[same], same)
            status = self.status()
            self.assertEqual([tenant["weight"] for tenant in status["tenants"] if tenant["tenant"] == "local"], [7])
            self.assertEqual(status["policy"], "las")
            self.assertEqual(status["devices"][0]["worker_pid"], device["worker_pid"])
            session = now
            self.vector_add()
        self.assertEqual(self.status()["devices"][0]["worker_starts"], 1)
        # They are told apart and what they used is one sum.
        self.passes(old)
        lines = self.daemon.wait_for_account(lambda lines: len(lines) == 3)
        # One line an application, in whichever order their ends are seen.
        lines.sort(key=lambda line: line["application"])
        self.assertEqual([line["application"] for line in lines], ["vector_add", "vector_add", "wanderer"])
        self.assertGreaterEqual(lines[-1]["kernel_launches"], session["kernel_launches"])
        self.assertEqual(lines[-1]["end"], "closed")
        # New ones of the tenant get what was set.
        self.assertEqual([line["weight"] for line in lines[:2]], [7, 7])
        self.stop()

    def test_workers_of_an_earlier_binary_are_replaced_when_they_are_free(self):
        self.start("--devices", "2")
        program = self.wanderer()
        before = [device["worker_pid"] for device in self.status()["devices"]]
        self.install("consortd")
        self.install("consort-worker")
        self.upgrade()
        stack.wait_for(lambda: self.status()["devices"][1]["worker_starts"] == 2, "a new worker of the free device")
        self.assertEqual(self.status()["devices"][0]["worker_pid"], before[0])
        self.passes(program)
        stack.wait_for(lambda: self.status()["devices"][0]["worker_starts"] == 2, "a new worker of the other")
        stack.wait_for(lambda: len(self.children()) == 2 and not set(self.children()) & set(map(str, before)), "the old ones' end")
        self.vector_add()
        self.stop()

    def test_a_binary_that_cannot_go_on_leaves_the_daemon_as_it_is(self):
        self.start()
        program = self.wanderer()
        broken = {
            "#!/bin/sh\necho no such library >&2\nexit 127\n": "no such library",
            "#!/bin/sh\nexit 0\n": "ended with status 0 and said nothing",
            "#!/bin/sh\nkill -SEGV $$\n": "ended by signal 11",
            "no program\n": "starting .*/consortd",
            # Another version of what is handed over: its bytes 8 to 15.
            f"#!/bin/sh\n{{ head -c 8; printf '\\143\\0\\0\\0\\0\\0\\0\\0'; tail -c +17 </proc/self/fd/3; }} <&3 >{self.folder}/state\n"
            f"exec {stack.BUILD}/bin/consortd \"$@\" 3<{self.folder}/state\n": r"state in version 99, this one reads \d+",
        }
        launches = 0
        for content, why in broken.items():
            self.install("consortd", content)
            said = self.daemon.control("upgrade", status=1)
            self.assertRegex(said, why)
            launches = self.works_on(program, launches)["kernel_launches"]
            self.vector_add()
        # Then one that can.
        self.install("consortd")
        self.upgrade()
        self.passes(program)
        self.stop()

    def test_a_machine_stays_attached(self):
        self.start(vms=("web-1", "web-2"))
        with socket.socket(socket.AF_UNIX) as frontend:
            frontend.settimeout(stack.PATIENCE_SECONDS)
            frontend.connect(str(self.daemon.vm_socket("web-1")))  # as QEMU does
            stack.wait_for(lambda: "web-1.sock connected" in self.daemon.log(), "the device that sees its machine")
            ask_features = struct.pack("=III", 1, 1, 0)  # message.h
            frontend.sendall(ask_features[:5])
            before = self.status()["vms"]
            for _ in range(2):
                self.upgrade()
                self.assertEqual(self.status()["vms"], before)
            self.assertIn("web-1.sock goes on with 0 connections", self.daemon.log())
            frontend.sendall(ask_features[5:])
            self.assertEqual(struct.unpack("=III", frontend.recv(12)), (1, 5, 8))
        stack.wait_for(lambda: "web-1.sock has gone" in self.daemon.log(), "the device that sees its machine go")
        self.stop()

    def test_clients_in_the_middle_of_their_greeting_are_served(self):
        self.start()
        hello = struct.pack("=IIQIIII128sQ88x", 0x54534E43, 1, 0, 1, 0, 0, 0, b"", 0)  # handshake.h: a query
        with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as half:
            for client, said in ((silent, b""), (half, hello[:100])):
                client.settimeout(stack.PATIENCE_SECONDS)
                client.connect(str(self.daemon.socket))
                client.sendall(said)
            self.vector_add()  # so that they have been accepted
            self.upgrade()
            half.sendall(hello[100:])
            # A Welcome that refuses: no library knows that description of the calls.
            self.assertEqual(struct.unpack("=III", half.recv(12)), (0x54534E43, 1, 1))
            self.vector_add()
            self.upgrade()
            silent.sendall(hello)
            self.assertEqual(struct.unpack("=III", silent.recv(12)), (0x54534E43, 1, 1))
        self.vector_add()
        self.stop()

    def test_what_was_counted_and_set_is_still_there(self):
        tenants = pathlib.Path(tempfile.mkdtemp(prefix="tenants-"))
        self.addCleanup(shutil.rmtree, tenants)
        file = tenants / "tenants.toml"
        door = tenants / "web.sock"
        file.write_text(f'[[tenant]]\nname = "web"\nweight = 3\nisolation = "process"\nsocket = "{door}"\n', "utf-8")
        self.start("--tenants", str(file), "--trace-folder", str(tenants / "traces"), metrics="127.0.0.1:0")
        url = self.daemon.metrics_url()
        self.vector_add()
        program = self.wanderer(door)
        own = self.session_of(program)["worker_pid"]
        self.daemon.control("trace", "start")

        def told():
            """What must be the same: the sessions that were begun, the files of traces, since when, where metrics are."""
            with urllib.request.urlopen(url, timeout=30) as answer:
                metrics = answer.read().decode()
            trace = json.loads(self.daemon.control("trace", "show", "-o", "json"))
            return (re.findall(r"^consort_sessions_started_total\{.*", metrics, re.MULTILINE), [file["path"] for file in trace["files"]],
                    trace["recording"], self.status()["started"])

        before = told()
        self.assertEqual((len(before[0]), len(before[1])), (2, 2), before)
        self.upgrade()
        self.assertEqual(told(), before)
        self.assertEqual(self.session_of(program)["worker_pid"], own)
        self.passes(program)
        # The worker that was the tenant's alone goes with its last session, as it would have.
        stack.wait_for(lambda: str(own) not in self.children(), "the end of the tenant's own worker")
        self.stop()


if __name__ == "__main__":
    unittest.main()
