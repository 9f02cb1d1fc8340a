# SPDX-License-Identifier: Apache-2.0
"""tests/bench/sizes.py: how much a benchmark does where nobody says: a CPU device has little memory and is slow, and there it only shows
that all of it runs."""

from compare import has_gpu


def device_of(options):
    """nvidia or cpu, for --device."""
    return "nvidia" if options.device != "cpu" and has_gpu() else "cpu"


def add_arguments(parser, sizes):
    """`sizes`: {name: (what a GPU gets, what a CPU device gets, help)}."""
    for name, (large, small, text) in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(large),
                            help=f"{text}{', ' if text else ''}default {large}, of CPU devices {small}")


def fill(options, sizes):
    """Gives those that were not named what the device gets; returns the device."""
    device = device_of(options)
    for name, (large, small, _) in sizes.items():
        if getattr(options, name) is None:
            setattr(options, name, large if device == "nvidia" else small)
    return device
