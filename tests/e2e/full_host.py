# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/full_host.py: a consortd with 64 devices and 1,000 applications of 50 tenants, which are simulated
(tests/load/README.md); all else is the build's."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess

import stack
from vm import die_with_parent

DEVICES = 64
TENANTS = 50
APPLICATIONS = 1000
NAMES = 20  # as load_applications calls them
WEIGHTS = (1, 2, 3, 4)


@dataclasses.dataclass
class FullHost:
    daemon: stack.Daemon
    load: subprocess.Popen  # with it the applications end


@contextlib.contextmanager
def full_host(folder):
    """A FullHost whose applications are open."""
    folder = pathlib.Path(folder)
    programs = folder / "bin"
    programs.mkdir()
    daemon = programs / "consortd"
    # It looks for its worker beside itself, as the kernel names it: a symbolic link would not do.
    try:
        os.link(stack.BUILD / "bin" / "consortd", daemon)
    except OSError:
        shutil.copy(stack.BUILD / "bin" / "consortd", daemon)
    (programs / "consort-worker").symlink_to(stack.BUILD / "bin" / "load_worker")
    names = [f"tenant-{number}" for number in range(TENANTS)]
    tenants = folder / "tenants.toml"
    tenants.write_text("".join(f'[[tenant]]\nname = "{name}"\nweight = {WEIGHTS[number % len(WEIGHTS)]}\nsocket = "{folder}/{name}.sock"\n'
                               for number, name in enumerate(names)), "utf-8")
    with stack.Daemon(folder, device="cpu", metrics="127.0.0.1:0", binary=daemon,
                      arguments=("--devices", str(DEVICES), "--tenants", tenants)) as running:
        load = subprocess.Popen(
            [stack.BUILD / "bin" / "load_applications", str(APPLICATIONS), str(DEVICES), *(folder / f"{name}.sock" for name in names)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        try:
            if load.stdout.readline() != "ready\n":
                raise stack.StackError(load.stderr.read() + running.log_tail())
            yield FullHost(running, load)
        finally:
            load.kill()
            load.communicate()
