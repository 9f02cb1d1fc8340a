# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/pool_hosts.py: hosts that make one pool: certificates, etcd, and consortd on each."""

import json
import pathlib
import subprocess
import tempfile
import time

import network
import stack


def pool_of(daemon):
    return json.loads(daemon.control("status", "-o", "json"))["pool"]


def wait_for(wanted, what, *daemons):
    deadline = time.monotonic() + stack.PATIENCE_SECONDS
    while not wanted():
        if time.monotonic() > deadline:
            logs = "\n".join(daemon.log_tail() for daemon in daemons)
            raise AssertionError(f"never: {what}\n{logs}")
        time.sleep(0.1)


class Hosts:
    """Hosts a, b, c, ... with certificates, and consortd on them."""

    NAMES = "abcdef"

    def __init__(self, enter, on, count, members):
        """enter: what enters contexts and leaves them at the end, of a unittest.TestCase or a contextlib.ExitStack.
        on: the network.Network or network.Loopback. members: so many of etcd."""
        self._enter = enter
        self.folder = pathlib.Path(enter(tempfile.TemporaryDirectory(prefix="pool-")))
        self.count = count
        self.network = on
        self.certificates = self.folder / "certificates"
        for command in (["init"], *(["certificate", self.NAMES[host]] for host in range(count))):
            subprocess.run([stack.BUILD / "bin" / "consortctl", "pool", *command, "--folder", self.certificates],
                           check=True)
        self.etcd = enter(network.Etcd(self.network, self.folder, range(members)))
        self.daemons = {}

    def start(self, host, devices, arguments=(), advertise=None, device="cpu", **more):
        """consortd on a host, with so many CPU devices (0: none), or those of a file; device="nvidia": with its GPUs."""
        name = self.NAMES[host]
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        count = ["--devices", str(devices)] if devices and device == "cpu" else []
        daemon = self._enter(stack.Daemon(
            folder, device=device if devices else "none", prefix=self.network.command(host, []),
            arguments=[*count, "--pool", self.etcd.urls(), "--node", name, "--pool-certificates", self.certificates,
                       "--pool-listen", f"{self.network.address(host)}:7010",
                       # Equal devices count as equal, however unequal a busy machine measures them.
                       "--pool-policy", "gmin",
                       *(["--pool-advertise", advertise] if advertise else []), *arguments], **more))
        self.daemons[host] = daemon
        return daemon

    def wait_for_nodes(self, *hosts):
        """Until each of them sees all of them, and a mapper among them."""
        names = {self.NAMES[host] for host in hosts}

        def whole():
            pools = [pool_of(self.daemons[host]) for host in hosts]
            return (all({node["node"] for node in pool["nodes"]} == names and pool["joined"] for pool in pools)
                    and {pool.get("mapper") for pool in pools} <= names
                    and len({pool.get("mapper") for pool in pools}) == 1)
        wait_for(whole, f"a pool of {names}", *self.daemons.values())
