#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/package_test.py: the Debian packages of the build under test: judged by lintian and
systemd. install_test.py installs them.
"""

import gzip
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import debian
import stack
from initramfs import Unavailable

UNITS = "lib/systemd/system"


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        try:
            cls.packages = debian.build_packages(cls.folder / "packages")
        except Unavailable as reason:
            raise unittest.SkipTest(str(reason)) from reason
        cls.unpacked = cls.folder / "unpacked"
        for package in cls.packages.values():
            subprocess.run(["dpkg-deb", "-x", package, cls.unpacked], check=True, timeout=60)

    def test_lintian_finds_nothing(self):
        if not shutil.which("lintian"):
            self.skipTest("no lintian on this machine")
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning",
                               *self.packages.values()], capture_output=True, text=True,
                              timeout=300)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_systemd_takes_the_unit_and_finds_it_confined(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze on this machine")
        # Where the service that belongs to it is looked at: it must be found.
        shutil.copy(self.unpacked / UNITS / "consort-guest-proxy.socket", self.folder)
        for name, program, built in (
                ("consortd.service", "/usr/sbin/consortd", "consortd"),
                ("consort-libvirt.service", "/usr/bin/consortctl", "consortctl"),
                ("consort-guest-proxy.service", "/usr/lib/consort/bin/consort-guest-proxy", "consort-guest-proxy")):
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

    def test_the_guests_package_needs_libc_alone(self):
        """It is put into images without a network, and into guests with older libraries than this machine's."""
        done = subprocess.run(["dpkg-deb", "-f", self.packages["consort-guest"], "Depends"], capture_output=True, text=True,
                              check=True, timeout=60)
        version, = re.fullmatch(r"libc6 \(>= 2\.(\d+)\)", done.stdout.strip()).groups()
        self.assertLessEqual(int(version), 28)

    def test_the_manuals_know_the_options(self):
        for manual, option in (("man8/consortd.8", "--vm-files"), ("man1/consortctl.1", "--vgpus"),
                               ("man1/consortctl.1", "status"), ("man1/consortctl.1", "EXIT STATUS")):
            text = gzip.decompress((self.unpacked / f"usr/share/man/{manual}.gz").read_bytes())
            self.assertIn(option, text.decode().replace("\\-", "-"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
