#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/leaving_test.py: programs that leave their host, as those in a machine do that is saved or moved, and go on
with another consortd: they notice nothing, and each word that they compute is checked by themselves.

A machine's vsock is a stream without descriptors that can be plugged in elsewhere; here a Plug is, over TCP."""

import contextlib
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import unittest

import network
import stack
import wanderers

PIECE = 1 << 16

# vmsock/wire/handshake.h
PURPOSE_RESUME = 4
TOKEN_OFFSET = 168
WELCOME_BYTES = 4096
NOT_HERE = 4


class Plug:
    """Joins TCP connections with the UNIX socket that it is plugged into; without one it refuses them."""

    def __init__(self, path):
        self.path = path
        self.hellos = []  # of all connections
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp:127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                guest, _ = self._listener.accept()
                host = socket.socket(socket.AF_UNIX)
                try:
                    host.connect(str(self.path))
                except OSError:
                    guest.close()
                    host.close()
                    continue
                threading.Thread(target=self._join, args=(guest, host), daemon=True).start()

    def _join(self, guest, host):
        with guest, host:
            first = guest.recv(PIECE)
            self.hellos.append(first)
            host.sendall(first)
            back = threading.Thread(target=self._carry, args=(host, guest), daemon=True)
            back.start()
            self._carry(guest, host)
            back.join()

    def _carry(self, one, other):
        with contextlib.suppress(OSError):
            while piece := one.recv(PIECE):
                other.sendall(piece)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)


class TestCase(wanderers.TestCase):
    """Of programs that go between self.daemon and self.other, and are plugged into the first."""

    def plug_in(self):
        self.plug = Plug(self.daemon.socket)
        self.addCleanup(self.plug.close)

    def traveller(self, *arguments, **settings):
        return self.wanderer(*arguments, CONSORT_ENDPOINT=self.plug.endpoint, **settings)

    def saved(self, name="saved"):
        return str(pathlib.Path(self.folder) / name)

    def leave(self, daemon, program, name="saved", status=0):
        return daemon.control("checkpoint", "--leave", f"pid:{program.pid}", self.saved(name), status=status)

    def swap(self):
        self.daemon, self.other = self.other, self.daemon
        self.plug.path = self.daemon.socket

    def works(self, program):
        def launches():
            return sum(session["kernel_launches"] for session in self.sessions()
                       if session["pid"] == program.pid and session["state"] == "open")
        before = stack.wait_for(launches, "a program that has come")
        stack.wait_for(lambda: launches() > before, "a program that computes")


class Leaving(TestCase):
    def start_both(self, *arguments):
        """Each with two devices; `arguments`: of the other."""
        self.start()
        folder = tempfile.TemporaryDirectory(prefix="other-")
        self.addCleanup(folder.cleanup)
        self.other = self.enterContext(stack.Daemon(folder.name, device="cpu", arguments=("--devices", "2", *arguments)))
        self.plug_in()

    def test_a_program_goes_to_another_daemon_and_back(self):
        self.start_both()
        program = self.traveller("4")
        for turn in range(4):
            said = self.leave(self.daemon, program)
            self.assertRegex(said, r"wanderer: device \d to checkpoint /")
            self.assertEqual(self.sessions(), [])
            self.assertIn("its program goes on where it is awaited", self.daemon.control("checkpoint", "--show", self.saved()))
            self.swap()
            self.daemon.control("await", self.saved(), "--to", str(turn % 2))
            self.works(program)
            self.assertEqual(self.device_of(program), [turn % 2])
        output = self.passes(program)
        self.assertEqual(output.count("CUDA calls go on"), 4, output)
        self.assertEqual(self.other.stop(), 0, self.other.log_tail())

    def test_the_first_daemon_may_end_and_the_program_waits(self):
        self.start_both()
        program = self.traveller("4")
        self.leave(self.daemon, program)
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log_tail())
        self.swap()
        # It comes again and again, and is not there.
        self.assertEqual(self.sessions(), [])
        self.daemon.control("await", self.saved())
        self.works(program)
        self.passes(program)

    def test_a_program_that_waits_for_its_user_leaves_too(self):
        self.start_both()
        program = self.traveller("1", "steps", typed="1234")
        self.leave(self.daemon, program)
        self.swap()
        self.daemon.control("await", self.saved())
        stack.wait_for(lambda: [session["state"] for session in self.sessions()] == ["open"], "a program that has come")
        program.stdin.write("5678")
        self.passes(program)

    def test_what_cannot_leave_stays_and_goes_on(self):
        self.start()
        program = self.wanderer("4")
        said = self.leave(self.daemon, program, status=1)
        self.assertIn("it stays on device 0: it shares memory with this host", said)
        self.passes(program)

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to mount a small file system")
    def test_a_program_that_was_asked_to_leave_goes_on_where_it_is(self):
        self.start_both()
        disk = pathlib.Path(self.saved("disk"))
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        program = self.traveller("8")
        self.assertIn("No space left on device", self.leave(self.daemon, program, "disk/saved", status=1))
        self.works(program)
        self.leave(self.daemon, program)
        self.swap()
        self.daemon.control("await", self.saved())
        self.works(program)
        self.passes(program)

    def test_a_token_is_good_for_its_tenant_alone(self):
        file, door = self.one_tenant("nosy")
        self.start_both("--tenants", str(file))
        program = self.traveller("4")
        self.leave(self.daemon, program)
        self.swap()
        self.plug.path = door
        self.daemon.control("await", self.saved())
        seen = len(self.plug.hellos)
        stack.wait_for(lambda: len(self.plug.hellos) > seen + 2, "a program that asks where it may not")
        self.assertEqual([session["state"] for session in self.sessions()], ["held"])
        [purpose] = {struct.unpack_from("<I", hello, 16)[0] for hello in self.plug.hellos[seen:]}
        self.assertEqual(purpose, PURPOSE_RESUME)
        with socket.socket(socket.AF_UNIX) as own:
            # A token that differs in one bit, at the right door.
            hello = bytearray(self.plug.hellos[-1])
            hello[TOKEN_OFFSET + 15] ^= 1
            own.connect(str(self.daemon.socket))
            own.sendall(hello)
            self.assertEqual(struct.unpack_from("<I", own.recv(WELCOME_BYTES, socket.MSG_WAITALL), 8)[0], NOT_HERE)
        self.plug.path = self.daemon.socket
        self.works(program)
        self.passes(program)

    def test_folders_that_nobody_comes_for_are_refused_by_name(self):
        self.start_both()
        program, local = self.traveller("4"), self.wanderer("4")
        self.daemon.control("checkpoint", f"pid:{local.pid}", self.saved("held"))
        shutil.copytree(self.saved("held"), self.saved("copy"))
        self.leave(self.daemon, program)
        shutil.copytree(self.saved(), self.saved("again"))
        self.swap()
        self.plug.path = self.saved("nowhere")
        self.daemon.control("await", self.saved())
        for name, text in (("copy", "its program waits where it was taken"),
                           ("again", "its addresses are another application's on device 0"),
                           ("saved", "an application that is held has its checkpoint there"),
                           ("nothing", "No such file or directory")):
            self.assertIn(text, self.daemon.control("await", self.saved(name), status=1))
        self.assertIn("there is no device 7", self.daemon.control("await", self.saved("again"), "--to", "7", status=64))
        self.plug.path = self.daemon.socket
        self.works(program)
        self.other.control("restore", f"pid:{local.pid}")
        for each in (program, local):
            self.passes(each)


@unittest.skipIf(network.why_not(), network.why_not())
class LeavingTheHost(TestCase):
    def test_a_program_goes_to_another_host_and_back(self):
        hosts = self.enterContext(network.Network(2))
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="hosts-"))
        daemons = []
        for host in (0, 1):
            folder = pathlib.Path(self.folder, str(host))
            folder.mkdir()
            daemons.append(self.enterContext(stack.Daemon(folder, device="cpu", prefix=hosts.command(host, []))))
        self.daemon, self.other = daemons
        self.plug_in()
        program = self.traveller("4")
        for _ in range(2):
            self.leave(self.daemon, program)
            self.assertEqual(self.sessions(), [])
            self.swap()
            self.daemon.control("await", self.saved())
            self.works(program)
        output = self.passes(program)
        self.assertEqual(output.count("CUDA calls go on"), 2, output)
        self.assertEqual(self.other.stop(), 0, self.other.log_tail())


if __name__ == "__main__":
    unittest.main(verbosity=2)
