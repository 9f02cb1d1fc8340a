# SPDX-License-Identifier: Apache-2.0
"""tests/bench/sizes.py: how much a benchmark does where nobody says: a CPU device has little memory and is slow, and there it only shows
that all of it runs."""

import argparse
import pathlib

from compare import has_gpu

BUILD = pathlib.Path(__file__).resolve().parent.parent.parent / "build" / "release"


def device_of(options):
    """nvidia or cpu, for --device."""
    return "nvidia" if options.device != "cpu" and has_gpu() else "cpu"


def arguments(description, sizes):
    """The parser of what `./dev bench` and a person give a script of here; `sizes`: {name: (what a GPU gets, what a CPU device gets, help)}."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=BUILD)
    parser.add_argument("--device", choices=("auto", "nvidia", "cpu"), default="auto")
    parser.add_argument("--benchmark_out", type=pathlib.Path, help="file for all values, as JSON")
    parser.add_argument("--benchmark_out_format", choices=("json",), default="json")
    for name, (large, small, text) in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(large),
                            help=f"{text}{', ' if text else ''}default {large}, of CPU devices {small}")
    return parser


def fill(options, sizes):
    """Gives those that were not named what the device gets; returns the device."""
    device = device_of(options)
    for name, (large, small, _) in sizes.items():
        if getattr(options, name) is None:
            setattr(options, name, large if device == "nvidia" else small)
    return device
