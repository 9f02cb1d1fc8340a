#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/integration/api_vm_cpu.py [gtest options]: the driver API suite (tests/api) inside a virtual machine,
over virtio-vsock, a consortd of its own and the CPU device.

One machine runs the whole suite, every case in a process of its own: one that faults breaks the device for all
sessions of its worker. api_suite.py says which failures are known. Skipped, with the reason, where QEMU or a
kernel cannot be had.

Environment: CONSORT_BUILD, the build folder (default build/dev). Options go to api_test.
"""

import json
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "e2e")]

import api_suite  # noqa: E402  found by the line above
import stack  # noqa: E402
import vm  # noqa: E402

# Emulated and with another test beside it; ctest's own limit is longer, so that this one reports.
SUITE_SECONDS = 1500
REPORT = "/tmp/report.json"
BEGIN, END = "API REPORT BEGIN", "API REPORT END"
# ctest's SKIP_RETURN_CODE for this test.
SKIPPED = 77


def report_of(lines):
    """gtest's report out of what the guest has printed; None if it never came to that."""
    if BEGIN not in lines or END not in lines:
        return None
    return json.loads("\n".join(lines[lines.index(BEGIN) + 1:lines.index(END)]))


def run(kernel, arguments):
    """Runs the suite in one guest. Returns ({case: its entry in gtest's report}, trouble as text or "")."""
    with tempfile.TemporaryDirectory(prefix="api-") as name:
        folder = pathlib.Path(name)
        files = stack.guest_files(()) | {"/usr/bin/api_test": stack.BUILD / "bin" / "api_test"}
        suite = vm.Command(
            "api_test", ("/usr/bin/api_test", "--gtest_color=no", f"--gtest_output=json:{REPORT}", *arguments),
            {"CONSORT_TEST_LIBCUDA": "/usr/lib/libcuda.so.1", "CONSORT_TEST_ISOLATE": "1"},
            timeout_s=SUITE_SECONDS)
        shown = vm.Command("report", ("sh", "-c", f"echo; echo {BEGIN}; cat {REPORT}; echo; echo {END}"))
        vm.build_initramfs(kernel, files, vm.guest_script([suite, shown]), folder / "initramfs")
        with stack.Daemon(folder, ["guest"], device="cpu", verbose=0) as daemon:
            with vm.Vm(kernel, folder / "initramfs", daemon.vm_socket("guest"), memory_mib=1024,
                       timeout_s=SUITE_SECONDS + 60) as guest:
                guest.wait()
                report = report_of(guest.output())
                if report is None:
                    return {}, f"the guest gave no report\n{guest.tail(60)}\n{daemon.log_tail()}"
            cases = api_suite.cases_of(report)
            if not daemon.is_running():
                return cases, f"consortd has ended\n{daemon.log_tail()}"
            used = {session["channel"].split("+")[0] for session in daemon.account()}
            if used != {"vhost-user"}:
                return cases, f"sessions over {sorted(used)}, not vhost-user"
            status = daemon.stop()
            if status != 0:
                return cases, f"consortd stopped with status {status}\n{daemon.log_tail()}"
    return cases, ""


def main():
    arguments = sys.argv[1:]
    try:
        vm.qemu()
        kernel = vm.fetch_kernel("6.12")
    except vm.Unavailable as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    return api_suite.report([run(kernel, arguments)], "vm", complete=not arguments)


if __name__ == "__main__":
    sys.exit(main())
