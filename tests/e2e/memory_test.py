#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/memory_test.py: unmodified programs on a CPU device whose memory is limited: they wait, swap or are
refused as docs/MEMORY.md says, and what they compute is right. Each program checks its own words."""

import re
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request

import stack

TENANTS = """
[[tenant]]
name = "chain"
socket = "{folder}/chain.sock"
memory_hard = "64MiB"
[[tenant]]
name = "small"
socket = "{folder}/small.sock"
memory_hard = "16MiB"
[[tenant]]
name = "patient"
socket = "{folder}/patient.sock"
memory_wait_seconds = 60
"""


class Memory(unittest.TestCase):
    def start(self, *arguments):
        folder = tempfile.TemporaryDirectory(prefix="memory-")
        self.addCleanup(folder.cleanup)
        tenants = f"{folder.name}/tenants.toml"
        with open(tenants, "w", encoding="utf-8") as file:
            file.write(TENANTS.format(folder=folder.name))
        self.daemon = self.enterContext(stack.Daemon(
            folder.name, device="cpu", metrics="127.0.0.1:0",
            arguments=("--device-memory", "40MiB", "--tenants", tenants, *arguments)))

    def tearDown(self):
        self.assertEqual(self.daemon.stop(), 0, self.daemon.log_tail())

    def program(self, *command, tenant=None):
        socket = None if tenant is None else self.daemon.folder / f"{tenant}.sock"
        return subprocess.Popen([stack.PROGRAMS / command[0], *command[1:]], env=self.daemon.local_environment(socket),
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def ends(self, program, passes=True):
        output, _ = program.communicate(timeout=120)
        self.assertEqual(program.returncode == 0, passes, f"{output}\n{self.daemon.log_tail()}")
        return output

    def metric(self, name, wanted):
        """The metric's value once it is as wanted: workers tell twice a second."""
        deadline = time.monotonic() + 20
        while True:
            with urllib.request.urlopen(self.daemon.metrics_url()) as answer:
                text = answer.read().decode()
            found = [float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M)]
            if found and wanted(sum(found)):
                return sum(found)
            self.assertLess(time.monotonic(), deadline, f"{name}: {found}")
            time.sleep(0.1)

    def test_applications_that_do_not_fit_together_run_together(self):
        self.start("--swap-pinned", "24MiB", "--swap-pageable", "256MiB")
        programs = [self.program("working_set", "17", "2", "2", "50") for _ in range(4)]
        for program in programs:
            self.ends(program)
        self.metric("consort_swap_out_bytes_total", lambda bytes: bytes > 17 << 20)
        self.metric("consort_swap_in_bytes_total", lambda bytes: bytes > 17 << 20)
        # They have gone, and with them all that was theirs.
        for name in ("consort_memory_promised_bytes", "consort_memory_on_device_bytes", "consort_swap_used_bytes"):
            self.metric(name, lambda bytes: bytes == 0)

    def test_one_application_may_be_larger_than_the_device_if_its_quota_is(self):
        self.start("--swap-pageable", "256MiB")
        self.ends(self.program("matrix_chain", "1024", "14", tenant="chain"))
        self.metric("consort_swap_in_bytes_total", lambda bytes: bytes > 16 << 20)
        self.assertIn("OutOfMemory", self.ends(self.program("matrix_chain", "1024", "14"), passes=False)
                      .replace("cudaErrorMemoryAllocation", "OutOfMemory"))

    def test_a_quota_refuses_its_tenant_alone(self):
        self.start()
        self.ends(self.program("working_set", "17", "1", "1", "0", tenant="small"), passes=False)
        # It has gone, and its memory with it.
        self.daemon.wait_for_account(lambda sessions: len(sessions) == 1)
        self.ends(self.program("working_set", "8", "1", "1", "0", tenant="small"))
        self.ends(self.program("working_set", "17", "1", "1", "0"))

    def test_who_may_wait_gets_the_memory_of_one_that_is_killed(self):
        self.start()
        holder = self.program("working_set", "32", "1", "1", "600000")
        self.metric("consort_memory_on_device_bytes", lambda bytes: bytes >= 32 << 20)
        self.ends(self.program("working_set", "17", "1", "1", "0"), passes=False)
        patient = self.program("working_set", "17", "1", "1", "0", tenant="patient")
        self.metric("consort_memory_waiting", lambda count: count == 1)
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
        self.ends(patient)


    def test_a_c_program_reserves_by_the_header(self):
        self.start()
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/reserve.c", "w", encoding="utf-8") as file:
                file.write(RESERVE)
            subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", f"-I{stack.REPOSITORY}", "-o", f"{folder}/reserve",
                            f"{folder}/reserve.c", "-ldl"], check=True)
            done = subprocess.run([f"{folder}/reserve"], env=self.daemon.local_environment(), capture_output=True,
                                  text=True, timeout=60, check=False)
        # Before CUDA is used; the whole; more than there is; the hint; an unknown hint; the end.
        self.assertEqual(done.stdout.split(), ["801", "0", "2", "0", "1", "0"], done.stderr)


RESERVE = r"""
#include "guest/consort.h"
#include <stdio.h>

int main(void) {
  int (*init)(unsigned), (*retain)(void**, int), (*set)(void*);
  void* library;
  void* context = NULL;
  printf("%d\n", consort_reserve(1 << 20, 0));
  library = dlopen("libcuda.so.1", RTLD_NOW);
  *(void**)&init = dlsym(library, "cuInit");
  *(void**)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
  *(void**)&set = dlsym(library, "cuCtxSetCurrent");
  if (init(0) != 0 || retain(&context, 0) != 0 || set(context) != 0) return 1;
  printf("%d\n", consort_reserve(40 << 20, 0));
  printf("%d\n", consort_reserve(48 << 20, 10));
  printf("%d\n", consort_hint(CONSORT_HINT_CPU_PHASE));
  printf("%d\n", consort_hint(99));
  printf("%d\n", consort_release());
  return 0;
}
"""


if __name__ == "__main__":
    unittest.main(verbosity=2)
