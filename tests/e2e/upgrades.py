# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/upgrades.py: a consortd whose binary a test exchanges, as a package's upgrade does it: another file at the
same path, then `consortctl upgrade`."""

import json
import pathlib
import shutil
import tempfile
import unittest

import stack


class UpgradeCase(unittest.TestCase):
    def start(self, *arguments, **options):
        folder = tempfile.TemporaryDirectory(prefix="upgrade-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # Both programs in a place of their own, where they can be replaced.
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for name in ("consortd", "consort-worker"):
            self.install(name)
        (self.folder / "lib").symlink_to(stack.BUILD / "lib")
        self.daemon = self.enterContext(stack.Daemon(folder.name, device="cpu", binary=self.bin / "consortd",
                                                     arguments=arguments, **options))
        self.pid = self.daemon.pid

    def install(self, name, content=None):
        """As dpkg does: a new file takes the place of the one that runs."""
        new = self.bin / f"{name}.dpkg-new"
        if content is None:
            shutil.copy(stack.BUILD / "bin" / name, new)
        else:
            new.write_text(content, "utf-8")
        new.chmod(0o755)
        new.rename(self.bin / name)

    def upgrade(self):
        self.assertRegex(self.daemon.control("upgrade"), r"^consortd \S+ went on as \S+\n$")
        self.assertTrue(self.daemon.is_running())

    def status(self):
        return json.loads(self.daemon.control("status", "--output", "json"))

    def session_of(self, program):
        found = [session for session in self.status()["sessions"] if session["pid"] == program.pid]
        return found[0] if found else None

    def works_on(self, program, launches):
        """Waits until it has launched more kernels, by the account, and returns its session."""
        def more():
            session = self.session_of(program)
            return session if session and session["kernel_launches"] > launches else None

        return stack.wait_for(more, "a program that computes")

    def children(self):
        return pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text("utf-8").split()

    def stop(self):
        """SIGTERM leaves no process and no file of sockets."""
        workers = self.children()
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log_tail())
        self.assertEqual([pid for pid in workers if pathlib.Path(f"/proc/{pid}").exists()], [])
        self.assertEqual(list(self.folder.glob("**/*.sock")), [])
