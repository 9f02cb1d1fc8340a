#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/package_test.py: the Debian packages of the build under test: judged by lintian and
systemd, installed with apt, run as installed, purged.

They are installed into this machine's own file system, seen through an overlay in a mount
namespace: nothing of it stays.
"""

import gzip
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import stack
from initramfs import REPOSITORY

UNITS = "lib/systemd/system"

# Runs in the overlay, as root. $1: folder of the packages. $2: folder of the programs. $3: a
# library to stand where NVIDIA's packages put theirs: only its place counts.
SCRIPT = r"""
set -eu
say() { printf '\n=== %s\n' "$*"; }
apt_get() { DEBIAN_FRONTEND=noninteractive apt-get -y -q "$@"; }
loader_takes() { ldconfig -p | sed -n 's|^\s*libcuda\.so\.1 (.*x86-64.*) => ||p' | head -n 1; }
ours=/usr/lib/x86_64-linux-gnu/consort/libcuda.so.1

say install
apt_get install --no-install-recommends "$1"/consort-*.deb >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }
getent passwd consort
[ "$(loader_takes)" = $ours ] || { ldconfig -p | grep libcuda; exit 1; }

say 'start as the unit does'
# What RuntimeDirectory= and LogsDirectory= make.
install -d -o consort -g consort /run/consort /var/log/consort
command=$(sed -n 's/^ExecStart=//p' /lib/systemd/system/consortd.service)
. /etc/default/consortd
eval "exec setpriv --reuid=consort --regid=consort --init-groups --no-new-privs --bounding-set=-all --reset-env \
  $command --metrics 127.0.0.1:0 --vsock-port off $CONSORTD_OPTIONS" >/tmp/out 2>/tmp/log &
daemon=$!
trap 'kill $daemon 2>/dev/null || true; wait' EXIT
for _ in $(seq 600); do
  grep -q 'consortd: ready' /tmp/out && break
  kill -0 $daemon || { cat /tmp/log; exit 1; }
  sleep 0.1
done
consortctl status
# Completion as bash loads it by itself.
bash --norc -c '
  . /usr/share/bash-completion/completions/consortctl
  COMP_WORDS=(consortctl vm att) COMP_CWORD=2; _consortctl; echo "completes ${COMPREPLY[*]}"'
curl -sf http://127.0.0.1:"$(sed -n 's|.*page on http://127.0.0.1:\([0-9]*\)/.*|\1|p' /tmp/log)"/ | grep -q '<!doctype html>'
stat -c '%n %a %U:%G' /run/consort/consortd.sock /run/consort/consortd.admin.sock

say 'a program computes'
# As a user without rights, with no word about where the library or the daemon is.
env -u LD_LIBRARY_PATH setpriv --reuid=nobody --regid=nogroup --clear-groups "$2/vector_add"

say 'a machine has a socket for group kvm'
printf 'tenant = "research"\n' >/etc/consort/vms.d/web-1.toml
kill -HUP $daemon
for _ in $(seq 100); do [ -S /run/consort/vms/web-1.sock ] && break; sleep 0.1; done
stat -c '%n %a %U:%G' /run/consort/vms/web-1.sock
kill $daemon
wait $daemon
grep -q vector_add /var/log/consort/account.jsonl
consortctl report --by application --period all | grep -q vector_add
# As logrotate does it.
mv /var/log/consort/account.jsonl /var/log/consort/account.jsonl.1
consortctl report --by application --period all | grep -q vector_add

say 'a real driver wins, and the package says so'
cp "$3" /usr/lib/x86_64-linux-gnu/libcuda.so.1
ldconfig
[ "$(loader_takes)" = /usr/lib/x86_64-linux-gnu/libcuda.so.1 ] || [ "$(loader_takes)" = /lib/x86_64-linux-gnu/libcuda.so.1 ]
apt_get install --reinstall "$1"/consort-guest_*.deb 2>&1 | grep 'programs go on using it'
rm /usr/lib/x86_64-linux-gnu/libcuda.so.1

say purge
rm -rf /run/consort
apt_get purge consort-host consort-guest consort-cpu >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }
! grep -qw consort-host /var/lib/dpkg/status
left=$(find /etc /usr /lib /var/lib /var/log /run -xdev -name '*consort*' -not -path '/var/lib/systemd/*')
[ -z "$left" ] || { echo "left behind: $left"; exit 1; }
! ldconfig -p | grep consort
say done
"""

# Makes the overlay over / and runs the script in it. $1: a folder of a tmpfs for what is written.
ENTER = r"""
set -eu
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
for folder in /proc /sys /dev; do mount --rbind "$folder" "$1/root$folder"; done
mount -t tmpfs tmpfs "$1/root/run"
mount -t tmpfs -o mode=1777 tmpfs "$1/root/tmp"
mkdir "$1/root/tmp/packages" "$1/root/tmp/programs"
cp "$2"/*.deb "$1/root/tmp/packages"
cp "$3/vector_add" "$1/root/tmp/programs"
cp "$4" "$1/root/tmp/libcuda"
cp "$5" "$1/root/tmp/script"
exec chroot "$1/root" bash /tmp/script /tmp/packages /tmp/programs /tmp/libcuda
"""


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for program in ("dpkg-buildpackage", "dh", "help2man"):
            if not shutil.which(program):
                raise unittest.SkipTest(f"no {program} on this machine")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.packages = cls.folder / "packages"
        done = subprocess.run([REPOSITORY / "packaging" / "build_packages", stack.BUILD,
                               cls.packages], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        cls.unpacked = cls.folder / "unpacked"
        for package in cls.packages.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, cls.unpacked], check=True, timeout=60)

    def test_lintian_finds_nothing(self):
        if not shutil.which("lintian"):
            self.skipTest("no lintian on this machine")
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning",
                               *self.packages.glob("*.deb")], capture_output=True, text=True,
                              timeout=300)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_systemd_takes_the_unit_and_finds_it_confined(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze on this machine")
        for name, program, built in (("consortd.service", "/usr/sbin/consortd", "consortd"),
                                     ("consort-libvirt.service", "/usr/bin/consortctl", "consortctl")):
            with self.subTest(name):
                unit = self.folder / name
                text = (self.unpacked / UNITS / name).read_text("utf-8")
                # The program is not installed where the unit says.
                self.assertIn(program, text)
                unit.write_text(text.replace(program, str(stack.BUILD / "bin" / built)), "utf-8")
                done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit],
                                      capture_output=True, text=True, timeout=60)
                said = [line for line in done.stderr.splitlines() if name in line]
                self.assertEqual((done.returncode, said), (0, []), done.stderr)
                # In tenths. A unit with nothing set scores 96.
                done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager",
                                       "--threshold=30", unit], capture_output=True, text=True,
                                      timeout=60)
                self.assertEqual(done.returncode, 0, done.stdout[-600:] + done.stderr)

    def test_the_manuals_know_the_options(self):
        for manual, option in (("man8/consortd.8", "--vm-files"), ("man1/consortctl.1", "--vgpus"),
                               ("man1/consortctl.1", "status"), ("man1/consortctl.1", "EXIT STATUS")):
            text = gzip.decompress((self.unpacked / f"usr/share/man/{manual}.gz").read_bytes())
            self.assertIn(option, text.decode().replace("\\-", "-"))

    def test_they_install_run_and_leave_nothing(self):
        if os.geteuid() != 0:
            self.skipTest("installing needs root")
        script = self.folder / "script"
        script.write_text(SCRIPT, "utf-8")
        root = self.folder / "overlay"
        root.mkdir()
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", ENTER, "enter",
             root, self.packages, stack.PROGRAMS, stack.LIBRARY, script],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("\nPASS\n", done.stdout)
        self.assertIn("completes attach\n", done.stdout)
        self.assertIn("/run/consort/consortd.sock 666 consort:consort\n", done.stdout)
        self.assertIn("/run/consort/consortd.admin.sock 660 consort:consort\n", done.stdout)
        self.assertIn("/run/consort/vms/web-1.sock 660 consort:kvm\n", done.stdout)
        self.assertTrue(done.stdout.endswith("=== done\n"), repr(done.stdout[-300:]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
