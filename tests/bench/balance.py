# SPDX-License-Identifier: Apache-2.0
"""Shapes of sharing_bench that have the balance of the experiments' programs on the GPU at hand.

A program of tests/experiments/workloads.py says how much of a cycle it copies, computes on the GPU and on the CPU. Here kernels and copies
get the lengths that this machine's GPU was measured to need for that.
"""

import pathlib
import sys

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent.parent / "experiments"))
import workloads  # noqa: E402  pylint: disable=wrong-import-position

SECONDS_MAX = 60


def kernel_of(program):
    """(blocks, memory) of sharing_bench: as much of the GPU as the program fills, bound by what it is bound by."""
    return 1056 * program.sms // 14, int(program.bound_by_memory())


class Rates:
    """What a GPU does when nothing else goes on. `launch` starts a sharing_bench of a shape there, [KEY=VALUE]."""

    def __init__(self, programs, copy_mib, launch):
        self.rounds_per_us = {}
        self._launch = launch
        for program in programs:
            key = kernel_of(program)
            if key not in self.rounds_per_us:
                words = self._ask(f"us=1000 blocks={key[0]} memory={key[1]}", "rounds")
                self.rounds_per_us[key] = int(words[1]) / 1000
        self.mib_per_us = {}
        for way in ("in", "out"):
            self._ask(f"kernels=0 {way}={copy_mib} depth=1", "work 2")
            words = self._ask(f"kernels=0 {way}={copy_mib} depth=1", "work 8")
            self.mib_per_us[way] = 8 * copy_mib / (float(words[2]) * 1e6)

    def _ask(self, shape, line):
        process = self._launch(shape.split())
        output, _ = process.communicate(line + "\n", timeout=SECONDS_MAX)
        if process.returncode != 0:
            raise RuntimeError(f"{shape}: ended with {process.returncode}")
        return output.splitlines()[-1].split()

    def shape(self, program, seconds, cycle_seconds):
        """([KEY=VALUE], cycles) of sharing_bench that take about `seconds` alone."""
        cycles = max(1, round(seconds / cycle_seconds))
        scale = seconds / program.alone_seconds() * program.cycles / cycles
        copy_us = 2**20 / (workloads.COPY_GIGABYTES_A_SECOND * 1e3) * scale  # a MiB
        key = kernel_of(program)
        rounds = max(1, round(program.kernel_ms * 1000 * scale * self.rounds_per_us[key]))
        return [f"cpu={program.cpu_ms * 1000 * scale:.0f}", f"rounds={rounds}", f"blocks={key[0]}", f"memory={key[1]}",
                f"in={program.to_device_mib * copy_us * self.mib_per_us['in']:.4f}",
                f"out={program.to_host_mib * copy_us * self.mib_per_us['out']:.4f}", "depth=1"], cycles
