#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/docs_test.py: every command in README.md and docs/howto is run: here, or by the test that HOW names, or HOW
says why by none. A command that no row knows fails, and so does a row that no page needs.
"""

import dataclasses
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

import stack
from initramfs import REPOSITORY

SECONDS = 120
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs" / "howto").glob("*.md"))]

# A block whose first word is one of these, or sets a variable, has commands; others have data.
PROGRAMS = re.compile(r"(?:[A-Z_]+=\S+ )*(?:consortctl|consortd|qemu-system-x86_64|apt|python3|virsh|cmake|ctest|g\+\+|podman|docker|"
                      r"curl|promtool|systemctl|ssh|\./dev|build/|packaging/|\./)")


@dataclasses.dataclass
class How:
    pattern: str  # of the command
    here: bool = False  # run by test_commands_that_need_no_machine
    test: str = ""  # the file that runs it
    proof: str = ""  # a regular expression that occurs in that file
    why_not: str = ""


HOW = (
    How(r"consortctl (report|status|gpus|trace show|place|apps|vms|tenants|events|completion|manual)\b", here=True),
    How(r"build/dev/bin/consortd .*&$|sleep 2|CONSORT_ENDPOINT=\S+ LD_LIBRARY_PATH=\S+ build/dev/programs/vector_add", test="tests/e2e/docs_test.py",
        proof=r"def test_the_walk_without_a_machine"),
    How(r"consortd --checkpoint-after ", test="tests/e2e/redo_test.py", proof=r"\"--checkpoint-after\", \"1\", \"--checkpoint-folder\""),
    How(r"consortctl checkpoint train ", test="tests/e2e/checkpoint_test.py", proof=r'control\("checkpoint", f"pid:'),
    How(r"consortctl checkpoint --show ", test="tests/e2e/checkpoint_test.py", proof=r'control\("checkpoint", "--show"'),
    How(r"consortctl restore ", test="tests/e2e/checkpoint_test.py", proof=r'control\("restore", f"pid:'),
    How(r"consortctl upgrade", test="tests/e2e/upgrade_test.py", proof=r'control\("upgrade"'),
    How(r"consortctl vm attach", test="tests/e2e/libvirt_test.py", proof=r'vm_ctl\("attach"'),
    How(r"consortctl vm check", test="tests/e2e/libvirt_test.py", proof=r'vm_ctl\("check"'),
    How(r"consortctl vm list", test="tests/e2e/libvirt_test.py", proof=r'vm_ctl\("list"'),
    How(r"consortctl vm detach", test="tests/e2e/libvirt_test.py", proof=r'vm_ctl\("detach"'),
    How(r"consortctl vm save ", test="tests/e2e/vm_transfer_test.py", proof=r'control\("vm", "save"'),
    How(r"consortctl vm restore ", test="tests/e2e/vm_transfer_test.py", proof=r'control\("vm", "restore"'),
    How(r"consortctl vm migrate ", test="tests/e2e/vm_transfer_test.py", proof=r'control\("vm", "migrate"'),
    How(r"virsh start", test="tests/e2e/libvirt_test.py", proof=r'virsh\("start"'),
    How(r"consortd --vm ", test="tests/e2e/stack.py", proof=r'"--vm", f"\{name\}=\{self\.vm_socket\(name\)\}"'),
    How(r"qemu-system-x86_64 ", test="tests/e2e/vm.py", proof=r"vhost-user-vsock-pci,chardev="),
    How(r"LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/consort", test="tests/e2e/install_test.py",
        proof=r'"LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/consort"'),
    How(r"apt install ", test="tests/e2e/install_test.py", proof=r'self\.apt\("install"'),
    How(r"packaging/guest-image/install_into_image debian-12.qcow2", why_not="needs an image and virt-customize; tried by hand as the page says"),
    How(r"packaging/guest-image/install_into_image /srv", test="tests/e2e/install_test.py", proof=r'"guest-image" / "install_into_image"'),
    How(r"podman run --device", test="tests/e2e/install_test.py", proof=r'podman, "--device", "consort\.dev/gpu=all"'),
    How(r"python3 -m http.server", why_not="a web server for a guest that is installed by cloud-init; tried by hand as the page says"),
    How(r"\./dev (test|check|demo|sanitize|gen)\b", test=".ci/run", proof=r"step \./dev (test|check)"),
    How(r"cmake |build/dev/bin/(channel_test|api_test)|ctest |CONSORT_\S+ .*api_test|kill %1",
        why_not="for developers, with a change of theirs; what they run is run by ./dev test"),
    How(r"consortctl pool operator alice", test="tests/e2e/pool_test.py", proof=r'"operator", "alice", "--role", "admin"'),
    How(r"consortctl --connect \S+ --cert \S+ status", test="tests/e2e/pool_test.py", proof=r'ask\("alice", "status"'),
    How(r"consortctl --connect \S+ --cert \S+ tenant set", test="tests/e2e/pool_test.py", proof=r'ask\("alice", "tenant", "set"'),
    How(r"consortd --pool \.\.\. --pool-policy ", test="tests/e2e/pool_test.py", proof=r"best_fit_policy\.so"),
    How(r"g\+\+ .*-shared", test="tests/e2e/install_test.py", proof=r'"g\+\+", "-std=c\+\+20", "-shared"'),
)


def commands():
    """(page, command) of every block of commands; lines that end in a backslash are one."""
    for page in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            if not PROGRAMS.match(block):
                continue
            for line in re.sub(r"\\\n\s*", "", block).splitlines():
                command = re.sub(r"\s+#.*| {4,}.*", "", line).strip()
                if command:
                    yield page.name, command


class Docs(unittest.TestCase):
    def test_every_command_is_run_by_a_test_or_says_why_not(self):
        found = list(commands())
        self.assertGreater(len(found), 15)
        for page, command in found:
            self.assertTrue(any(re.match(how.pattern, command) for how in HOW), f"{page}: {command}: no row of HOW knows it")
        for how in HOW:
            self.assertTrue(any(re.match(how.pattern, command) for _, command in found), f"{how.pattern}: no page has it")
            self.assertEqual([how.here, bool(how.test), bool(how.why_not)].count(True), 1, how)
            if how.test:
                self.assertRegex((REPOSITORY / how.test).read_text("utf-8"), how.proof)

    def test_commands_that_need_no_machine(self):
        with tempfile.TemporaryDirectory(prefix="docs-") as folder, stack.Daemon(folder, device="cpu") as daemon:
            done = subprocess.run([stack.PROGRAMS / "vector_add"], env=daemon.local_environment(), stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=SECONDS)
            self.assertEqual(done.returncode, 0, daemon.log_tail())
            daemon.wait_for_account(lambda sessions: sessions)
            inline = {command for page in PAGES for command in re.findall(r"`(consortctl [^`]+)`", page.read_text("utf-8"))}
            told = [command for _, command in commands()] + sorted(inline)
            ran = 0
            for command in told:
                if not any(how.here and re.match(how.pattern, command) for how in HOW):
                    continue
                words = shlex.split(command)[1:]
                if words[0] == "report":
                    words += ["--account", str(daemon.folder / "account.jsonl")]
                done = daemon.consortctl(*words)
                self.assertEqual((done.returncode, done.stderr), (0, ""), command)
                self.assertTrue(done.stdout, command)
                ran += 1
            self.assertGreater(ran, 5)

    def test_the_walk_without_a_machine(self):
        """README's block for the build tree, as it stands, but for the build's folder."""
        block, = [block for block in re.findall(r"^```\n(.*?)^```", PAGES[0].read_text("utf-8"), re.MULTILINE | re.DOTALL)
                  if "build/dev/programs/vector_add" in block]
        with tempfile.TemporaryDirectory(prefix="docs-") as folder:
            script = block.replace("$PWD/build", folder).replace("build/dev", str(stack.BUILD))
            # It is ready when it is, not after so many seconds.
            script = re.sub(r"sleep 2.*", f"until [ -S {folder}/c.sock ]; do kill -0 $! || exit 1; sleep 0.1; done", script)
            script = script.replace("--vsock-port off &", f"--vsock-port off --metrics off >{folder}/log 2>&1 &")
            done = subprocess.run(["bash", "-c", f"set -e\ntrap 'kill $! || cat {folder}/log; wait || true' EXIT\n{script}"], cwd=REPOSITORY,
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("PASS", done.stdout)

    def test_the_readme_names_every_option_of_consortd(self):
        """Each option of --help is in README.md or docs; and each that README's table names exists."""
        helped = subprocess.run([stack.BUILD / "bin" / "consortd", "--help"], capture_output=True, text=True, timeout=SECONDS).stdout
        options = set(re.findall(r"^  (--[a-z-]+)", helped, re.MULTILINE)) - {"--help", "--version"}
        readme = pathlib.Path(PAGES[0]).read_text("utf-8")
        for option in re.findall(r"^\| `(--[a-z-]+)", readme, re.MULTILINE):
            self.assertIn(option, options)
        pages = "".join(page.read_text("utf-8") for page in [PAGES[0], *(REPOSITORY / "docs").rglob("*.md")])
        for option in sorted(options):
            self.assertTrue(option in pages, f"no page tells of {option}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
