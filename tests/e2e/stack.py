# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/stack.py: a consortd of the build under test, and what its guests need to reach it.

The build folder is $CONSORT_BUILD, or build/dev of this repository. A Daemon owns one folder, in
which its sockets, its log and its account lie; the folder must have a short path (108 bytes a
socket address, unix(7)).
"""

import encodings.idna  # noqa: F401  getaddrinfo() imports it at its first call, which in several threads can fail (Python 3.11)
import json
import os
import pathlib
import queue
import re
import shlex
import signal
import subprocess
import threading
import time

from initramfs import REPOSITORY
from vm import die_with_parent

BUILD = pathlib.Path(os.environ.get("CONSORT_BUILD") or REPOSITORY / "build" / "dev")
LIBRARY = BUILD / "lib" / "libcuda.so.1"
PROGRAMS = BUILD / "programs"

# A GPU worker starts CUDA and registers memory; on a busy machine the CPU driver starts its JIT.
READY_SECONDS = 60
STOP_SECONDS = 30
CONTROL_SECONDS = 120
PATIENCE_SECONDS = 60  # for what happens at once on a machine that is not busy


class StackError(Exception):
    """consortd did not do what it must; the text ends with its last log lines."""


def wait_for(look, what, seconds=PATIENCE_SECONDS):
    """What `look` returns first that is true. `what` is for people: a text, or a call that makes it when it is late."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for {what() if callable(what) else what}")
        time.sleep(0.1)


class Daemon:
    """One consortd for a with block. Thread compatible; start it from a thread that stays."""

    def __init__(self, folder, vms=(), device="auto", verbose=1, metrics="off",
                 arguments=(), prefix=(), binary=None):
        """metrics: 127.0.0.1:0 lets the kernel choose a port, see metrics_url(). prefix: a command that runs
        another, such as on another host of network.py. binary: consortd by another path, beside another
        consort-worker."""
        self.folder = pathlib.Path(folder)
        self.socket = self.folder / "consortd.sock"
        self.admin_socket = self.folder / "consortd.admin.sock"
        self._account = self.folder / "account.jsonl"
        self._log = self.folder / "consortd.log"
        self._process = None
        self._command = [*prefix, binary or BUILD / "bin" / "consortd", "--socket", self.socket, "--account",
                         self._account, "--device", device, "--vsock-port", "off",
                         "--verbose", str(verbose), "--metrics", metrics, *arguments,
                         *shlex.split(os.environ.get("CONSORT_TEST_CONSORTD") or "")]
        for name in vms:
            self._command += ["--vm", f"{name}={self.vm_socket(name)}"]

    def __enter__(self):
        said = queue.SimpleQueue()
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                preexec_fn=die_with_parent)

        def read():
            with self._process.stdout as output:
                for line in output:
                    said.put(line.decode(errors="replace").strip())
            said.put(None)

        threading.Thread(target=read, daemon=True).start()
        deadline = time.monotonic() + READY_SECONDS
        line = ""
        while line != "consortd: ready":
            try:
                line = said.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                self._process.kill()
                self._process.wait()
                raise StackError(f"consortd was not ready in {READY_SECONDS} s\n{self.log_tail()}")
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def stop(self):
        """SIGTERM, as a service manager stops it; returns its exit status."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise StackError(f"consortd ignored SIGTERM for {STOP_SECONDS} s\n"
                             f"{self.log_tail()}") from None

    def signal(self, number):
        self._process.send_signal(number)

    def is_running(self):
        return self._process.poll() is None

    @property
    def pid(self):
        return self._process.pid

    def vm_socket(self, name):
        """Where the VM's vhost-user vsock device connects."""
        return self.folder / f"{name}.sock"

    def log(self):
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def log_tail(self, count=25):
        return "\n".join("    consortd | " + line for line in self.log().splitlines()[-count:])

    def metrics_url(self):
        """Where it serves its metrics."""
        return re.search(r"metrics on (http://\S+)", self.log()).group(1)

    def page_url(self):
        """Where its page is."""
        return re.search(r"page on (http://\S+)", self.log()).group(1)

    def account(self):
        """The sessions that have ended, as host/daemon/account.h describes them."""
        if not self._account.exists():
            return []
        # The last line may be half written while consortd runs.
        return [json.loads(line) for line in self._account.read_text("utf-8").splitlines(True)
                if line.endswith("\n")]

    def wait_for_account(self, wanted, timeout_s=20):
        """Waits until wanted(sessions) holds and returns the sessions: a line is written when
        consortd sees the end of a connection, soon after the process has gone."""
        deadline = time.monotonic() + timeout_s
        while not wanted(self.account()):
            if time.monotonic() > deadline:
                raise StackError(f"no such session in the account: {self.account()}\n"
                                 f"{self.log_tail()}")
            time.sleep(0.05)
        return self.account()

    def consortctl(self, *words, **options):
        """The ended consortctl of these words, which asked this consortd; options as of subprocess.run."""
        return subprocess.run([BUILD / "bin" / "consortctl", "--admin-socket", self.admin_socket, *words],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CONTROL_SECONDS, check=False,
                              **options)

    def control(self, *words, status=0, **options):
        """What consortctl of these words says, which ends with `status`."""
        done = self.consortctl(*words, **options)
        if done.returncode != status:
            raise AssertionError(f"consortctl {words} ended with {done.returncode}, not {status}:\n{done.stdout}{done.stderr}"
                                 f"{self.log_tail()}")
        return done.stdout + done.stderr

    def local_environment(self, socket=None):
        """The environment in which a program of this machine uses this consortd; `socket`: a tenant's own."""
        path = os.environ.get("LD_LIBRARY_PATH")
        return dict(os.environ, LD_LIBRARY_PATH=f"{LIBRARY.parent}:{path}" if path else
                    str(LIBRARY.parent), CONSORT_ENDPOINT=f"unix:{socket or self.socket}")


def guest_files(programs):
    """Guest path -> host path of the named programs and of the library, where the loader of any
    program finds it without being told."""
    files = {f"/usr/bin/{name}": PROGRAMS / name for name in programs}
    files["/usr/lib/libcuda.so.1"] = LIBRARY
    return files
