# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/machine.py: a Debian machine to install packages on, that leaves this one untouched.

It is this machine's file system seen through an overlay, whose upper layer is in memory, in namespaces of its own (mounts,
processes, network, IPC, host name, cgroups), with Debian's own systemd as its first process: what a package's scripts
start is started as on any host, and what is left of it is what lies in the upper layer. Chosen over an image from a mirror,
which would need a network and minutes, and over a virtual machine, in which the one under test would be emulated twice.

    with Machine(folder) as machine:
        machine.run("apt-get", "install", "-y", machine.folder + "/x.deb")

Needs root and a kernel with these namespaces: Unavailable says what is missing.
"""

import hashlib
import os
import pathlib
import stat
import subprocess
import tempfile
import time

from initramfs import Unavailable
from vm import die_with_parent

START_SECONDS = 180
SYSTEMD = "/lib/systemd/systemd"

# The programs that this machine needs to be the one under test's file system.
NEEDED = (SYSTEMD, "/usr/bin/unshare", "/usr/bin/nsenter", "/usr/bin/dpkg", "/usr/bin/apt-get")

# In new namespaces, before the first process: $1 is a folder for the upper layer, $2 a folder of the
# machine's /run, in which $1 shows up too.
ENTER = r"""
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
root=$1/root
mount -t proc proc "$root/proc"
# The kernel's settings are this machine's too.
for settings in sys sysrq-trigger irq bus; do
  [ -e "$root/proc/$settings" ] || continue
  mount --bind "$root/proc/$settings" "$root/proc/$settings"
  mount -o remount,bind,ro "$root/proc/$settings"
done
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom tty; do
  touch "$root/dev/$node"
  mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
for link in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do
  ln -s "/proc/self/${link#*:}" "$root/dev/${link%:*}"
done
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mkdir -p "$root$2/upper"
mount --bind "$1/upper" "$root$2/upper"
# An image for containers may forbid packages to start services; a host does not.
rm -f "$root/usr/sbin/policy-rc.d"
# This machine's own services stay off: what is wanted is started by name.
mkdir -p "$root/run/systemd/system"
printf '[Unit]\nRequires=sysinit.target\nWants=dbus.socket\nAfter=sysinit.target\n' >"$root/run/systemd/system/installed-on.target"
exec env -i container=consort-test PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" SYSTEMD --unit=installed-on.target
""".replace("SYSTEMD", SYSTEMD)


class MachineError(Exception):
    """The machine did not start."""


class Machine:
    """One machine for a with block. Start it from a thread that stays."""

    # A folder of the machine's /run for the test's own files.
    folder = "/run/test"

    def __init__(self, folder):
        """folder: an empty one of this machine, for mounts that only the machine sees."""
        self._folder = folder
        self._process = None
        self._first = None
        self._said = tempfile.TemporaryFile()

    def __enter__(self):
        if os.geteuid() != 0:
            raise Unavailable("a machine of its own needs root")
        for program in NEEDED:
            if not os.path.exists(program):
                raise Unavailable(f"there is no {program} on this machine")
        self._cgroup = self._make_cgroup()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make_cgroup(self):
        """A group of the machine's own: systemd takes the whole of what it sees."""
        # cgroups(7): hierarchy 0 is the unified one, wherever it is mounted.
        mounts = [line.split() for line in pathlib.Path("/proc/mounts").read_text("ascii").splitlines()]
        where = [fields[1] for fields in mounts if fields[2] == "cgroup2"]
        if not where:
            raise Unavailable("this machine has no unified hierarchy of control groups")
        own, = [line[3:] for line in pathlib.Path("/proc/self/cgroup").read_text("ascii").splitlines() if line.startswith("0::")]
        group = pathlib.Path(where[0] + own) / f"consort-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            raise Unavailable(f"no control group can be made: {error}") from error
        return group

    def _start(self):
        def in_group():
            die_with_parent()
            (self._cgroup / "cgroup.procs").write_text("0", "ascii")

        self._process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--fork", "--kill-child", "bash", "-c", ENTER,
             "enter", self._folder, self.folder], stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said, preexec_fn=in_group)
        deadline = time.monotonic() + START_SECONDS
        # "running", or "degraded": units of this machine that do not suit a container.
        said = ""
        while said not in ("running", "degraded"):
            if self._process.poll() is not None:
                self._said.seek(0)
                raise Unavailable(f"no systemd in namespaces here: {self._said.read().decode(errors='replace')}")
            if time.monotonic() > deadline:
                raise MachineError(f"systemd is {said or 'not there'} after {START_SECONDS} s")
            time.sleep(0.1)
            if not self._first:
                self._first = self._find_first()
            if self._first:
                said = self.run("systemctl", "is-system-running", status=None).stdout.strip()

    def _find_first(self):
        """The process id, as this machine sees it, of the machine's systemd; None before it runs."""
        done = subprocess.run(["ps", "--ppid", str(self._process.pid), "-o", "pid=,comm="], capture_output=True, text=True, check=False)
        found = done.stdout.split()
        return int(found[0]) if len(found) == 2 and found[1] == "systemd" else None

    def __exit__(self, *_):
        if self._process:
            self._process.kill()
            self._process.wait()
        self._said.close()
        deadline = time.monotonic() + START_SECONDS
        # Processes of a namespace whose first one was killed take a moment to go.
        while (self._cgroup / "cgroup.events").exists() and "populated 1" in (self._cgroup / "cgroup.events").read_text("ascii"):
            if time.monotonic() > deadline:
                raise MachineError(f"processes are left in {self._cgroup}")
            time.sleep(0.05)
        for path, _, _ in os.walk(self._cgroup, topdown=False):
            os.rmdir(path)

    def _entering(self, command):
        return ["nsenter", "--target", str(self._first), "--all", "--root", "env", "-C", "/", "-i",
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8",
                "DEBIAN_FRONTEND=noninteractive", *map(str, command)]

    def start(self, *command):
        """Starts a command in the machine, as root, with pipes for its input and its two outputs as one."""
        return subprocess.Popen(self._entering(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                preexec_fn=die_with_parent)

    def run(self, *command, status=0, timeout_s=300, text=None):
        """Runs a command in the machine, as root; its two outputs come as one. status: what it must exit with, None: anything."""
        done = subprocess.run(self._entering(command), input=text, stdin=None if text is not None else subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False)
        if status is not None and done.returncode != status:
            raise AssertionError(f"{' '.join(map(str, command))}: exited {done.returncode}\n{done.stdout}\n{self.journal()}")
        return done

    def journal(self):
        """The last lines of the machine's journal, for a failure's message."""
        return self.run("journalctl", "--no-pager", "-n", "60", "-o", "cat", status=None).stdout

    def path(self, path):
        """Where this machine sees a file of the machine."""
        return pathlib.Path(f"/proc/{self._first}/root{path}")

    def written(self):
        """Path -> what lies there, of all that was written since the machine's start. Equal values: nothing was changed."""
        upper = self.path(self.folder) / "upper"
        found = {}
        for folder, folders, files in os.walk(upper):
            for name in folders + files:
                path = pathlib.Path(folder) / name
                found["/" + str(path.relative_to(upper))] = describe(path)
        return found


def describe(path):
    """What lies at a path, with its owner and mode; None: nothing, or the mark of what was removed."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    # overlayfs: a whiteout is a character device 0/0.
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        return None
    content = None
    if stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)
    elif stat.S_ISREG(status.st_mode):
        content = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    return status.st_mode, status.st_uid, status.st_gid, content
