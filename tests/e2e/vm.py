#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/vm.py: boots a virtual machine with a serial line and a virtio socket and no more.

    with Vm(kernel, initramfs, vsock_socket="/run/x/vm1.sock") as vm:
        vm.wait_for("ready")
        end = vm.wait()          # end.status is the guest script's exit status

QEMU is started with KVM where that works (tried once, see accelerator()) and else with TCG, and
never outlives this process. Lines of the serial port are kept, and handed to `on_line` as they
come, with the seconds since QEMU's start. As a program: boots one guest and runs one command.

    tests/e2e/vm.py --kernel 6.12 --file /usr/bin/x=build/x -- /usr/bin/x
"""

import argparse
import ctypes
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from initramfs import CACHE, KERNEL_METAPACKAGES, Kernel, Unavailable, build_initramfs, fetch_kernel, kernel_words

__all__ = ["Command", "End", "Kernel", "Result", "Share", "Unavailable", "Vm", "VmError", "accelerator",
           "build_initramfs", "fetch_kernel", "guest_script", "qemu"]

# "rep movsb", which these two flags make kernels prefer, is interpreted byte by byte under TCG:
# without them copies are two to five times faster (64 MB sends 71 -> 362 MB/s).
CPU = {"kvm": "host", "tcg": "max,-erms,-fsrm"}

# Longest wait for the first KVM boot; where KVM is broken it hangs or stops at once.
KVM_PROBE_SECONDS = 20

# Lines kept of one guest's serial port: more than any test prints, so only a runaway reaches it.
SERIAL_LINES_MAX = 200_000


class VmError(Exception):
    """The guest did not do what was waited for; the text ends with its last serial lines."""


@dataclasses.dataclass(frozen=True)
class Share:
    """A folder of the host that a guest can mount: virtio-9p, with `tag` as its name there."""

    tag: str
    folder: pathlib.Path
    read_only: bool = False


@dataclasses.dataclass(frozen=True)
class Command:
    """One thing that a guest runs."""

    name: str  # no blanks
    argv: tuple
    environment: dict = dataclasses.field(default_factory=dict)
    timeout_s: int = 120


@dataclasses.dataclass(frozen=True)
class Result:
    """What a guest said of one Command: exit status (143 = timed out) and seconds by its clock."""

    status: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class End:
    """How a guest ended."""

    status: int | None  # of the guest script; None when the guest never said
    qemu_status: int  # of QEMU; negative: the signal that killed it
    timed_out: bool  # the watchdog had to kill QEMU
    seconds: float


def guest_script(commands, concurrent=False):
    """Shell text that runs the commands and prints `RESULT name status seconds` after each.

    One after another, or all at once. Its exit status is the number of commands that failed.
    """
    lines = [
        "failed=0",
        "centiseconds() { read up _ </proc/uptime; echo \"${up%.*}${up#*.}\"; }",
        "report() {  # name status start",
        "  took=$(($(centiseconds) - $3))",
        "  printf '\\nRESULT %s %d %d.%02d\\n' \"$1\" \"$2\" $((took / 100)) $((took % 100))",
        "}",
    ]
    for command in commands:
        environment = " ".join(f"{key}={shlex.quote(str(value))}"
                               for key, value in command.environment.items())
        line = f"env {environment} timeout {command.timeout_s} {shlex.join(command.argv)} 2>&1"
        if concurrent:
            lines.append(f"( start=$(centiseconds); {line}; status=$?; "
                         f"report {command.name} $status $start; exit $status ) &")
            lines.append('children="$children $!"')
        else:
            lines.append(f"start=$(centiseconds); {line}; status=$?")
            lines.append(f"report {command.name} $status $start")
            lines.append("[ $status = 0 ] || failed=$((failed + 1))")
    if concurrent:
        lines.append("for child in $children; do wait $child || failed=$((failed + 1)); done")
    lines.append("exit $failed")
    return "\n".join(lines) + "\n"


def qemu():
    """The QEMU to run; Unavailable where there is none."""
    found = shutil.which("qemu-system-x86_64")
    if not found:
        raise Unavailable("no qemu-system-x86_64 on this machine (Debian: qemu-system-x86)")
    return found


def kernel_or_skip(flavour):
    """fetch_kernel's, for a test that boots it: skipped with the reason where that or QEMU cannot be had."""
    try:
        qemu()
        return fetch_kernel(flavour)
    except Unavailable as reason:
        raise unittest.SkipTest(str(reason)) from None


def die_with_parent():
    """In the child before exec: QEMU is killed when the thread that started it ends, however."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; see prctl(2)


class Vm:
    """One QEMU. Thread safe but for start(): call it from a thread that lives as long as the VM."""

    def __init__(self, kernel, initramfs, vsock_socket=None, memory_mib=512, cpus=1, qmp=None,
                 accelerator_name=None, timeout_s=300, on_line=None, shares=(), incoming=False,
                 shared_memory=None):
        """vsock_socket: where a vhost-user vsock backend listens already; None: no such device, until one is plugged
        into its place. incoming: it waits for what another Vm saves or sends. shared_memory: the file of the
        memory that it shares with its host (consortd --vm-memory).
        qmp: path for the monitor socket. timeout_s: QEMU is killed after that. on_line(seconds,
        line): called in the reader's thread.
        """
        self._token = secrets.token_hex(8)
        self._qmp = qmp
        self._timeout_s = timeout_s
        self._on_line = on_line
        self._changed = threading.Condition()
        self._lines = []  # (seconds, text), guarded by _changed
        self._ended = False  # guarded by _changed
        self._timed_out = False
        self._process = None
        accelerator_name = accelerator_name or accelerator(kernel)
        self._command = [
            qemu(), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-accel", "kvm" if accelerator_name == "kvm" else "tcg,thread=multi",
            "-cpu", CPU[accelerator_name], "-smp", str(cpus), "-m", f"{memory_mib}M",
            # Shared: the backend maps the guest's memory. A private one fails late and obscurely.
            "-object", f"memory-backend-memfd,id=mem,size={memory_mib}M,share=on",
            "-M", "q35,memory-backend=mem", "-serial", "stdio",
            "-kernel", str(kernel.image), "-initrd", str(initramfs),
            "-append", kernel_words(self._token),
        ]
        # Only what has a port of its own can be unplugged.
        self._command += ["-device", "pcie-root-port,id=consort-port,chassis=1"]
        if vsock_socket:
            self._command += ["-chardev", f"socket,id=vsock,path={vsock_socket}",
                              "-device", "vhost-user-vsock-pci,chardev=vsock,bus=consort-port,id=consort"]
        if shared_memory:
            size = pathlib.Path(shared_memory).stat().st_size
            self._command += [
                "-object", f"memory-backend-file,id=consort-memory,size={size},share=on,mem-path={shared_memory}",
                "-device", "ivshmem-plain,memdev=consort-memory"]
        if incoming:
            self._command += ["-incoming", "defer"]
        for share in shares:
            read_only = ",readonly=on" if share.read_only else ""
            self._command += [
                "-fsdev", f"local,id={share.tag},path={share.folder},security_model=none,multidevs=remap{read_only}",
                "-device", f"virtio-9p-pci,fsdev={share.tag},mount_tag={share.tag}"]
        if qmp:
            self._command += ["-qmp", f"unix:{qmp},server=on,wait=off"]

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self):
        self._start = time.monotonic()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
        self._watchdog = threading.Timer(self._timeout_s, self._on_timeout)
        self._watchdog.daemon = True
        self._watchdog.start()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _on_timeout(self):
        self._timed_out = True
        self._process.kill()

    def _read(self):
        with self._process.stdout as serial:
            for raw in serial:
                entry = (time.monotonic() - self._start, raw.decode(errors="replace").rstrip())
                with self._changed:
                    if len(self._lines) < SERIAL_LINES_MAX:
                        self._lines.append(entry)
                    self._changed.notify_all()
                if self._on_line and not entry[1].startswith("@consort"):
                    self._on_line(*entry)
        self._process.wait()
        self._watchdog.cancel()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def type(self, line):
        """Sends a line to the serial port, for who reads /dev/ttyS0 in the guest."""
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def output(self):
        """All serial lines so far, without the harness's own."""
        with self._changed:
            return [text for _, text in self._lines if not text.startswith("@consort")]

    def tail(self, count=25):
        return "\n".join("    | " + line for line in self.output()[-count:])

    def wait_for(self, text, timeout_s=60):
        """The first serial line that contains the text. VmError: QEMU ended or time is up."""
        deadline = time.monotonic() + timeout_s
        seen = 0
        with self._changed:
            while True:
                for _, line in self._lines[seen:]:
                    if text in line:
                        return line
                seen = len(self._lines)
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    break
                self._changed.wait(left)
        how = "QEMU ended" if self._ended else f"nothing in {timeout_s} s"
        raise VmError(f"waited for {text!r}: {how}\n{self.tail()}")

    def wait_up(self, timeout_s=60):
        """Returns once the guest's user space runs and its modules are loaded."""
        self.wait_for(f"@consort {self._token} up", timeout_s)

    def wait(self):
        """Waits for the guest to power off (the watchdog bounds it)."""
        self._reader.join()
        status = None
        with self._changed:
            for seconds, line in self._lines:
                found = re.fullmatch(rf"@consort {self._token} exit (\d+)", line)
                if found:
                    status = int(found.group(1))
            last = self._lines[-1][0] if self._lines else 0.0
        return End(status, self._process.returncode, self._timed_out, last)

    def results(self):
        """name -> Result of each command of guest_script() that has ended."""
        found = (re.search(r"RESULT (\S+) (\d+) (\d+\.\d\d)$", line) for line in self.output())
        return {m.group(1): Result(int(m.group(2)), float(m.group(3))) for m in found if m}

    def kill(self):
        """SIGKILL, as a host's out-of-memory killer would. Returns when QEMU is gone, or at once
        when on_line calls it."""
        if self._process:
            self._process.kill()
            if threading.current_thread() is not self._reader:
                self._reader.join()

    def is_running(self):
        with self._changed:
            return not self._ended

    def process_id(self):
        return self._process.pid

    def qmp_command(self, name, timeout_s=30, **arguments):
        """Runs one monitor command, on a connection of its own; returns its result."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(timeout_s)
            monitor.connect(str(self._qmp))
            stream = monitor.makefile("rw", encoding="utf-8")
            json.loads(stream.readline())  # the greeting
            for request in ({"execute": "qmp_capabilities"},
                            {"execute": name, "arguments": arguments}):
                stream.write(json.dumps(request) + "\n")
                stream.flush()
                reply = {}
                while "return" not in reply and "error" not in reply:  # events come in between
                    reply = json.loads(stream.readline())
                if "error" in reply:
                    raise VmError(f"monitor command {request}: {reply['error']}")
        return reply["return"]


def accelerator(kernel):
    """"kvm" where a guest really boots with it, else "tcg". Tried once per machine and kernel.

    /dev/kvm may exist and not work: nested virtualisation that stops in the decompressor is common.
    """
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    cpus = pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    model = re.search(r"^model name.*$", cpus, re.MULTILINE)
    version = subprocess.run([qemu(), "--version"], capture_output=True, text=True, check=False)
    key = "\n".join([model.group(0) if model else "", version.stdout, os.uname().release,
                     os.uname().version, kernel.release])
    answer = CACHE / f"kvm-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if not answer.exists():
        works = _kvm_boots(kernel)
        answer.parent.mkdir(parents=True, exist_ok=True)
        answer.write_text("kvm\n" if works else "tcg\n", encoding="ascii")
    return answer.read_text(encoding="ascii").strip()


def _kvm_boots(kernel):
    with tempfile.TemporaryDirectory() as folder:
        initramfs = pathlib.Path(folder) / "initramfs"
        build_initramfs(kernel, {}, "exit 0\n", initramfs)

        def look(_, line):
            if "KVM internal error" in line:  # QEMU then stops the guest and stays
                vm.kill()

        vm = Vm(kernel, initramfs, accelerator_name="kvm", timeout_s=KVM_PROBE_SECONDS,
                on_line=look)
        with vm:
            return vm.wait().status == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernel", choices=sorted(KERNEL_METAPACKAGES), default="6.12")
    parser.add_argument("--file", action="append", default=[], metavar="GUEST=HOST",
                        help="put a file (and the libraries it needs) into the guest")
    parser.add_argument("--env", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--vsock", metavar="SOCKET", help="a vhost-user vsock backend's socket")
    parser.add_argument("--memory", type=int, default=512, metavar="MIB")
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=300, metavar="SECONDS")
    parser.add_argument("--accel", choices=sorted(CPU), help="default: KVM if it works")
    parser.add_argument("command", nargs="*", help="default: only fetch the kernel")
    arguments = parser.parse_args()
    try:
        kernel = fetch_kernel(arguments.kernel)
        print(f"kernel {kernel.release}: {kernel.image}")
        if not arguments.command:
            return 0
        environment = dict(pair.split("=", 1) for pair in arguments.env)
        script = guest_script([Command("command", tuple(arguments.command), environment,
                                       arguments.timeout)])
        with tempfile.TemporaryDirectory() as folder:
            initramfs = pathlib.Path(folder) / "initramfs"
            build_initramfs(kernel, dict(pair.split("=", 1) for pair in arguments.file), script,
                            initramfs)
            with Vm(kernel, initramfs, arguments.vsock, arguments.memory, arguments.cpus,
                    accelerator_name=arguments.accel, timeout_s=arguments.timeout,
                    on_line=lambda at, line: print(f"[{at:7.3f}] {line}", flush=True)) as vm:
                end = vm.wait()
    except (Unavailable, VmError) as error:
        print(f"vm.py: {error}", file=sys.stderr)
        return 2
    print(f"guest status {end.status}, QEMU status {end.qemu_status}, {end.seconds:.1f} s")
    return 0 if end.status == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
