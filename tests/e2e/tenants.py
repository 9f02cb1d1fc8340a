# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/tenants.py: tenants with programs that keep the CPU device busy, a UNIX socket a tenant."""

import contextlib
import dataclasses
import subprocess

import stack


@dataclasses.dataclass
class Tenant:
    name: str
    weight: int
    rounds: int  # of each kernel: its length
    sync_every: int = 0
    works: bool = True  # else it does nothing once the others begin
    more: str = ""  # lines of its own in tenants.toml


def write_file(folder, tenants, scheduler):
    """tenants.toml, with the tenants' sockets beside it; its path."""
    path = f"{folder}/tenants.toml"
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'scheduler = "{scheduler}"\n')
        for tenant in tenants:
            file.write(f'[[tenant]]\nname = "{tenant.name}"\nweight = {tenant.weight}\n'
                       f'socket = "{folder}/{tenant.name}.sock"\n{tenant.more}\n')
    return path


def daemon_with(folder, tenants, arguments=(), **options):
    """consortd on CPU devices with a file of these tenants and a state file; options as of stack.Daemon."""
    path = write_file(folder, tenants, "tfs")
    return stack.Daemon(folder, device="cpu", arguments=("--tenants", path, "--state", folder / "state.json", *arguments),
                        **options)


@contextlib.contextmanager
def busy_programs(daemon, folder, tenants, may_end=False):
    """tests/programs/busy for each tenant: all connected, then all with work, until the block ends."""
    programs = [subprocess.Popen(
        [stack.PROGRAMS / "busy", "1000", str(tenant.rounds), str(tenant.sync_every), "wait"],
        env=daemon.local_environment(f"{folder}/{tenant.name}.sock"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True) for tenant in tenants]
    try:
        for program in programs:
            line = program.stdout.readline()
            if line.strip() != "ready":
                raise AssertionError(line + program.stdout.read() + daemon.log_tail())
        for tenant, program in zip(tenants, programs):
            if tenant.works:
                program.stdin.write("go\n")
                program.stdin.flush()
        yield
        ended = [program.poll() for program in programs if program.poll() is not None]
        if ended and not may_end:
            raise AssertionError(f"programs ended by themselves: {ended}\n{daemon.log_tail()}")
    finally:
        for program in programs:
            program.kill()
        for program in programs:
            program.communicate()
