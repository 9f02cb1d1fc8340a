#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/libvirt_test.py: consortctl vm with libvirt's QEMU driver: a domain gets a vGPU by one
command, its program computes, and nothing is left when it is taken away.

libvirtd is one of the test's own, an unprivileged session in the test's folder.
"""

import json
import os
import pathlib
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import domain
import stack
import vm

START_SECONDS = 30
GUEST_SECONDS = 240

# Of root's test: libvirtd and QEMU run as this user, as they do on a host.
USER = "nobody"


class Libvirt(unittest.TestCase):
    def setUp(self):
        for program in ("libvirtd", "virsh"):
            if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin"):
                self.skipTest(f"no {program} on this machine (Debian: libvirt-daemon, "
                              "libvirt-clients)")
        if not pathlib.Path("/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/"
                            "libvirt_driver_qemu.so").exists():
            self.skipTest("no QEMU driver of libvirt (Debian: libvirt-daemon-driver-qemu)")
        self.kernel = vm.kernel_or_skip("6.12")
        # Not in TMPDIR: QEMU's user must reach it, and addresses of sockets are short.
        folder = tempfile.TemporaryDirectory(dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.folder.chmod(0o755)
        user = pwd.getpwnam(USER)
        self.as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        group = USER
        if os.geteuid() == 0:
            group = subprocess.run(["getent", "group", str(user.pw_gid)], capture_output=True,
                                   text=True, check=True).stdout.split(":")[0]
        else:
            self.as_user, group = {}, str(pathlib.Path("/tmp").group())
            user = pwd.getpwuid(os.geteuid())
        self.start_libvirt(user)
        arguments = ["--vm-files", self.folder / "vms.d", "--vm-sockets", self.folder / "vms",
                     "--devices", "2"]
        if self.as_user:
            arguments += ["--vm-group", group]
        self.daemon = self.enterContext(stack.Daemon(self.folder / "d", device="cpu",
                                                     arguments=arguments))

    def start_libvirt(self, user):
        home = self.folder / "libvirt"
        (self.folder / "d").mkdir()
        home.mkdir(mode=0o700)
        (home / "run").mkdir(mode=0o700)
        if self.as_user:
            for path in (home, home / "run"):
                os.chown(path, user.pw_uid, user.pw_gid)
        environment = dict(os.environ, HOME=str(home), XDG_RUNTIME_DIR=str(home / "run"))
        for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
            environment[name] = str(home / name.lower())
        with open(self.folder / "libvirtd.log", "wb") as log:
            libvirtd = subprocess.Popen(
                [shutil.which("libvirtd", path=os.environ["PATH"] + ":/usr/sbin")],
                env=environment, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                **self.as_user)
        self.addCleanup(libvirtd.wait)
        self.addCleanup(libvirtd.terminate)
        self.addCleanup(self.end_guest)
        socket = home / "run" / "libvirt" / "libvirt-sock"
        self.uri = f"qemu+unix:///session?socket={socket}"
        deadline = time.monotonic() + START_SECONDS
        while not socket.exists():
            self.assertLess(time.monotonic(), deadline,
                            (self.folder / "libvirtd.log").read_text("utf-8", "replace"))
            time.sleep(0.05)

    def end_guest(self):
        subprocess.run(["virsh", "-c", self.uri, "destroy", "web-1"], capture_output=True,
                       timeout=60)

    def virsh(self, *arguments):
        done = subprocess.run(["virsh", "-c", self.uri, *arguments], capture_output=True,
                              text=True, timeout=120)
        self.assertEqual(done.returncode, 0, f"virsh {arguments}: {done.stderr}"
                         f"{self.daemon.log_tail()}")
        return done.stdout

    def vm_ctl(self, *arguments, status=0):
        return self.daemon.control("vm", "-c", self.uri, "--vm-files", str(self.folder / "vms.d"),
                                   "--vm-sockets", str(self.folder / "vms"), *arguments, status=status)

    def define(self, commands, programs):
        shutil.copy(self.kernel.image, self.folder / "kernel")
        vm.build_initramfs(self.kernel, stack.guest_files(programs), vm.guest_script(commands),
                           self.folder / "initramfs")
        self.token = secrets.token_hex(8)
        definition = self.folder / "domain.xml"
        definition.write_text(domain.definition("web-1", self.folder, f"{self.folder}/libvirt/serial", self.token), "ascii")
        self.virsh("define", str(definition))

    def run_guest(self):
        """Starts the domain and returns what it said when it has powered off."""
        self.virsh("start", "web-1")
        deadline = time.monotonic() + GUEST_SECONDS
        serial = ""
        while not domain.has_ended(serial, self.token) and time.monotonic() < deadline:
            time.sleep(0.2)
            file = self.folder / "libvirt" / "serial"
            serial = file.read_text("ascii", "replace") if file.exists() else ""
        self.assertIn(f"@consort {self.token} exit 0", serial,
                      serial[-3000:] + self.daemon.log_tail())
        stack.wait_for(lambda: self.virsh("domstate", "web-1").strip() == "shut off", "libvirt to see that it is off")
        return serial

    def test_a_domain_gets_a_vgpu_computes_and_loses_it_again(self):
        commands = [vm.Command(name, (f"/usr/bin/{name}",))
                    for name in ("vector_add", "device_query")]
        self.define(commands, ["vector_add", "device_query"])
        plain = self.virsh("dumpxml", "web-1")
        self.assertIn("no vGPU", self.vm_ctl("check", "web-1", status=1))

        printed = self.vm_ctl("attach", "web-1", "--tenant", "research", "--print")
        self.assertIn("vhost-user-vsock-pci", printed)
        self.assertEqual(self.virsh("dumpxml", "web-1"), plain)
        self.assertEqual(json.loads(self.daemon.control("status", "-o", "json"))["vms"], [])

        self.vm_ctl("attach", "web-1", "--tenant", "research", "--vgpus", "1")
        attached = self.virsh("dumpxml", "web-1")
        self.assertIn("already", self.vm_ctl("attach", "web-1", "--tenant", "research"))
        self.assertEqual(self.virsh("dumpxml", "web-1"), attached)
        self.assertIn("nothing is missing", self.vm_ctl("check", "web-1"))
        listed, = json.loads(self.vm_ctl("list", "-o", "json"))
        self.assertEqual((listed["domain"], listed["tenant"], listed["vgpus"], listed["running"]),
                         ("web-1", "research", 1, False))
        known, = json.loads(self.daemon.control("status", "-o", "json"))["vms"]
        self.assertEqual((known["name"], known["tenant"], known["vgpus"]),
                         ("web-1", "research", 1))

        serial = self.run_guest()
        self.assertEqual(serial.count("PASS"), 2, serial)
        # The host has two devices.
        self.assertEqual(re.findall(r"^device (\d+):", serial, re.MULTILINE), ["0"])
        for session in self.daemon.wait_for_account(lambda sessions: len(sessions) >= 2):
            self.assertEqual((session["tenant"], session["vm"], session["channel"]),
                             ("research", "web-1", "vhost-user"))
        self.assertIn("research", self.daemon.control("status"))

        self.vm_ctl("detach", "web-1")
        self.assertEqual(self.virsh("dumpxml", "web-1"), plain)
        self.assertEqual(json.loads(self.daemon.control("status", "-o", "json"))["vms"], [])
        self.assertEqual([path.name for path in (self.folder / "vms").glob("*.sock")], [])
        self.assertEqual(list((self.folder / "vms.d").iterdir()), [])
        self.assertIn("has no vGPU", self.vm_ctl("detach", "web-1"))
        self.assertEqual(json.loads(self.vm_ctl("list", "-o", "json")), [])

    def test_check_names_what_was_broken_and_attach_mends_it(self):
        self.define([], [])
        self.vm_ctl("attach", "web-1", "--tenant", "research")
        broken = self.folder / "broken.xml"
        broken.write_text(re.sub(r"<access mode='shared'/>", "", self.virsh("dumpxml", "web-1")),
                          "ascii")
        self.virsh("define", str(broken))
        self.assertIn("not shared", self.vm_ctl("check", "web-1", status=1))
        (self.folder / "vms.d" / "web-1.toml").unlink()
        self.daemon.signal(signal.SIGHUP)
        deadline = time.monotonic() + START_SECONDS
        while json.loads(self.daemon.control("status", "-o", "json"))["vms"]:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        self.assertIn("does not know the VM", self.vm_ctl("check", "web-1", status=1))
        self.vm_ctl("attach", "web-1", "--tenant", "research")
        self.assertIn("nothing is missing", self.vm_ctl("check", "web-1"))

    def test_a_mistake_in_a_file_is_told_and_nothing_changes(self):
        self.define([], [])
        self.vm_ctl("attach", "web-1", "--tenant", "research")
        (self.folder / "vms.d" / "web-2.toml").write_text("tenand = 'x'\n", "ascii")
        self.daemon.signal(signal.SIGHUP)
        deadline = time.monotonic() + START_SECONDS
        while not json.loads(self.daemon.control("status", "-o", "json"))["reload_failed"]:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        self.assertIn("web-2.toml:1: unknown key tenand", self.daemon.log())
        self.assertEqual([known["name"] for known in
                          json.loads(self.daemon.control("status", "-o", "json"))["vms"]], ["web-1"])
        self.assertIn("mistake", self.daemon.control("status"))

    def test_a_watcher_and_the_hook_keep_sockets_in_step_with_domains(self):
        self.define([], [])
        self.vm_ctl("attach", "web-1", "--tenant", "research")
        attached = self.folder / "attached.xml"
        attached.write_text(self.virsh("dumpxml", "web-1"), "ascii")
        file = self.folder / "vms.d" / "web-1.toml"
        socket = self.folder / "vms" / "web-1.sock"
        watcher = subprocess.Popen(
            [stack.BUILD / "bin" / "consortctl", "--admin-socket", self.daemon.admin_socket, "vm", "-c", self.uri,
             "--vm-files", self.folder / "vms.d", "--vm-sockets", self.folder / "vms", "watch"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(watcher.stdout.close)
        self.addCleanup(watcher.wait)
        self.addCleanup(watcher.kill)
        self.virsh("undefine", "web-1")
        self.assertEqual(watcher.stdout.readline(), "web-1: is gone, and its socket too\n", self.daemon.log_tail())
        self.assertFalse(file.exists() or socket.exists())
        self.virsh("define", str(attached))
        self.assertEqual(watcher.stdout.readline(), "web-1: has a socket, of tenant research\n", self.daemon.log_tail())
        self.assertTrue(file.exists() and socket.exists())
        watcher.kill()

        def hook(action):
            subprocess.run([stack.BUILD / "bin" / "consortctl", "--admin-socket", self.daemon.admin_socket, "vm", "--vm-files",
                            self.folder / "vms.d", "--vm-sockets", self.folder / "vms", "hook", "web-1", action],
                           input=attached.read_text("ascii"), text=True, check=True, timeout=60)

        hook("release")
        self.assertFalse(file.exists() or socket.exists())
        hook("prepare")
        self.assertTrue(file.exists() and socket.exists())

    def test_without_a_daemon_it_says_so(self):
        self.daemon.stop()
        self.assertIn("is consortd running", self.daemon.control("status", status=69))
        self.daemon.control("nonsense", status=64)
        self.daemon.control("--help")


if __name__ == "__main__":
    unittest.main(verbosity=2)
