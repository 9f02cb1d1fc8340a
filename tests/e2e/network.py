# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/network.py: hosts of a network of this test's own, and a cluster of etcd on them.

    with Network(3) as network:
        network.command(0, ["ping", "10.77.0.2"])     what to run for a command on host 0
        network.cut(2); network.heal(2)               host 2 reaches nobody; it does again

A host is a network namespace with one interface on a bridge in a namespace of its own: nothing of
this machine's network is touched or reached, ports need not be free, and all goes with the block.
Files and UNIX sockets are this machine's. Needs root. A Loopback's hosts are addresses of this
machine: for benchmarks, which must run where there are neither namespaces nor root.
"""

import os
import shutil
import subprocess
import sys
import time

from stack import BUILD
from vm import die_with_parent

PATIENCE_SECONDS = 60


def why_not():
    """Why this machine cannot make a Network, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip (package iproute2)"
    if shutil.which("etcd") is None:
        return "there is no etcd (package etcd-server)"
    name = f"consort-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
        return "this kernel or container makes no network namespaces"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Network:
    def __init__(self, hosts):
        tag = f"ct{os.getpid()}"
        self._switch = f"{tag}-switch"
        self._hosts = [f"{tag}-{index}" for index in range(hosts)]
        self._made = []

    def address(self, host):
        return f"10.77.0.{host + 1}"

    def __enter__(self):
        try:
            self._add(self._switch)
            ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
            ip("-n", self._switch, "link", "set", "br0", "up")
            for index, host in enumerate(self._hosts):
                self._add(host)
                ip("-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{index}", "netns",
                   self._switch)
                ip("-n", host, "address", "add", f"{self.address(index)}/24", "dev", "eth0")
                ip("-n", host, "link", "set", "lo", "up")
                ip("-n", host, "link", "set", "eth0", "up")
                ip("-n", self._switch, "link", "set", f"p{index}", "master", "br0", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "del", name], check=False)

    def _add(self, name):
        ip("netns", "add", name)
        self._made.append(name)

    def command(self, host, command):
        return ["ip", "netns", "exec", self._hosts[host], *command]

    def cut(self, host):
        ip("-n", self._switch, "link", "set", f"p{host}", "down")

    def heal(self, host):
        ip("-n", self._switch, "link", "set", f"p{host}", "up")


class Loopback:
    """Hosts with an address of 127/8 each that nobody else of this machine is likely to have. number: less than 25, of
    several such networks of one process."""

    def __init__(self, number=0):
        self._number = number

    def address(self, host):
        return f"127.{64 + os.getpid() // 250 % 128}.{1 + os.getpid() % 250}.{10 * self._number + host + 1}"

    def command(self, _host, command):
        return command


class Etcd:
    """One member a host of `hosts`; a cluster of all of them."""

    def __init__(self, network, folder, hosts):
        self._network = network
        self._folder = folder
        self._hosts = list(hosts)
        self._processes = {}

    def urls(self):
        return ",".join(self.url(host) for host in self._hosts)

    def url(self, host):
        return f"http://{self._network.address(host)}:2379"

    def __enter__(self):
        try:
            for host in self._hosts:
                self._start(host, "new")
            for host in self._hosts:
                self._wait(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _start(self, host, state):
        address = self._network.address(host)
        cluster = ",".join(f"m{each}=http://{self._network.address(each)}:2380" for each in self._hosts)
        with open(f"{self._folder}/etcd{host}.log", "ab") as log:
            self._processes[host] = subprocess.Popen(
                self._network.command(host, [
                    "etcd", "--name", f"m{host}", "--data-dir", f"{self._folder}/etcd{host}",
                    "--listen-client-urls", f"http://{address}:2379",
                    "--advertise-client-urls", f"http://{address}:2379",
                    "--listen-peer-urls", f"http://{address}:2380",
                    "--initial-advertise-peer-urls", f"http://{address}:2380",
                    "--initial-cluster", cluster, "--initial-cluster-state", state,
                    "--pre-vote", "--logger", "zap"]),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, preexec_fn=die_with_parent)

    def _healthy(self, host):
        code = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)"
        done = subprocess.run(self._network.command(host, [sys.executable, "-c", code, f"{self.url(host)}/health"]),
                              capture_output=True, check=False)
        return done.returncode == 0

    def _wait(self, host):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._healthy(host):
            if time.monotonic() > deadline:
                with open(f"{self._folder}/etcd{host}.log", encoding="utf-8", errors="replace") as log:
                    raise AssertionError(f"etcd on host {host} does not come up\n{log.read()[-4000:]}")
            time.sleep(0.1)

    def _control(self, host, *words):
        return subprocess.run(self._network.command(host, ["etcdctl", "--endpoints", self.url(host), *words]),
                              env=dict(os.environ, ETCDCTL_API="3"), check=True, capture_output=True, text=True).stdout

    def put(self, host, key, value):
        self._control(host, "put", key, value)

    def get(self, host, key):
        return self._control(host, "get", "--print-value-only", key)

    def kill(self, host):
        self._processes[host].kill()
        self._processes[host].wait()

    def restart(self, host, wait=True):
        self._start(host, "existing")
        if wait:
            self._wait(host)


def start_delaying_proxy(network, host, port, to, seconds):
    """A process on a host of `network` that passes connections to `port` on to `to`, each byte so late, each way; the
    caller ends it. set_delay() says otherwise."""
    process = subprocess.Popen(
        network.command(host, [BUILD / "bin" / "delaying_proxy", f"{network.address(host)}:{port}", to,
                               str(round(seconds * 1e6))]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
    assert process.stdout.readline() == "ready\n"
    return process


def set_delay(proxy, seconds):
    """Of what passes the proxy from now on, each way."""
    micros = round(seconds * 1e6)
    proxy.stdin.write(f"{micros}\n")
    proxy.stdin.flush()
    assert proxy.stdout.readline() == f"late {micros}\n"
