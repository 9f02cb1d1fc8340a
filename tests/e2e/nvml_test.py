#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/nvml_test.py: libnvidia-ml.so.1 as monitoring programs call it, beside CUDA programs on the CPU device."""

import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import stack
from stack import wait_for
from vm import die_with_parent

LIBRARY = stack.BUILD / "lib" / "libnvidia-ml.so.1"
NAMES = stack.REPOSITORY / "guest" / "nvml" / "names.def"

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE, NOT_LOADED = 1, 2, 3, 6, 7, 9
TIMEOUT = 10
VERSION_MISMATCH = 25
P2P_NOT_SUPPORTED = 5
P2P_NVLINK = 2
LINK_TO_SWITCH = 2
FIELD_LINK_COUNT, FIELD_LINK_SPEED, FIELD_LINK_STATE = 91, 164, 165
NOT_APPLICABLE = 0xFFFFFFFF
MEMORY_BYTES = 64 << 20


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_uint64), ("free", ctypes.c_uint64), ("used", ctypes.c_uint64)]


class Memory2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("total", ctypes.c_uint64), ("reserved", ctypes.c_uint64),
                ("free", ctypes.c_uint64), ("used", ctypes.c_uint64)]


class Pci(ctypes.Structure):
    _fields_ = [("legacy", ctypes.c_char * 16), ("domain", ctypes.c_uint32), ("bus", ctypes.c_uint32),
                ("device", ctypes.c_uint32), ("ids", ctypes.c_uint32 * 2), ("bus_id", ctypes.c_char * 32)]


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint32), ("used", ctypes.c_uint64), ("gpu_instance", ctypes.c_uint32),
                ("compute_instance", ctypes.c_uint32)]


class Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint32), ("memory", ctypes.c_uint32)]


class Field(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint32), ("scope", ctypes.c_uint32), ("timestamp", ctypes.c_int64),
                ("latency", ctypes.c_int64), ("type", ctypes.c_uint32), ("result", ctypes.c_int32),
                ("value", ctypes.c_uint64)]


class ProcessEntry(ctypes.Structure):
    _fields_ = [*Process._fields_, ("protected", ctypes.c_uint64), ("name", ctypes.c_char * 4096)]


# What CUDA says of device 0, a line each, and MEMORY_BYTES of it held until its input ends.
HOLDER = f"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def check(result):
    assert result == 0, result
context, device, address = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
name, bus, uuid = (ctypes.create_string_buffer(256) for _ in range(3))
major, minor, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
total = ctypes.c_size_t()
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuDeviceGetName(name, 256, device))
check(cuda.cuDeviceGetPCIBusId(bus, 256, device))
check(cuda.cuDeviceGetUuid(uuid, device))
check(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device))
check(cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device))
check(cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device))
check(cuda.cuDriverGetVersion(ctypes.byref(version)))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t({MEMORY_BYTES})))
for value in (name.value.decode(), bus.value.decode(), uuid.raw[:16].hex(), total.value, major.value, minor.value,
              version.value):
    print(value, flush=True)
sys.stdin.read()
"""


def load(endpoint):
    """The library for this endpoint, which it reads once: a copy of its own in this process."""
    os.environ["CONSORT_ENDPOINT"] = f"unix:{endpoint}"
    with tempfile.NamedTemporaryFile(suffix=".so") as copy:
        copy.write(LIBRARY.read_bytes())
        copy.flush()
        library = ctypes.CDLL(copy.name)
    library.nvmlErrorString.restype = ctypes.c_char_p
    return library


class Library(unittest.TestCase):
    """What can be seen without a host."""

    def test_shows_the_public_names_and_nothing_else(self):
        said = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True)
        wanted = set(re.findall(r"^NAME\((\w+)\)$", NAMES.read_text(), re.M))
        self.assertGreater(len(wanted), 400)
        self.assertEqual({line.split()[-1] for line in said.stdout.splitlines()}, wanted)

    def test_needs_libc_of_every_supported_guest(self):
        said = subprocess.run(["objdump", "-p", LIBRARY], capture_output=True, text=True, check=True).stdout
        needed = set(re.findall(r"NEEDED +(\S+)", said))
        self.assertLessEqual(needed, {"libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"})
        versions = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([\d.]+)", said)}
        self.assertLessEqual(max(versions), (2, 28))

    def test_without_a_host_it_says_that_no_driver_is_loaded(self):
        with tempfile.TemporaryDirectory() as folder:
            nvml = load(f"{folder}/nobody.sock")
            count = ctypes.c_uint32()
            self.assertEqual(nvml.nvmlInit_v2(), NOT_LOADED)
            self.assertEqual(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), UNINITIALIZED)
            self.assertEqual(nvml.nvmlDeviceGetTemperature(None, 0, ctypes.byref(count)), UNINITIALIZED)
            self.assertEqual(nvml.nvmlShutdown(), UNINITIALIZED)
            self.assertEqual(nvml.nvmlErrorString(NOT_LOADED), b"Driver Not Loaded")
            self.assertEqual(nvml.nvmlErrorString(4711), b"Unknown Error")


class Nvml(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.neighbour = pathlib.Path(folder) / "neighbour.sock"
        cls.bounded = pathlib.Path(folder) / "bounded.sock"
        tenants = pathlib.Path(folder) / "tenants.toml"
        tenants.write_text(f'[[tenant]]\nname = "neighbour"\nsocket = "{cls.neighbour}"\n'
                           f'[[tenant]]\nname = "bounded"\nsocket = "{cls.bounded}"\nmemory_hard = "1GiB"\n')
        cls.daemon = cls.enterClassContext(stack.Daemon(
            folder, device="cpu", arguments=["--devices", "2", "--tenants", tenants]))

    def setUp(self):
        self.nvml = load(self.daemon.socket)
        self.assertEqual(self.nvml.nvmlInit_v2(), 0)
        self.addCleanup(self.nvml.nvmlShutdown)

    def handle(self, nvml=None, index=0):
        device = ctypes.c_void_p()
        self.assertEqual((nvml or self.nvml).nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)), 0)
        return device

    def text(self, function, *arguments, length=96):
        out = ctypes.create_string_buffer(length)
        self.assertEqual(function(*arguments, out, length), 0)
        return out.value.decode()

    def number(self, function, *arguments):
        out = ctypes.c_uint32()
        self.assertEqual(function(*arguments, ctypes.byref(out)), 0)
        return out.value

    def memory(self, nvml):
        memory = Memory2(ctypes.sizeof(Memory2) | 2 << 24)
        self.assertEqual(nvml.nvmlDeviceGetMemoryInfo_v2(self.handle(nvml), ctypes.byref(memory)), 0)
        return memory

    def processes(self, nvml, index=0):
        room = (Process * 8)()
        count = ctypes.c_uint32(len(room))
        self.assertEqual(nvml.nvmlDeviceGetComputeRunningProcesses_v3(
            self.handle(nvml, index), ctypes.byref(count), room), 0)
        return list(room[:count.value])

    def start_holder(self):
        program = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True, env=self.daemon.local_environment(), preexec_fn=die_with_parent)

        def end():
            program.stdin.close()
            program.stdout.close()
            program.wait()

        self.addCleanup(end)
        return program, [program.stdout.readline().strip() for _ in range(7)]

    def test_names_devices_as_cuda_does(self):
        _, (name, bus, uuid, total, major, minor, version) = self.start_holder()
        nvml, device = self.nvml, self.handle()
        self.assertEqual(self.number(nvml.nvmlDeviceGetCount_v2), 2)
        self.assertEqual(self.text(nvml.nvmlDeviceGetName, device), name)
        said = self.text(nvml.nvmlDeviceGetUUID, device)
        self.assertRegex(said, r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
        self.assertEqual(said[4:].replace("-", ""), uuid)
        pci = Pci()
        self.assertEqual(nvml.nvmlDeviceGetPciInfo_v3(device, ctypes.byref(pci)), 0)
        self.assertEqual(pci.bus_id.decode().lower(), "0000" + bus.lower())
        self.assertEqual(pci.legacy.decode().lower(), bus.lower())
        found = ctypes.c_void_p()
        self.assertEqual(nvml.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(found)), 0)
        self.assertEqual(found.value, device.value)
        found = ctypes.c_void_p()
        self.assertEqual(nvml.nvmlDeviceGetHandleByUUID(said.encode(), ctypes.byref(found)), 0)
        self.assertEqual(found.value, device.value)
        capability = ctypes.c_int(), ctypes.c_int()
        self.assertEqual(nvml.nvmlDeviceGetCudaComputeCapability(device, *map(ctypes.byref, capability)), 0)
        self.assertEqual([part.value for part in capability], [int(major), int(minor)])
        self.assertEqual(self.number(nvml.nvmlSystemGetCudaDriverVersion_v2), int(version))
        self.assertRegex(self.text(nvml.nvmlSystemGetDriverVersion), r"^\d+\.\d+")
        self.assertRegex(self.text(nvml.nvmlSystemGetNVMLVersion), r"^13\.\d+\.\d+")
        self.assertEqual(self.memory(nvml).total, int(total))
        self.assertEqual(self.number(nvml.nvmlDeviceGetIndex, self.handle(index=1)), 1)

    def test_says_what_the_tenant_uses_and_not_what_others_do(self):
        other = load(self.neighbour)
        self.assertEqual(other.nvmlInit(), 0)
        self.addCleanup(other.nvmlShutdown)
        program, _ = self.start_holder()
        mine = wait_for(lambda: [p for p in self.processes(self.nvml) if p.used >= MEMORY_BYTES],
                        "the process's memory")
        self.assertEqual([p.pid for p in mine], [program.pid])
        self.assertEqual(mine[0].gpu_instance, NOT_APPLICABLE)
        self.assertRegex(self.text(self.nvml.nvmlSystemGetProcessName, program.pid), "^python3")
        used = self.memory(self.nvml)
        self.assertGreaterEqual(used.used, MEMORY_BYTES)
        self.assertEqual((used.reserved, used.total - used.used), (0, used.free))
        first = Memory()
        self.assertEqual(self.nvml.nvmlDeviceGetMemoryInfo(self.handle(), ctypes.byref(first)), 0)
        self.assertEqual((first.total, first.free, first.used), (used.total, used.free, used.used))
        # Another device, another tenant.
        self.assertEqual(self.processes(self.nvml, index=1), [])
        self.assertEqual(self.processes(other), [])
        theirs = self.memory(other)
        self.assertEqual((theirs.used, theirs.free, theirs.reserved), (0, used.free, used.used))
        program.stdin.close()
        wait_for(lambda: self.memory(self.nvml).used == 0 and not self.processes(self.nvml), "its end")

    def test_a_quota_is_all_there_is(self):
        bounded = load(self.bounded)
        self.assertEqual(bounded.nvmlInit_v2(), 0)
        self.addCleanup(bounded.nvmlShutdown)
        memory = self.memory(bounded)
        self.assertEqual((memory.total, memory.used, memory.free, memory.reserved), (1 << 30, 0, 1 << 30, 0))

    def test_says_how_busy_the_tenant_is(self):
        utilization = Utilization()
        busy = subprocess.Popen([stack.PROGRAMS / "busy", "60", "200000"], stdout=subprocess.DEVNULL,
                                env=self.daemon.local_environment(), preexec_fn=die_with_parent)
        self.addCleanup(busy.wait)
        self.addCleanup(busy.kill)

        def percent():
            self.assertEqual(self.nvml.nvmlDeviceGetUtilizationRates(self.handle(), ctypes.byref(utilization)), 0)
            self.assertLessEqual(utilization.gpu, 100)
            return utilization.gpu

        wait_for(percent, "some load")
        busy.kill()
        wait_for(lambda: percent() == 0, "none")

    def test_has_links_to_the_devices_that_it_reaches(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "devices").write_text("links=4 count=2\nname=unlinked\n")
            (folder / "tenants.toml").write_text(f'[[tenant]]\nname = "one"\nsocket = "{folder}/one.sock"\ngpus = [0]\n')
            with stack.Daemon(folder, device="cpu", arguments=["--devices", folder / "devices", "--tenants",
                                                               folder / "tenants.toml"]) as daemon:
                nvml = load(daemon.socket)
                self.assertEqual(nvml.nvmlInit_v2(), 0)
                devices = [self.handle(nvml, index=index) for index in range(3)]
                pairs = [[self.number(nvml.nvmlDeviceGetP2PStatus, one, other, P2P_NVLINK) for other in devices]
                         for one in devices]
                no = P2P_NOT_SUPPORTED
                self.assertEqual(pairs, [[no, 0, no], [0, no, no], [no, no, no]])
                self.check_links(nvml, devices[1], 4)
                self.check_no_links(nvml, devices[2])
                self.assertEqual(nvml.nvmlShutdown(), 0)
                # A worker reads of NVIDIA's library what this one says here.
                read = subprocess.run([stack.BUILD / "bin" / "board_links", "0:c0:0", "0:c1:0", "0:c2:0", "0:c3:0"],
                                      env=daemon.local_environment(), capture_output=True, text=True, check=True)
                linked = "version 0 speed 0: 0 switch 1 switch 2 switch 3 switch"
                self.assertEqual(read.stdout.splitlines(), [f"0:c0:0 {linked}", f"0:c1:0 {linked}",
                                                            "0:c2:0 version 0 speed 0:", "0:c3:0 version 0 speed 0:"])
                # Who has but one of them has nothing that links lead to.
                alone = load(folder / "one.sock")
                self.assertEqual(alone.nvmlInit_v2(), 0)
                self.check_no_links(alone, self.handle(alone))
                self.assertEqual(alone.nvmlShutdown(), 0)

    def check_links(self, nvml, device, count):
        """As NCCL asks (src/graph/xml.cc), and others: as many to a switch that is on no bus of this machine."""
        for link in (0, count - 1):
            self.assertEqual(self.number(nvml.nvmlDeviceGetNvLinkCapability, device, link, 0), 1)
            self.assertEqual(self.number(nvml.nvmlDeviceGetNvLinkCapability, device, link, 1), 0)
            self.assertEqual(self.number(nvml.nvmlDeviceGetNvLinkState, device, link), 1)
            self.assertEqual(self.number(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, device, link), LINK_TO_SWITCH)
            for function in (nvml.nvmlDeviceGetNvLinkRemotePciInfo, nvml.nvmlDeviceGetNvLinkRemotePciInfo_v2):
                remote = Pci()
                self.assertEqual(function(device, link, ctypes.byref(remote)), 0)
                self.assertEqual((remote.bus_id, remote.legacy), (b"FFFFFFFF:FF:FF.0", b"FFFF:FF:FF.0"))
                self.assertFalse(os.path.exists(f"/sys/class/pci_bus/{remote.bus_id[:7].decode().lower()}"))
        out = ctypes.c_uint32()
        self.assertEqual(self.number(nvml.nvmlDeviceGetNvLinkState, device, count), 0)
        self.assertEqual(self.number(nvml.nvmlDeviceGetNvLinkCapability, device, count, 0), 0)
        self.assertEqual(nvml.nvmlDeviceGetNvLinkRemotePciInfo(device, count, ctypes.byref(Pci())), NOT_SUPPORTED)
        self.assertEqual(nvml.nvmlDeviceGetNvLinkState(device, 36, ctypes.byref(out)), INVALID_ARGUMENT)
        self.assertEqual(nvml.nvmlDeviceGetNvLinkCapability(device, 0, 6, ctypes.byref(out)), INVALID_ARGUMENT)
        # The CPU device does not say how fast they are.
        self.assertEqual(nvml.nvmlDeviceGetNvLinkVersion(device, 0, ctypes.byref(out)), NOT_SUPPORTED)
        fields = (Field * 6)(Field(FIELD_LINK_STATE, 0), Field(FIELD_LINK_STATE, count), Field(FIELD_LINK_STATE, 36),
                             Field(FIELD_LINK_COUNT), Field(FIELD_LINK_SPEED, 0), Field(1))
        self.assertEqual(nvml.nvmlDeviceGetFieldValues(device, len(fields), fields), 0)
        self.assertEqual([field.result for field in fields], [0, 0, INVALID_ARGUMENT, 0, NOT_SUPPORTED, NOT_SUPPORTED])
        self.assertEqual([fields[i].value for i in (0, 1, 3)], [1, 0, count])

    def check_no_links(self, nvml, device):
        out = ctypes.c_uint32()
        for function in (nvml.nvmlDeviceGetNvLinkState, nvml.nvmlDeviceGetNvLinkVersion, nvml.nvmlDeviceGetNvLinkRemoteDeviceType):
            self.assertEqual(function(device, 0, ctypes.byref(out)), NOT_SUPPORTED)
        self.assertEqual(nvml.nvmlDeviceGetNvLinkCapability(device, 0, 0, ctypes.byref(out)), NOT_SUPPORTED)
        fields = (Field * 2)(Field(FIELD_LINK_STATE, 0), Field(FIELD_LINK_COUNT))
        self.assertEqual(nvml.nvmlDeviceGetFieldValues(device, 2, fields), 0)
        self.assertEqual([field.result for field in fields], [NOT_SUPPORTED] * 2)

    def test_has_peers_but_no_links_and_nothing_of_the_board(self):
        nvml, first, second = self.nvml, self.handle(), self.handle(index=1)
        for caps in range(5):
            self.assertEqual(self.number(nvml.nvmlDeviceGetP2PStatus, first, second, caps),
                             P2P_NOT_SUPPORTED if caps == P2P_NVLINK else 0)
            self.assertEqual(self.number(nvml.nvmlDeviceGetP2PStatus, first, first, caps), P2P_NOT_SUPPORTED)
        self.assertEqual(self.number(nvml.nvmlDeviceGetTopologyCommonAncestor, first, second), 50)
        room, out = (ctypes.c_void_p * 2)(), ctypes.c_uint32()
        self.assertEqual(nvml.nvmlDeviceGetTopologyNearestGpus(second, 50, ctypes.byref(out), None), 0)
        self.assertEqual(out.value, 1)
        out.value = 2
        self.assertEqual(nvml.nvmlDeviceGetTopologyNearestGpus(second, 50, ctypes.byref(out), room), 0)
        self.assertEqual((out.value, room[0]), (1, first.value))
        self.assertEqual(nvml.nvmlDeviceGetTopologyNearestGpus(second, 40, ctypes.byref(out), room), 0)
        self.assertEqual(out.value, 0)
        self.assertEqual(nvml.nvmlDeviceGetTopologyNearestGpus(second, 51, ctypes.byref(out), room), INVALID_ARGUMENT)
        self.assertEqual(nvml.nvmlDeviceGetP2PStatus(first, second, 5, ctypes.byref(out)), INVALID_ARGUMENT)
        for refused in (nvml.nvmlDeviceGetNvLinkState, nvml.nvmlDeviceGetTemperature, nvml.nvmlDeviceGetClockInfo):
            self.assertEqual(refused(first, 0, ctypes.byref(out)), NOT_SUPPORTED)
        self.assertEqual(nvml.nvmlDeviceGetPowerUsage(first, ctypes.byref(out)), NOT_SUPPORTED)
        fields = (Field * 2)()
        self.assertEqual(nvml.nvmlDeviceGetFieldValues(first, 2, fields), 0)
        self.assertEqual([field.result for field in fields], [NOT_SUPPORTED] * 2)

    def test_says_of_peers_what_peer_access_gives(self):
        with tempfile.TemporaryDirectory() as folder, stack.Daemon(
                folder, device="cpu", arguments=["--devices", "2", "--peer-access", "off"]) as daemon:
            nvml = load(daemon.socket)
            self.assertEqual(nvml.nvmlInit_v2(), 0)
            first, second = self.handle(nvml), self.handle(nvml, index=1)
            for caps in range(5):
                self.assertEqual(self.number(nvml.nvmlDeviceGetP2PStatus, first, second, caps), P2P_NOT_SUPPORTED)
            self.assertEqual(nvml.nvmlShutdown(), 0)

    def test_checks_what_it_is_given(self):
        nvml, device = self.nvml, self.handle()
        out = ctypes.c_void_p()
        short = ctypes.create_string_buffer(8)
        self.assertEqual(nvml.nvmlDeviceGetHandleByIndex_v2(2, ctypes.byref(out)), INVALID_ARGUMENT)
        self.assertEqual(nvml.nvmlDeviceGetHandleByUUID(b"GPU-00", ctypes.byref(out)), NOT_FOUND)
        self.assertEqual(nvml.nvmlDeviceGetHandleByPciBusId_v2(b"7fff:00:00.0", ctypes.byref(out)), NOT_FOUND)
        self.assertEqual(nvml.nvmlDeviceGetHandleByPciBusId_v2(b"nonsense", ctypes.byref(out)), INVALID_ARGUMENT)
        self.assertEqual(nvml.nvmlDeviceGetUUID(device, short, 8), INSUFFICIENT_SIZE)
        self.assertEqual(nvml.nvmlDeviceGetUUID(device, None, 96), INVALID_ARGUMENT)
        for wild in (None, ctypes.c_void_p(8), ctypes.c_void_p(device.value + 2)):
            self.assertEqual(nvml.nvmlDeviceGetName(wild, short, 8), INVALID_ARGUMENT)
        memory = Memory2(1)
        self.assertEqual(nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(memory)), VERSION_MISMATCH)
        self.start_holder()
        count = ctypes.c_uint32(0)
        self.assertEqual(nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), None),
                         INSUFFICIENT_SIZE)
        self.assertEqual(count.value, 1)

    def test_counts_its_starts(self):
        nvml = self.nvml
        self.assertEqual(nvml.nvmlInitWithFlags(0), 0)
        self.assertEqual(nvml.nvmlShutdown(), 0)
        self.assertEqual(self.number(nvml.nvmlDeviceGetCount), 2)

    def test_answers_the_private_table_of_nvidia_smi(self):
        program, _ = self.start_holder()
        wait_for(lambda: self.processes(self.nvml), "the process")
        table = ctypes.POINTER(ctypes.c_void_p)()
        get = self.nvml.nvmlInternalGetExportTable
        self.assertEqual(get(ctypes.byref(table), bytes(16)), NOT_FOUND)
        name = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
        self.assertEqual(get(ctypes.byref(table), name), 0)
        self.assertEqual(table[0], 256 * 8)
        slot = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        device = ctypes.c_void_p()
        self.assertEqual(slot(table[81])(0, ctypes.addressof(device), 0x22), 0)
        self.assertEqual(device.value, self.handle().value)
        entries, count = (ProcessEntry * 4)(), ctypes.c_uint32(4)
        self.assertEqual(slot(table[213])(device, ctypes.addressof(count), ctypes.addressof(entries)), 0)
        self.assertEqual([(e.pid, e.name[:7]) for e in entries[:count.value]], [(program.pid, b"python3")])
        # What it does not know has nothing, and no reset.
        self.assertEqual(slot(table[1])(device, ctypes.addressof(count), None), 0)
        self.assertEqual(count.value, 0)
        self.assertEqual(slot(table[1])(device, 7, None), 0)
        self.assertEqual(slot(table[20])(device, None, None), NOT_SUPPORTED)

    def test_waits_for_events_that_do_not_come(self):
        events = ctypes.c_void_p()
        self.assertEqual(self.nvml.nvmlEventSetCreate(ctypes.byref(events)), 0)
        types = ctypes.c_uint64(1)
        self.assertEqual(self.nvml.nvmlDeviceGetSupportedEventTypes(self.handle(), ctypes.byref(types)), 0)
        self.assertEqual(types.value, 0)
        self.assertEqual(self.nvml.nvmlDeviceRegisterEvents(self.handle(), ctypes.c_uint64(8), events), NOT_SUPPORTED)
        data = ctypes.create_string_buffer(64)
        self.assertEqual(self.nvml.nvmlEventSetWait_v2(events, data, 1), TIMEOUT)
        self.assertEqual(self.nvml.nvmlEventSetFree(events), 0)


if __name__ == "__main__":
    unittest.main()
