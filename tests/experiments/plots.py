# SPDX-License-Identifier: Apache-2.0
"""Plots of experiments and benchmarks, where python3-matplotlib is installed."""

import sys


def pyplot():
    """matplotlib.pyplot that draws into files; None, and says so, where there is none."""
    try:
        import matplotlib
    except ImportError:
        print("no plots: python3-matplotlib is not installed", file=sys.stderr)
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot as drawing
    return drawing


def grouped_bars(axes, groups, series, errors=None, rotation=60):
    """A group of bars each of `groups`, in it one of each of `series`: {label: a value a group}; `errors` likewise."""
    width = 0.84 / len(series)
    for i, (label, values) in enumerate(series.items()):
        axes.bar([j + (i - (len(series) - 1) / 2) * width for j in range(len(values))], values, width, label=label,
                 yerr=errors[label] if errors else None)
    axes.set_xticks(range(len(groups)), groups, rotation=rotation, ha="right" if rotation else "center")
