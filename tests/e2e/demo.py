#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/demo.py: what `./dev demo` shows after the build.

Starts consortd, boots one virtual machine that has no GPU, runs five unmodified CUDA programs in
it, stops everything and prints what each program used. consortd takes the machine's NVIDIA GPU if
there is one, else Consort's own CPU device. Where no virtual machine can be booted, the programs
run on this machine through consortd's UNIX socket, and the demo says so. Exit status 0: all passed.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

import stack
import vm

PROGRAMS = (
    vm.Command("vector_add", ("/usr/bin/vector_add",)),
    vm.Command("matrix_multiply", ("/usr/bin/matrix_multiply",)),
    vm.Command("black_scholes", ("/usr/bin/black_scholes",)),
    vm.Command("streams", ("/usr/bin/streams",)),
    vm.Command("big_copy", ("/usr/bin/big_copy", "32")),
)
GUEST = "demo-vm"
KERNEL = "6.12"

started = time.monotonic()


def say(text):
    print(f"[{time.monotonic() - started:5.1f} s] {text}", flush=True)


def run_in_guest(daemon, folder):
    """The names of the programs that failed. vm.Unavailable: no guest can be had here."""
    kernel = vm.fetch_kernel(KERNEL)
    accelerator = vm.accelerator(kernel)
    initramfs = folder / "initramfs"
    names = [command.name for command in PROGRAMS]
    vm.build_initramfs(kernel, stack.guest_files(names), vm.guest_script(PROGRAMS), initramfs)
    say(f"booting {GUEST}: Linux {kernel.release} under QEMU with {accelerator.upper()}, "
        "no GPU, only a virtio socket")

    def show(_, line):
        if line and not line.startswith("RESULT"):
            say(f"  {GUEST} | {line}")

    with vm.Vm(kernel, initramfs, daemon.vm_socket(GUEST), memory_mib=768, timeout_s=240,
               accelerator_name=accelerator, on_line=show) as guest:
        guest.wait()
        results = guest.results()
    return [name for name in names if name not in results or results[name].status != 0]


def run_here(daemon):
    """The same programs on this machine, over the UNIX channel."""
    failed = []
    for command in PROGRAMS:
        process = subprocess.run(
            [stack.PROGRAMS / command.name, *command.argv[1:]], env=daemon.local_environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=command.timeout_s, check=False)
        for line in process.stdout.splitlines():
            say(f"  here | {line}")
        if process.returncode != 0:
            failed.append(command.name)
    return failed


def amount(count):
    """Bytes for people: three digits and a unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1000:
            break
        count /= 1024
    else:
        unit = "GiB"
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"


def print_account(sessions):
    """One line a session, columns as wide as they must be."""
    rows = [("guest", "channel", "application", "device", "calls", "round trips", "to device",
             "to host", "launches", "kernel ms")]
    for session in sessions:
        rows.append((session["vm"], session["channel"], session["application"], session["device"],
                     str(session["calls"]), str(session["round_trips"]),
                     amount(session["bytes_to_device"]), amount(session["bytes_to_host"]),
                     str(session["kernel_launches"]), f"{session['kernel_seconds'] * 1e3:.2f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) if column < 4 else cell.rjust(width)
                 for column, (cell, width) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())


def main():
    with tempfile.TemporaryDirectory(prefix="consort-") as name:
        folder = pathlib.Path(name)
        with stack.Daemon(folder, [GUEST]) as daemon:
            say("consortd is ready")
            try:
                failed = run_in_guest(daemon, folder)
            except vm.Unavailable as reason:
                say(f"no virtual machine can be booted here ({reason});")
                say("the programs run on this machine, over consortd's UNIX socket")
                failed = run_here(daemon)
            sessions = daemon.wait_for_account(
                lambda all: len(all) >= len(PROGRAMS) - len(failed))
            status = daemon.stop()
        if failed or status != 0:
            print(daemon.log_tail(), file=sys.stderr)
        if status != 0:
            say(f"consortd exited with {status}")
        print()
        print_account(sessions)
        print()
        passed = len(PROGRAMS) - len(failed)
        seconds = time.monotonic() - started
        print(f"{passed} of {len(PROGRAMS)} programs passed, {seconds:.1f} s in all"
              + (f"; failed: {', '.join(failed)}" if failed else ""))
        return 1 if failed or status != 0 else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (stack.StackError, vm.VmError) as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        os._exit(130)  # QEMU and consortd die with this process
