# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/debian.py: the Debian packages of the build under test."""

import os
import shutil
import subprocess

import stack
from initramfs import REPOSITORY, Unavailable

PACKING_SECONDS = 300


def build_packages(to):
    """Makes the packages in the folder `to`, as ./dev package does, and returns name -> path of each."""
    for program in ("dpkg-buildpackage", "dh", "help2man"):
        if not shutil.which(program):
            raise Unavailable(f"no {program} on this machine (Debian: debhelper, help2man)")
    done = subprocess.run([REPOSITORY / "packaging" / "build_packages", stack.BUILD, to],
                          capture_output=True, text=True, timeout=PACKING_SECONDS, check=False,
                          # Compressing well takes longer than all the rest.
                          env=dict(os.environ, DPKG_DEB_COMPRESSOR_LEVEL="1"))
    if done.returncode != 0:
        raise AssertionError(f"the packages cannot be built:\n{done.stdout}{done.stderr}")
    return {path.name.split("_")[0]: path for path in to.glob("*.deb")}
