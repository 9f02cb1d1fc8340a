#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/pool_test.py: hosts that pool their GPUs: consortd on hosts of a network of this test's own, etcd,
unmodified programs, CPU devices. What docs/POOL.md promises an operator."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

import network
import stack
from pool_hosts import Hosts, pool_of, wait_for


def make_hosts(test, count, members):
    return Hosts(test.enterContext, test.enterContext(network.Network(count)), count, members)


def run(daemon, name, *arguments, timeout=120):
    return subprocess.run([stack.PROGRAMS / name, *arguments], env=daemon.local_environment(),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False)


class Busy:
    """A program that computes until it is told to stop or cannot go on."""

    def __init__(self, test, daemon, go=True):
        """go: False: it has a GPU, and waits."""
        self.process = subprocess.Popen([stack.PROGRAMS / "busy", "1000", "100000", "4", "wait"],
                                        env=daemon.local_environment(), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        test.addCleanup(self.end)
        self.daemon = daemon
        line = self.process.stdout.readline().strip()
        assert line == "ready", line + self.process.stdout.read() + daemon.log_tail()
        if go:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def wait_for_error(self, seconds):
        output, _ = self.process.communicate(timeout=seconds)
        return output

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@unittest.skipIf(network.why_not(), network.why_not())
class RemoteVgpus(unittest.TestCase):
    def test_programs_compute_on_another_host(self):
        hosts = make_hosts(self, 2, members=1)
        near = hosts.start(0, devices=0)
        far = hosts.start(1, devices=2)
        hosts.wait_for_nodes(0, 1)
        for name in ("vector_add", "copies", "streams", "callbacks", "pinned_memory", "graphs", "threads"):
            with self.subTest(name):
                done = run(near, name)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr + near.log_tail() + far.log_tail())
                self.assertEqual(done.stdout.splitlines()[-1:], ["PASS"], done.stdout)
        sessions = far.wait_for_account(lambda all: "threads" in [line["application"] for line in all])
        # One bill, where the GPU is; the tenant is whoever it was on the application's host.
        self.assertEqual({(line["tenant"], line["channel"]) for line in sessions}, {("local", "pool")})
        self.assertEqual(near.account(), [])
        self.assertGreater(sum(line["kernel_launches"] for line in sessions), 0)

    def test_local_and_remote_gpus_are_devices_of_one_program(self):
        hosts = make_hosts(self, 2, members=1)
        near = hosts.start(0, devices=1)
        far = hosts.start(1, devices=2)
        hosts.wait_for_nodes(0, 1)
        done = run(near, "device_query")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        gpus = json.loads(near.control("gpus", "-o", "json"))
        self.assertEqual(sorted((gpu["node"], gpu["device"]) for gpu in gpus), [("a", 0), ("b", 0), ("b", 1)])
        self.assertEqual(len({gpu["gid"] for gpu in gpus}), 3)
        done = run(near, "many_devices")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + near.log_tail() + far.log_tail())
        self.assertIn("3 devices", done.stdout)
        for daemon, devices in ((near, {0}), (far, {0, 1})):
            daemon.wait_for_account(lambda all, devices=devices: devices == {
                line["device_index"] for line in all if line["application"] == "many_devices"})
        # A tenant's GPUs: the program's host has it placed on those alone, and the GPU's own host agrees or not.
        gids = {(gpu["node"], gpu["device"]): gpu["gid"] for gpu in gpus}
        before = len(far.account())
        near.control("tenant", "set", "local", "--gpus", f"{gids['b', 1]},{gids['a', 0]}")
        done = run(near, "many_devices")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + near.log_tail() + far.log_tail())
        self.assertIn("2 devices", done.stdout)
        used = far.wait_for_account(lambda all: len(all) > before)[before:]
        self.assertEqual([line["device_index"] for line in used], [1])
        far.control("tenant", "set", "local", "--gpus", str(gids["b", 0]))
        done = run(near, "many_devices")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("tenant local may not use device 1 of host", far.log())
        near.control("tenant", "set", "local", "--gpus", "NVIDIA H200")
        done = run(near, "vector_add")
        self.assertIn("cudaErrorNoDevice", done.stderr)
        self.assertIn("tenant local may not use a GPU of the pool, only NVIDIA H200", near.log())

    def test_operators_come_over_the_pools_tls_with_the_role_of_their_certificate(self):
        hosts = make_hosts(self, 2, members=1)
        near = hosts.start(0, devices=1)
        hosts.wait_for_nodes(0)
        for command in (["operator", "alice", "--role", "admin"], ["operator", "bob"]):
            subprocess.run([stack.BUILD / "bin" / "consortctl", "pool", *command, "--folder", hosts.certificates], check=True)

        def ask(who, *words, certificates=hosts.certificates, status=0):
            """consortctl on the other host, which runs no consortd."""
            done = subprocess.run(hosts.network.command(1, [
                stack.BUILD / "bin" / "consortctl", "--connect", f"{hosts.network.address(0)}:7010", "--cert",
                certificates / f"{who}.crt", *words]), capture_output=True, text=True, timeout=stack.PATIENCE_SECONDS)
            self.assertEqual(done.returncode, status, done.stdout + done.stderr + near.log_tail())
            return done.stderr if status else done.stdout

        for who in ("alice", "bob"):
            self.assertEqual([node["node"] for node in json.loads(ask(who, "nodes", "-o", "json"))], ["a"])
        self.assertIn("consortd ", ask("alice", "status"))
        ask("alice", "tenant", "set", "web-1", "--weight", "4")
        self.assertIn("admin alice set the weight of web-1 to 4 (was 1)", near.log())
        denied = ask("bob", "tenant", "set", "web-1", "--weight", "5", status=77)
        self.assertIn("viewer bob may look and change nothing; an admin's certificate may", denied)
        self.assertIn("viewer bob was denied a change of /api/v1/tenants", near.log())
        self.assertIn("viewer bob was denied a change", ask("bob", "events"))
        self.assertEqual({one["tenant"]: one["weight"] for one in json.loads(ask("bob", "tenants", "-o", "json"))}["web-1"], 4)
        self.assertIn("is a host's certificate", ask("b", "status", status=64))
        other = hosts.folder / "other"
        for command in (["init"], ["operator", "mallory", "--role", "admin"]):
            subprocess.run([stack.BUILD / "bin" / "consortctl", "pool", *command, "--folder", other], check=True)
        self.assertIn("is no host of this certificate's pool", ask("mallory", "status", certificates=other, status=77))
        # With the pool's own authority beside it the client is content, and the host is not.
        (other / "authority.crt").write_bytes((hosts.certificates / "authority.crt").read_bytes())
        self.assertIn("does not take", ask("mallory", "status", certificates=other, status=77))
        near.stop()
        self.assertIn("no consortd of a pool answers", ask("alice", "status", status=69))

    def test_a_host_that_dies_ends_the_program_with_an_error(self):
        hosts = make_hosts(self, 2, members=1)
        near = hosts.start(0, devices=0)
        far = hosts.start(1, devices=1)
        hosts.wait_for_nodes(0, 1)
        program = Busy(self, near)
        far.signal(signal.SIGKILL)
        self.assertIn("cudaErrorDevicesUnavailable", program.wait_for_error(stack.PATIENCE_SECONDS))
        wait_for(lambda: [node["node"] for node in pool_of(near)["nodes"]] == ["a"], "b left", near)
        # Nobody has a GPU now: a program is told so at once.
        done = run(near, "vector_add")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cudaErrorNoDevice", done.stderr)

    def test_only_synchronisation_waits_for_the_network(self):
        launches, rounds, late_seconds = 2000, 3, 0.05
        hosts = make_hosts(self, 2, members=1)
        # Whoever dials host b comes to a proxy on host a.
        proxy = network.start_delaying_proxy(hosts.network, 0, 7011, f"{hosts.network.address(1)}:7010", late_seconds)
        self.addCleanup(proxy.communicate)
        self.addCleanup(proxy.kill)
        near = hosts.start(0, devices=0)
        far = hosts.start(1, devices=1, advertise=f"{hosts.network.address(0)}:7011")
        hosts.wait_for_nodes(0, 1)
        begin = time.monotonic()
        done = run(near, "many_launches", str(launches), str(rounds))
        seconds = time.monotonic() - begin
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        line, = far.wait_for_account(lambda all: len(all) == 1)
        print(f"\n    {launches * rounds} launches, {line['round_trips']} round trips of {2 * late_seconds} s: "
              f"{seconds:.1f} s", end="")
        self.assertEqual(line["kernel_launches"], launches * rounds)
        # Loading, looking up, the synchronisations, the copy back: none of them grows with the launches.
        self.assertLess(line["round_trips"], 40)
        # If each launch had waited, that would have taken ten minutes.
        self.assertLess(seconds, launches * rounds * 2 * late_seconds / 4)


    def test_a_copy_is_waited_for_once(self):
        rounds = 200
        hosts = make_hosts(self, 2, members=1)
        near = hosts.start(0, devices=0)
        far = hosts.start(1, devices=1)
        hosts.wait_for_nodes(0, 1)
        done = run(near, "waits", str(rounds))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        line, = far.wait_for_account(lambda all: len(all) == 1)
        # Each round has a copy to the device and one back that must be waited for.
        self.assertGreaterEqual(line["round_trips"], 2 * rounds)
        self.assertLess(line["round_trips"], 2 * rounds + 40)


@unittest.skipIf(network.why_not(), network.why_not())
class Policies(unittest.TestCase):
    """One host with two devices, one of them slow and small."""

    def setUp(self):
        self.hosts = make_hosts(self, 1, members=1)
        self.devices = self.hosts.folder / "devices"
        self.devices.write_text('name="Fast" memory=2GiB\nname="Slow" memory=1GiB speed=0.125\n', "utf-8")

    def start(self, policy):
        daemon = self.hosts.start(0, devices=self.devices, arguments=["--pool-policy", policy])
        self.hosts.wait_for_nodes(0)
        return daemon

    def gpus(self, daemon):
        return {gpu["model"]: gpu for gpu in json.loads(daemon.control("gpus", "-o", "json"))}

    def wait_for_use(self, daemon, wanted):
        wait_for(lambda: {model: gpu.get("bound", 0) for model, gpu in self.gpus(daemon).items()} == wanted,
                 f"in use: {wanted}", daemon)

    def test_gpus_count_by_their_measured_speed(self):
        daemon = self.start("gwtmin")
        gpus = self.gpus(daemon)
        for gpu in gpus.values():
            for rate in ("copy_to_device_bytes_per_second", "copy_to_host_bytes_per_second", "memory_bytes_per_second",
                         "operations_per_second"):
                self.assertGreater(gpu[rate], 0, f"{rate} of {gpu}")
        ratio = gpus["Fast"]["weight"] / gpus["Slow"]["weight"]
        print(f"\n    eight times as fast, weighs {ratio:.1f} times as much", end="")
        self.assertGreater(ratio, 2.5)
        self.assertLess(ratio, 30)
        for programs in (1, 2):
            Busy(self, daemon, go=False)
            self.wait_for_use(daemon, {"Fast": programs, "Slow": 0})

    def test_an_operators_own_policy_decides(self):
        # The example: the GPU with the least memory, as long as it has but so many programs.
        daemon = self.start(f"{stack.BUILD}/lib/best_fit_policy.so=1")
        Busy(self, daemon, go=False)
        self.wait_for_use(daemon, {"Fast": 0, "Slow": 1})
        Busy(self, daemon, go=False)
        self.wait_for_use(daemon, {"Fast": 1, "Slow": 1})
        self.assertIn("by best-fit", daemon.control("slice"))

    def test_a_tenant_may_be_placed_by_a_policy_of_its_own(self):
        daemon = self.start("gwtmin")
        Busy(self, daemon, go=False)
        self.wait_for_use(daemon, {"Fast": 1, "Slow": 0})
        daemon.control("tenant", "set", "local", "--placement", "gmin")
        Busy(self, daemon, go=False)
        self.wait_for_use(daemon, {"Fast": 1, "Slow": 1})
        self.assertIn("by gmin", daemon.control("slice"))
        daemon.control("tenant", "set", "local", "--placement", "default")
        Busy(self, daemon, go=False)
        self.wait_for_use(daemon, {"Fast": 2, "Slow": 1})
        self.assertIn("there is no placement best; known: static, ",
                      daemon.control("tenant", "set", "local", "--placement", "best", status=64))

    def test_a_host_whose_policy_is_none_does_not_start(self):
        for policy, said in ((f"{stack.BUILD}/lib/no_policy.so", "no_policy.so is no placement policy"),
                             (f"{stack.BUILD}/lib/none.so,mbf", "none.so: cannot open shared object file")):
            with self.subTest(policy), self.assertRaisesRegex(stack.StackError, said):
                self.start(policy)


@unittest.skipIf(network.why_not(), network.why_not())
class Pools(unittest.TestCase):
    """Three hosts, an etcd member on each; the GPUs are the third host's."""

    def setUp(self):
        self.hosts = make_hosts(self, 3, members=3)
        self.near = self.hosts.start(0, devices=0)
        self.middle = self.hosts.start(1, devices=0)
        self.far = self.hosts.start(2, devices=2)
        self.hosts.wait_for_nodes(0, 1, 2)

    def compute(self, *daemons):
        for daemon in daemons:
            done = run(daemon, "vector_add")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr + daemon.log_tail() + self.far.log_tail())

    def host_of(self, name):
        return self.hosts.NAMES.index(name)

    def wait_for_mapper_other_than(self, old, *daemons):
        wait_for(lambda: len({pool_of(daemon).get("mapper") for daemon in daemons} - {old, None}) == 1
                 and old not in {pool_of(daemon).get("mapper") for daemon in daemons},
                 f"a mapper other than {old}", *daemons)

    def used(self, daemon):
        return {gpu["gid"]: gpu.get("bound", 0) for gpu in json.loads(daemon.control("gpus", "-o", "json"))}

    def test_two_hosts_programs_spread_over_the_gpus_of_the_third(self):
        """Which GPU is decided by the mapper, with what programs of all hosts use in mind."""
        first, second = Busy(self, self.near), Busy(self, self.middle)
        wait_for(lambda: sorted(self.used(self.near).values()) == [1, 1], "one program on each GPU", self.near)
        for daemon in (self.near, self.middle):
            slices = json.loads(daemon.control("slice", "-o", "json"))
            self.assertEqual([one["application"] for one in slices], ["busy"])
            self.assertEqual({vgpu["node"] for vgpu in slices[0]["vgpus"]}, {"c"})
            self.assertIn("busy", daemon.control("slice"))
            place, _ = json.loads(daemon.control("place", "busy", "-o", "json"))
            self.assertEqual((place["node"], place["local"], place["vgpu"]), ("c", False, 0))
            self.assertIn("by gmin, score", place["why"])
        here = json.loads(self.far.control("place", "busy", "-o", "json"))
        self.assertEqual(sorted(place["why"] for place in here),
                         [f"for a program of node {name}, which the pool's mapper placed here" for name in "ab"])
        first.end()
        second.end()
        wait_for(lambda: sorted(self.used(self.near).values()) == [0, 0], "nobody uses a GPU", self.near)
        self.compute(self.near, self.middle)
        # What was measured is in the store, whoever will be the mapper.
        wait_for(lambda: "vector_add" in self.hosts.etcd.get(0, "consort/default/feedback"), "history is stored",
                 self.near, self.far)
        for daemon in (self.near, self.middle, self.far):
            self.assertEqual(daemon.stop(), 0, daemon.log_tail())

    def test_a_mapper_that_dies_has_a_successor_that_knows_all(self):
        mapper = pool_of(self.near)["mapper"]
        if mapper == "c":  # the GPUs' own host is to live on
            self.far.stop()
            self.wait_for_mapper_other_than("c", self.near, self.middle)
            self.far = self.hosts.start(2, devices=2)
            self.hosts.wait_for_nodes(0, 1, 2)
            mapper = pool_of(self.near)["mapper"]
        dies, lives = (self.near, self.middle) if mapper == "a" else (self.middle, self.near)
        program = Busy(self, lives)
        wait_for(lambda: sorted(self.used(lives).values()) == [0, 1], "the program counts", lives)
        before = self.used(lives)
        dies.signal(signal.SIGKILL)
        self.wait_for_mapper_other_than(mapper, lives, self.far)
        # Running programs do not notice, their places still count, and new programs are placed.
        wait_for(lambda: self.used(lives) == before, "the successor knows the program's place", lives, self.far)
        self.assertIsNone(program.process.poll())
        self.compute(lives)
        wait_for(lambda: {node["node"] for node in pool_of(lives)["nodes"]} == {"c", "b" if mapper == "a" else "a"},
                 "the dead host left", lives)

    def test_an_etcd_member_that_dies_is_not_missed(self):
        program = Busy(self, self.near)
        for member in (0, 2):
            with self.subTest(f"etcd member of host {member}"):
                self.hosts.etcd.kill(member)
                self.compute(self.near, self.middle)
                self.hosts.etcd.restart(member)
        self.assertIsNone(program.process.poll())
        self.hosts.wait_for_nodes(0, 1, 2)

    def test_a_host_that_is_cut_off_leaves_and_comes_back(self):
        program = Busy(self, self.near)
        self.hosts.network.cut(2)
        # The program's GPU is out of reach: it ends with an error, it does not hang.
        self.assertIn("cudaErrorDevicesUnavailable", program.wait_for_error(stack.PATIENCE_SECONDS))
        wait_for(lambda: {node["node"] for node in pool_of(self.near)["nodes"]} == {"a", "b"}, "c left", self.near)
        done = run(self.near, "vector_add")
        self.assertIn("cudaErrorNoDevice", done.stderr)
        # The host itself knows that it is alone, and its own programs go on.
        wait_for(lambda: not pool_of(self.far)["joined"], "c knows that it is out", self.far)
        self.assertIn("not in the pool", self.far.control("nodes"))
        self.compute(self.far)
        self.hosts.network.heal(2)
        self.hosts.wait_for_nodes(0, 1, 2)
        self.compute(self.near, self.middle)

    def test_without_a_majority_of_etcd_running_programs_go_on(self):
        program = Busy(self, self.near)
        for member in (1, 2):
            self.hosts.etcd.kill(member)
        wait_for(lambda: not pool_of(self.near)["joined"], "a knows that it is out of the pool", self.near)
        self.assertIsNone(program.process.poll())
        for member in (1, 2):
            self.hosts.etcd.restart(member, wait=False)
        self.hosts.wait_for_nodes(0, 1, 2)
        self.assertIsNone(program.process.poll())
        self.compute(self.near)

    def test_a_tenants_weight_in_the_store_holds_on_all_hosts(self):
        self.hosts.etcd.put(0, "consort/default/tenants/local", '{"weight":7}')
        wait_for(lambda: self.weight_of_next_program() == 7, "weight 7", self.near, self.far)

    def test_a_tenant_is_set_in_the_pool_for_all_hosts_while_a_program_runs(self):
        def local(daemon):
            tenants = json.loads(daemon.control("tenant", "list", "-o", "json"))
            return next((tenant for tenant in tenants if tenant["tenant"] == "local"), {})

        def wait_for_weights(*weights):
            wait_for(lambda: tuple(local(daemon).get("weight") for daemon in (self.near, self.far)) == weights,
                     f"weights {weights}", self.near, self.far)

        Busy(self, self.near)
        wait_for(lambda: local(self.far).get("weight") == 1, "a program on the host with GPUs", self.far)
        self.middle.control("tenant", "set", "local", "--weight", "5", "--pool")
        wait_for_weights(5, 5)
        self.assertIn("set by uid 0 of node b in the pool", self.far.control("events"))
        self.far.control("tenant", "set", "local", "--weight", "2")  # a host's own word comes first
        wait_for_weights(5, 2)
        self.far.control("tenant", "reset", "local")
        wait_for_weights(5, 5)
        self.near.control("tenant", "set", "local", "--max-launches-per-second", "50000", "--pool")
        wait_for(lambda: local(self.far).get("max_launches_per_second") == 50000, "a rate", self.far)
        self.assertEqual(local(self.far)["weight"], 5)
        self.far.control("tenant", "reset", "local", "--pool")
        wait_for(lambda: local(self.far) and local(self.far)["weight"] == 1
                 and "max_launches_per_second" not in local(self.far), "nothing in the pool", self.far)

    def weight_of_next_program(self):
        before = len(self.far.account())
        self.compute(self.near)
        return self.far.wait_for_account(lambda all: len(all) > before)[-1]["weight"]


@unittest.skipIf(network.why_not(), network.why_not())
class Documentation(unittest.TestCase):
    def test_the_commands_of_pool_md_make_a_pool(self):
        text = (stack.REPOSITORY / "docs" / "POOL.md").read_text("utf-8")
        block = text.split("## Start one", 1)[1].split("```", 2)[1]
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="pool-")))
        hosts = self.enterContext(network.Network(2))
        environment = dict(os.environ, PATH=f"{stack.BUILD / 'bin'}:{os.environ['PATH']}")
        said = {}
        for line in block.strip().splitlines():
            prompt, command = line.split("$ ", 1)
            host = Hosts.NAMES.index(prompt)
            argv = hosts.command(host, command.split())
            # Only where this machine's own consortd would be in the way, and what device it has.
            if command.startswith("consortd"):
                argv += ["--socket", f"{folder}/{prompt}.sock", "--vsock-port", "off", "--metrics", "off",
                         "--device", "cpu", "--devices", "1"]
            elif not command.startswith(("etcd", "consortctl pool")):
                argv += ["--admin-socket", f"{folder}/{prompt}.admin.sock"]
            if command.startswith(("etcd", "consortd")):
                with open(folder / "log", "ab") as log:
                    process = subprocess.Popen(argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                               stdout=subprocess.PIPE, stderr=log)
                self.addCleanup(process.communicate)
                self.addCleanup(process.kill)
                if command.startswith("consortd"):
                    self.assertEqual(process.stdout.readline(), b"consortd: ready\n", (folder / "log").read_text())
                continue

            def ran(argv=argv, command=command):
                done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
                said[command] = done.stdout
                self.assertEqual(done.returncode, 0, done.stderr)
                return True
            if command.startswith("consortctl pool"):
                ran()
            else:
                # The table has a line for each of both hosts, when both have joined and one is the mapper.
                def complete(ran=ran, command=command):
                    ran()
                    lines = said[command].splitlines()
                    return len(lines) == 3 and all(lines) and (command != "consortctl nodes" or
                                                               "mapper" in said[command])
                wait_for(complete, f"{command}: {said}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
