#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/errors_test.py: what operators meet when something is wrong: each time one clear message that says what to do.

A row of CASES is a mistake: its command, how it ends, and what its last word must contain.
"""

import contextlib
import ctypes
import dataclasses
import errno
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest

import stack

SECONDS = 60
NOBODY = 65534


@dataclasses.dataclass
class Case:
    name: str
    arguments: tuple  # of consortd; {folder} is a folder of the case's own
    says: tuple  # regular expressions that its last message matches, what is wrong and what to do
    status: int
    files: dict = dataclasses.field(default_factory=dict)
    as_nobody: bool = False


CASES = (
    Case("an option that does not exist", ("--nonsense", "x"), (r"not expected: .*--nonsense", r"consortd --help"), 2),
    Case("a value that is none", ("--devices", "many"), (r"--devices: wants a number from 1 to \d+",), 2),
    Case("a policy that does not exist", ("--scheduler", "fair"), (r"--scheduler: knows no fair",), 2),
    Case("more threads to copy than are allowed", ("--vm-copy-threads", "65"), (r"--vm-copy-threads: wants a number up to 64",), 2),
    Case("a group that does not exist", ("--vm-group", "no-such-group"), (r"there is no group no-such-group",), 2),
    Case("a key that tenants' file does not know", ("--tenants", "{folder}/tenants.toml"),
         (r"tenants\.toml:2:1: unknown key wheight", r"a tenant has name, weight"), 2,
         {"tenants.toml": '[[tenant]]\nwheight = 2\n'}),
    Case("a tenants' file that is not there", ("--tenants", "{folder}/none.toml"), (r"none\.toml",), 2),
    Case("a key that a machine's file does not know", ("--vm-files", "{folder}/vms.d"),
         (r"web-1\.toml:1: unknown key tenand", r"there are tenant, vgpus and shared_memory"), 1, {"vms.d/web-1.toml": 'tenand = "x"\n'}),
    Case("no GPU", ("--device", "nvidia"), (r"libcuda\.so\.1", r"NVIDIA's driver", r"--device cpu"), 1),
    Case("a folder that cannot be made", ("--socket", "/proc/none/consortd.sock"), (r"/proc/none", r"--socket"), 1),
    Case("a folder that this user may not write", ("--socket", "{folder}/closed/consortd.sock"),
         (r"closed/consortd\.admin\.sock\.lock: Permission denied", r"systemctl start consortd", r"--socket"), 1,
         {"closed/": ""}, as_nobody=True),
    Case("a folder of the account that is not there", ("--account", "{folder}/none/account.jsonl"),
         (r"account file .*none/account\.jsonl: No such file", r"its folder must be there"), 1),
    Case("a file where the socket should be", ("--admin-socket", "off", "--socket", "{folder}/file"),
         (r"file exists and is not a socket", r"remove it or choose another path"), 1, {"file": "text"}),
    Case("an address that this host has not", ("--metrics", "192.0.2.1:80"),
         (r"192\.0\.2\.1:80: Cannot assign", r"another address, or off"), 1),
    Case("an address that is none", ("--metrics", "nine"), (r"nine is no ADDRESS:PORT, such as 127\.0\.0\.1:9825",), 1),
    Case("two daemons on one socket", ("--socket", "{running}/consortd.sock"),
         (r"another daemon", r"systemctl status consortd", r"--socket"), 1),
    Case("two daemons on one port", ("--metrics", "{port}"), (r"Address already in use", r"--metrics"), 1),
)


def refuse_vsock(error):
    """From now on this process gets `error` for a socket of AF_VSOCK. Source: seccomp(2), filters of classic BPF."""
    load, jump_if_equal, answer = 0x20, 0x15, 0x06
    allow, fail = 0x7FFF0000, 0x00050000
    socket_call = 41  # of x86-64
    # Offsets in struct seccomp_data: the call's number, and the low half of its first argument.
    program = b"".join(struct.pack("=HBBI", *each) for each in (
        (load, 0, 0, 0), (jump_if_equal, 0, 3, socket_call), (load, 0, 0, 16),
        (jump_if_equal, 0, 1, socket.AF_VSOCK), (answer, 0, 0, fail | error), (answer, 0, 0, allow)))
    instructions = ctypes.create_string_buffer(program, len(program))
    filter_program = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_seccomp, mode_filter = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) != 0 or libc.prctl(set_seccomp, mode_filter, filter_program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def last_word(text):
    """The last error that a program has said, without the log's prefix."""
    lines = [line for line in text.splitlines() if re.match(r"E\d{8} |consortd: |consortctl: ", line)]
    return re.sub(r"^E\S+ \S+ +\d+ \S+\] ", "", lines[-1]) if lines else ""


class Errors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="errors-")
        cls.addClassCleanup(folder.cleanup)
        cls.running = cls.enterClassContext(stack.Daemon(pathlib.Path(folder.name), device="cpu", metrics="127.0.0.1:0"))

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="error-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.folder.chmod(0o755)

    def test_consortd_says_what_is_wrong_and_what_to_do(self):
        for number, case in enumerate(CASES):
            with self.subTest(case.name):
                if case.as_nobody and os.geteuid() != 0:
                    continue  # who is not root is refused by the other cases' folders
                folder = self.folder / str(number)
                folder.mkdir()
                for name, text in case.files.items():
                    path = folder / name
                    path.parent.mkdir(exist_ok=True)
                    if name.endswith("/"):
                        path.mkdir()
                    else:
                        path.write_text(text, "utf-8")
                arguments = [each.format(folder=folder, running=self.running.folder,
                                         port=self.running.metrics_url().split("/")[2]) for each in case.arguments]
                given = {"--socket": str(folder / "consortd.sock"), "--metrics": "off", "--device": "cpu", "--vsock-port": "off"}
                command = [stack.BUILD / "bin" / "consortd"]
                for flag, value in given.items():
                    if flag not in arguments:
                        command += [flag, value]
                identity = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if case.as_nobody else {}
                done = subprocess.run(command + arguments, capture_output=True, text=True, timeout=SECONDS, **identity,
                                      env={key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"})
                self.assertEqual(done.returncode, case.status, done.stderr)
                said = last_word(done.stderr) if case.status == 1 else done.stderr
                for wanted in case.says:
                    self.assertRegex(said, wanted, done.stderr)

    def test_a_full_disk_is_told_and_stops_nobody(self):
        """/dev/full answers every write as a full disk does."""
        with stack.Daemon(self.folder, device="cpu", metrics="127.0.0.1:0", arguments=("--account", "/dev/full")) as daemon:
            for _ in range(2):
                done = subprocess.run([stack.PROGRAMS / "vector_add"], env=daemon.local_environment(),
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
                self.assertEqual(done.returncode, 0, done.stderr + daemon.log_tail())
            deadline = time.monotonic() + SECONDS
            while daemon.log().count("; lost: ") < 2:
                self.assertLess(time.monotonic(), deadline, daemon.log_tail())
                time.sleep(0.05)
            self.assertRegex(daemon.log(), r"account file /dev/full: No space left on device: make room there")
            self.assertIn("make room there", daemon.control("events"))

    def test_consortctl_says_what_is_wrong_and_what_to_do(self):
        self.assertRegex(self.running.control("report", "--account", str(self.folder / "none"), status=1),
                         r"there is no account .*--account FILE")
        self.assertRegex(self.running.control("report", "--since", "yesterday", status=64), r"no time, such as 2026-03-01")
        self.assertIn("--help", self.running.control("stat", status=64))
        if os.geteuid() == 0:
            self.assertRegex(self.running.control("status", status=77, user=NOBODY, group=NOBODY, extra_groups=[]),
                             r"you may not use .*: be root, or a member of the group")
        self.running.signal(signal.SIGSTOP)
        try:
            self.assertRegex(self.running.control("status", status=69), r"does not answer .*journalctl -u consortd")
        finally:
            self.running.signal(signal.SIGCONT)

    def test_a_program_says_why_it_finds_no_device(self):
        for endpoint, wanted in ((f"unix:{self.folder}/none.sock", r"cannot reach .*none\.sock.*is consortd running"),
                                 ("vsock:2:7000", r"cannot reach vsock:2:7000.*(vmw_vsock_virtio_transport|attached)"),
                                 ("nonsense", r"bad endpoint 'nonsense'")):
            with self.subTest(endpoint):
                environment = dict(self.running.local_environment(), CONSORT_ENDPOINT=endpoint)
                done = subprocess.run([stack.PROGRAMS / "vector_add"], env=environment, stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, timeout=SECONDS)
                self.assertNotEqual(done.returncode, 0)
                self.assertEqual(len(re.findall(r"(?m)^consort: ", done.stderr)), 1, done.stderr)
                self.assertRegex(done.stderr, wanted)


    def test_a_guest_whose_kernel_or_container_has_no_vsock_is_told(self):
        """A kernel without it, and a container's profile, answer the first system call with these errors."""
        for error, wanted in ((errno.EAFNOSUPPORT, r"Address family not supported.*Linux 4\.8 or later.*modprobe"),
                              (errno.EPERM, r"Operation not permitted.*--device consort.dev/gpu=all")):
            with self.subTest(errno.errorcode[error]):
                environment = dict(self.running.local_environment(), CONSORT_ENDPOINT="vsock:2:7000")
                done = subprocess.run([stack.PROGRAMS / "vector_add"], env=environment, stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, timeout=SECONDS, preexec_fn=lambda: refuse_vsock(error))
                self.assertNotEqual(done.returncode, 0)
                self.assertEqual(len(re.findall(r"(?m)^consort: ", done.stderr)), 1, done.stderr)
                self.assertRegex(done.stderr, "cannot reach vsock:2:7000: " + wanted)

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to mount a small file system")
    def test_a_disk_that_fills_up_is_told_and_used_again_when_there_is_room(self):
        disk = self.folder / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        tenants = self.folder / "tenants.toml"
        tenants.write_text('[[tenant]]\nname = "a"\n', "utf-8")
        account = disk / "account.jsonl"
        with stack.Daemon(self.folder, device="cpu", arguments=(
                "--account", account, "--tenants", tenants, "--state", disk / "state.json")) as daemon:
            daemon.control("tenant", "set", "a", "--weight", "2")
            filler = disk / "filler"
            with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            # What could not be kept has not happened.
            said = daemon.control("tenant", "set", "a", "--weight", "3", status=1)
            self.assertRegex(said, r"state\.json.*No space left on device")
            self.assertRegex(daemon.control("tenant", "list"), r"(?m)^a +2 ")
            self.assertRegex(daemon.control("debug", "bundle", str(disk / "bundle.tar"), status=1),
                             r"bundle\.tar.*No space left on device")

            def run_until(wanted):
                # An account's line or two may fit the room that its file has already.
                deadline = time.monotonic() + SECONDS
                while not wanted():
                    self.assertLess(time.monotonic(), deadline, daemon.log_tail())
                    done = subprocess.run([stack.PROGRAMS / "vector_add"], env=daemon.local_environment(),
                                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
                    self.assertEqual(done.returncode, 0, done.stderr + daemon.log_tail())
            run_until(lambda: "account.jsonl: No space left on device: make room there" in daemon.log())
            filler.unlink()
            before = len(account.read_text("utf-8").splitlines())
            run_until(lambda: len(account.read_text("utf-8").splitlines()) > before)
            # Nothing was half written.
            for line in account.read_text("utf-8").splitlines():
                json.loads(line)
            daemon.control("tenant", "set", "a", "--weight", "3")
            self.assertEqual(daemon.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
