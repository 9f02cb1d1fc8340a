# SPDX-License-Identifier: Apache-2.0
"""The runner of other people's programs in a virtual machine that sees this one's files; the CPU device. Boots one."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import compat  # noqa: E402
import vm_guest  # noqa: E402

import stack  # noqa: E402  from tests/e2e, which vm_guest has put on the path
import vm  # noqa: E402


class VmGuestTest(unittest.TestCase):
    def test_programs_run_there_and_what_they_say_comes_back(self):
        try:
            vm.qemu()
            vm.fetch_kernel(vm_guest.KERNEL)
        except vm.Unavailable as why:
            self.skipTest(str(why))
        with tempfile.TemporaryDirectory(prefix="compat-") as name:
            folder = pathlib.Path(name)
            programs = folder / "programs"
            programs.write_text(f"""vector_add: {stack.PROGRAMS.resolve()}/vector_add
release: /bin/uname -r
fails: /bin/sh -c 'echo to stderr >&2; exit 7'
reads_only: /usr/bin/touch {folder}/written
""")
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                status = compat.main(["commands", str(programs), "--vm", "--build", str(stack.BUILD), "--device", "cpu", "--native",
                                      "no", "--jobs", "4", "--seconds", "100", "--json", str(folder / "json"), "--logs",
                                      str(folder / "logs")])
            rows = {row["name"]: row["verdict"]["reason"] for row in json.loads((folder / "json").read_text())}
            log = {path.name: path.read_text() for path in (folder / "logs").iterdir()}
            self.assertEqual(rows, {"vector_add": "", "release": "", "fails": "failed", "reads_only": "failed"}, log)
            self.assertEqual(status, 1)
            self.assertIn("PASS", log["vector_add.consort"])
            self.assertIn(vm.fetch_kernel(vm_guest.KERNEL).release, log["release.consort"])
            self.assertIn("to stderr", log["fails.consort"])
            self.assertIn("status 7", log["fails.consort"])


if __name__ == "__main__":
    unittest.main()
