# SPDX-License-Identifier: Apache-2.0
"""GPUs, programs and scenarios of the experiments; docs/EXPERIMENTS.md says where each number comes from.

Programs are described as they are alone on the Tesla C2050, a cycle at a time.
"""

import dataclasses
import itertools

# name: SMs, speed of one relative to the C2050's (cores an SM times shader clock), GB/s, copy engines, MiB
MODELS = {
    "Tesla C2050": (14, 1.0, 144.0, 2, 3072),
    "Quadro 2000": (4, (48 * 1.25) / (32 * 1.15), 41.6, 1, 1024),
    "Tesla C2070": (14, 1.0, 144.0, 2, 6144),
    "Quadro 4000": (8, 0.95 / 1.15, 89.6, 2, 2048),
}
COPY_GIGABYTES_A_SECOND = 6.0
# Device 0 is the faster one, as CUDA orders devices.
NODE_A = ["Tesla C2050", "Quadro 2000"]
NODE_B = ["Tesla C2070", "Quadro 4000"]


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    cycles: int
    cpu_ms: float
    to_device_mib: float
    kernel_ms: float
    sms: int
    compute: float
    gigabytes_a_second: float
    to_host_mib: float
    memory_mib: int
    threads: int = 1

    def bound_by_memory(self):
        """Whether its kernel uses more than half of the bandwidth of the GPU that it is described on."""
        return self.gigabytes_a_second > MODELS["Tesla C2050"][2] / 2

    def with_demand(self, times):
        """The same with so many times the bandwidth, if the GPU has as much; what it computes stays."""
        return dataclasses.replace(self, gigabytes_a_second=min(self.gigabytes_a_second * times, MODELS["Tesla C2050"][2]))

    def alone_seconds(self):
        """With one thread."""
        copies = (self.to_device_mib + self.to_host_mib) * 2**20 / (COPY_GIGABYTES_A_SECOND * 1e9)
        return self.cycles * (self.cpu_ms / 1000 + self.kernel_ms / 1000 + copies)

    def toml(self):
        return "\n".join([
            "[[program]]", f'name = "{self.name}"', f"cycles = {self.cycles}",
            f"threads = {self.threads}", f"cpu_us = {self.cpu_ms * 1000}",
            f"to_device_kib = {self.to_device_mib * 1024}", f"kernel_us = {self.kernel_ms * 1000}",
            f"sms = {self.sms}", f"compute = {self.compute}", f"gigabytes_a_second = {self.gigabytes_a_second}",
            f"to_host_kib = {self.to_host_mib * 1024}", f"memory_mib = {self.memory_mib}", ""])


# Bandwidth and `compute` (the part of its time in which it has instructions to issue) come of what each CUDA sample does
# to an element, by the C2050's 515e9 instructions of threads a second, 64e9 special functions a second (NVIDIA, Fermi whitepaper:
# 14 SMs, 32 cores and 4 special function units each, 1.15 GHz) and 120 of its 144 GB/s, which is what a copy gets in practice:
#   DC  16 pixels: 72 bytes, some 1000 ways to divide them at a dozen instructions a pixel: 0.2 GB/s
#   SC  8 bytes an element, 10 instructions: bound by memory, 120 GB/s, 0.3
#   BO  24 bytes an option of 2048 steps, 6e6 instructions: nothing
#   MM  tiles of 32: 0.125 bytes a flop, at a quarter of the peak, as operands come from shared memory: 32 GB/s, 0.9
#   HI  a byte a pixel, about 32 instructions with those that conflicts in shared memory repeat: 15 GB/s, 1
#   EV  rows in shared memory, few SMs: 2 GB/s
#   BS  20 bytes an option, 10 special functions and 70 instructions: 110 GB/s, 0.75
#   MC  4 bytes a path, 10 instructions, but what is read once serves all blocks that run beside each other: 5 GB/s
#   GA  a small matrix, in the cache, few SMs: 3 GB/s
#   SN  2^20 pairs: 55 of 66 passes through memory at 120 GB/s, the others in shared memory: 100 GB/s, 0.4
LONG = [
    Program("DC", 100, 20, 1, 120, 14, 1.0, 0.2, 0.125, 64),
    Program("SC", 100, 60, 128, 40, 14, 0.3, 120, 128, 300),
    Program("BO", 100, 10, 0.0625, 100, 14, 1.0, 0.01, 0.0625, 32),
    Program("MM", 100, 25, 2, 100, 14, 0.9, 32, 1, 64),
    Program("HI", 100, 20, 128, 80, 14, 1.0, 15, 1, 300),
    Program("EV", 100, 70, 1, 60, 4, 1.0, 2, 1, 64),
]
SHORT = [
    Program("BS", 20, 30, 96, 40, 14, 0.75, 110, 64, 250),
    Program("MC", 20, 10, 0.25, 90, 14, 1.0, 5, 0.0625, 64),
    Program("GA", 20, 80, 1, 10, 2, 1.0, 3, 1, 32),
    Program("SN", 20, 20, 64, 60, 14, 0.4, 100, 64, 200),
]
PAIRS = list(itertools.product(LONG, SHORT))


def models_toml(nodes):
    """The models of these nodes, the C2050 first, as kernels are described on it."""
    used = ["Tesla C2050", *(name for name in MODELS if name != "Tesla C2050" and any(name in node for node in nodes))]
    parts = []
    for name in used:
        sms, speed, bandwidth, engines, memory = MODELS[name]
        parts += ["[[model]]", f'name = "{name}"', f"sms = {sms}", f"sm_speed = {speed}",
                  f"memory_gigabytes_a_second = {bandwidth}", f"copy_engines = {engines}",
                  f"copy_gigabytes_a_second = {COPY_GIGABYTES_A_SECOND}", "kernels_max = 16",
                  f"memory_mib = {memory}", ""]
    for node in nodes:
        parts += ["[[node]]", "gpus = [" + ", ".join(f'"{name}"' for name in node) + "]", ""]
    return "\n".join(parts)


def scenario(pair, nodes, *, packed, policy, feedback_policy="", scheduler="none", batches_in_flight=4, bandwidth_measured=True,
             bandwidth_error=0.0, load=1.0, seed=1, long_count=40):
    """Both programs of `pair` arrive for about the same time, each `load` times in the time it runs alone:
    the long one on the first node, the short one on the last."""
    horizon = long_count * pair[0].alone_seconds() / load
    parts = [f"seed = {seed}", f'mode = "{"packed" if packed else "process"}"', f'scheduler = "{scheduler}"',
             f"batches_in_flight = {batches_in_flight}",
             "[placement]", f'policy = "{policy}"', f'feedback_policy = "{feedback_policy}"',
             f"bandwidth_measured = {str(bandwidth_measured).lower()}", f"bandwidth_error = {bandwidth_error}", "",
             models_toml(nodes), pair[0].toml(), pair[1].toml()]
    for tenant, program in enumerate(pair):
        gap = program.alone_seconds() / load
        parts += ["[[stream]]", f'program = "{program.name}"', f"node = {0 if tenant == 0 else len(nodes) - 1}",
                  f"tenant = {tenant}", f"gap_seconds = {gap}", f"count = {round(horizon / gap)}", ""]
    return "\n".join(parts)


def fairness_scenario(pair, *, packed, scheduler, seed=1):
    """Two tenants of weight 1, eight applications each at once, on one C2050, stopped while both still have some."""
    parts = [f"seed = {seed}", "stop_seconds = 8.0", f'mode = "{"packed" if packed else "process"}"',
             f'scheduler = "{scheduler}"', "[placement]", 'policy = "gmin"', 'feedback_policy = ""', "",
             models_toml([["Tesla C2050"]]), pair[0].toml(), pair[1].toml()]
    for tenant, program in enumerate(pair):
        parts += ["[[stream]]", f'program = "{program.name}"', f"tenant = {tenant}", "gap_seconds = 0.0", "count = 8", ""]
    return "\n".join(parts)
