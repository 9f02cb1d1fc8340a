#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The experiments of docs/EXPERIMENTS.md, in the simulator.

  run.py --sim build/release/bin/consort-sim --out FOLDER [--quick] [--seeds N] [--demand TIMES]

Writes results.csv (a line a pair, variant, load and seed), summary.md (the tables) and, where python3-matplotlib is
installed, plots. Speedup is T(CUDA) / T(variant), time from arrival to end, the mean over the applications of a program
and then over the two programs of a pair; CUDA is `static` with a context an application. With --demand all programs' kernels
use so many times the memory bandwidth.
"""

import argparse
import collections
import concurrent.futures
import csv
import dataclasses
import os
import pathlib
import statistics
import subprocess
import tempfile

import plots
import workloads

CUDA = ("cuda", dict(packed=False, policy="static"))
FEEDBACK = ("rtf", "guf", "dtf", "mbf")
BATCHES = (4, 16, 1024)  # the last: as many as there are
THREADS = (1, 2, 4)


def variants():
    """name: what it is, in the order of the tables."""
    table = dict([CUDA])
    for policy in ("grr", "gmin", "gwtmin"):
        table[f"{policy}-process"] = dict(packed=False, policy=policy)
        table[f"{policy}-packed"] = dict(packed=True, policy=policy)
    for scheduler in ("tfs", "las", "ps"):
        table[f"gwtmin-{scheduler}-process"] = dict(packed=False, policy="gwtmin", scheduler=scheduler)
        table[f"gwtmin-{scheduler}-packed"] = dict(packed=True, policy="gwtmin", scheduler=scheduler)
    for policy in FEEDBACK:
        table[f"{policy}-process"] = dict(packed=False, policy="gwtmin", feedback_policy=policy)
        table[f"{policy}-packed"] = dict(packed=True, policy="gwtmin", feedback_policy=policy)
    mbf = dict(packed=True, policy="gwtmin", feedback_policy="mbf")
    table["mbf-error-packed"] = dict(mbf, bandwidth_error=0.5)
    table["mbf-unmeasured-packed"] = dict(mbf, bandwidth_measured=False)
    return table


def simulate(sim, text, applications):
    """The simulator's summary; where `applications`, also the times of every application by (stream, arrival)."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "scenario.toml")
        path.write_text(text)
        ended = pathlib.Path(folder, "ended.csv")
        command = [sim, "pool", str(path), *(["--applications", str(ended)] if applications else [])]
        summary = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        times = {}
        if applications:
            with open(ended, newline="") as file:
                for row in csv.DictReader(file):
                    key = (int(row["stream"]), row["arrived_s"])
                    times[key] = float(row["ended_s"]) - float(row["arrived_s"])
        return summary, times


def speedup(cuda, variant):
    """Both by (stream, arrival): arrivals do not depend on the variant."""
    if cuda.keys() != variant.keys():
        raise RuntimeError("two runs of one scenario do not have the same arrivals")
    by_stream = collections.defaultdict(list)
    for key, time in cuda.items():
        by_stream[key[0]].append(time / variant[key])
    return statistics.fmean(statistics.fmean(each) for each in by_stream.values())


def run_pair(sim, pair, nodes, load, seed, long_count):
    """{variant: speedup} of one pair."""
    results = {}
    cuda = None
    for name, what in variants().items():
        _, times = simulate(sim, workloads.scenario(pair, nodes, load=load, seed=seed, long_count=long_count, **what), True)
        if name == CUDA[0]:
            cuda = times
        results[name] = speedup(cuda, times)
    return results


def fairness(sim, pair, packed, scheduler):
    summary, _ = simulate(sim, workloads.fairness_scenario(pair, packed=packed, scheduler=scheduler), False)
    line = next(line for line in summary.splitlines() if line.startswith("Jain"))
    return float(line.split()[2])


def apart(sim, pair, seed, long_count, scheduler, batches_in_flight, threads):
    """How many times as fast applications are under the scheduler as without one, packed, on one node, load 2."""
    pair = [dataclasses.replace(program, threads=threads) for program in pair]
    what = dict(packed=True, policy="gwtmin", load=2.0, seed=seed, long_count=long_count)
    _, none = simulate(sim, workloads.scenario(pair, [workloads.NODE_A], **what), True)
    _, times = simulate(sim, workloads.scenario(pair, [workloads.NODE_A], scheduler=scheduler,
                                                batches_in_flight=batches_in_flight, **what), True)
    return speedup(none, times)


def run_apart(options, pool, pairs, long_count):
    """{(scheduler, batches in flight, threads): [the mean over pairs of each seed]}"""
    jobs = {(scheduler, batches, threads, seed): [pool.submit(apart, options.sim, pair, seed, long_count, scheduler, batches, threads)
                                                  for pair in pairs]
            for scheduler in ("las", "ps") for batches in BATCHES for threads in THREADS
            for seed in range(1, options.seeds + 1)}
    table = collections.defaultdict(list)
    for (scheduler, batches, threads, _), each in jobs.items():
        table[(scheduler, batches, threads)].append(statistics.fmean(job.result() for job in each))
    return table


def apart_summary(table):
    lines = ["### LAS and PS against no scheduling, packed", "",
             "| policy, batches in flight | " + " | ".join(f"{threads} thread{'s' * (threads > 1)}" for threads in THREADS) + " |",
             "|---|" + "---|" * len(THREADS)]
    for scheduler, batches in dict.fromkeys(key[:2] for key in table):
        cells = " | ".join(cell(table[(scheduler, batches, threads)]) for threads in THREADS)
        lines.append(f"| {scheduler}, {batches} | {cells} |")
    return "\n".join(lines) + "\n"


def cell(values):
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.3f}"


def run(options):
    pairs = [tuple(program.with_demand(options.demand) for program in pair)
             for pair in (workloads.PAIRS[::5] if options.quick else workloads.PAIRS)]
    loads = [2.0] if options.quick else [1.0, 2.0, 4.0]
    places = {"one node": [workloads.NODE_A], "two nodes": [workloads.NODE_A, workloads.NODE_B]}
    long_count = 15 if options.quick else 40
    rows = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        jobs = {}
        for place, nodes in places.items():
            for load in loads:
                for seed in range(1, options.seeds + 1):
                    for pair in pairs:
                        jobs[(place, load, seed, pair)] = pool.submit(run_pair, options.sim, pair, nodes, load, seed,
                                                                      long_count)
        for (place, load, seed, pair), job in jobs.items():
            for variant, value in job.result().items():
                rows.append((place, load, seed, f"{pair[0].name}-{pair[1].name}", variant, value))
        fair = {}
        for pair in pairs:
            for packed in (False, True):
                for scheduler in ("none", "tfs"):
                    name = f"{scheduler}-{'packed' if packed else 'process'}"
                    fair[(f"{pair[0].name}-{pair[1].name}", name)] = pool.submit(fairness, options.sim, pair, packed,
                                                                                 scheduler)
        fair = {key: job.result() for key, job in fair.items()}
        return rows, fair, run_apart(options, pool, pairs, long_count)


def means(rows):
    """{(place, variant): {load: (mean over pairs and seeds, standard deviation of the seeds' means)}}"""
    values = collections.defaultdict(lambda: collections.defaultdict(lambda: collections.defaultdict(list)))
    for place, load, seed, _, variant, value in rows:
        values[(place, variant)][load][seed].append(value)
    table = collections.defaultdict(dict)
    for key, by_load in values.items():
        for load, by_seed in by_load.items():
            of_seeds = [statistics.fmean(each) for each in by_seed.values()]
            spread = statistics.stdev(of_seeds) if len(of_seeds) > 1 else 0.0
            table[key][load] = (statistics.fmean(of_seeds), spread)
    return table


def beside_mbf(rows):
    """{variant: [its speedup over that of mbf-packed, of each seed: the geometric mean over places and loads]}"""
    values = collections.defaultdict(list)
    for place, load, seed, _, variant, value in rows:
        values[(variant, seed, place, load)].append(value)
    means_of = {key: statistics.fmean(each) for key, each in values.items()}
    ratios = collections.defaultdict(list)
    for (variant, seed, place, load), value in means_of.items():
        ratios[(variant, seed)].append(value / means_of[("mbf-packed", seed, place, load)])
    table = collections.defaultdict(list)
    for (variant, _), each in ratios.items():
        table[variant].append(statistics.geometric_mean(each))
    return table


def beside_summary(table):
    lines = ["### Against mbf-packed, mean over places and loads", "", "| variant | its speedup / that of mbf |", "|---|---|"]
    lines += [f"| {variant} | {cell(values)} |" for variant, values in table.items() if variant.endswith("-packed")]
    return "\n".join(lines) + "\n"


def summary(table, fair):
    loads = sorted(next(iter(table.values())))
    lines = []
    for place in dict.fromkeys(place for place, _ in table):
        lines += [f"### Speedup over CUDA, {place}", "",
                  "| variant | " + " | ".join(f"load {load:g}" for load in loads) + " |",
                  "|---|" + "---|" * len(loads)]
        for (where, variant), by_load in table.items():
            if where == place:
                cells = " | ".join(f"{by_load[load][0]:.2f} ± {by_load[load][1]:.2f}" for load in loads)
                lines.append(f"| {variant} | {cells} |")
        lines.append("")
    lines += ["### Jain's fairness of two tenants on one GPU", "", "| variant | mean over pairs | least |", "|---|---|---|"]
    for variant in dict.fromkeys(variant for _, variant in fair):
        values = [value for (_, each), value in fair.items() if each == variant]
        lines.append(f"| {variant} | {statistics.fmean(values):.3f} | {min(values):.3f} |")
    return "\n".join(lines) + "\n"


def plot(table, fair, out):
    pyplot = plots.pyplot()
    if pyplot is None:
        return
    for place in dict.fromkeys(place for place, _ in table):
        variants_here = [variant for where, variant in table if where == place]
        loads = sorted(table[(place, variants_here[0])])
        figure, axes = pyplot.subplots(figsize=(11, 4.5), constrained_layout=True)
        means, spreads = ({f"load {load:g}": [table[(place, variant)][load][i] for variant in variants_here] for load in loads}
                          for i in range(2))
        plots.grouped_bars(axes, variants_here, means, spreads)
        axes.set_ylabel("speedup over CUDA")
        axes.set_title(place)
        axes.legend()
        figure.savefig(out / f"speedup_{place.replace(' ', '_')}.svg")
        pyplot.close(figure)
    names = list(dict.fromkeys(variant for _, variant in fair))
    figure, axes = pyplot.subplots(figsize=(6, 4), constrained_layout=True)
    axes.boxplot([[value for (_, each), value in fair.items() if each == name] for name in names])
    axes.set_xticks(range(1, len(names) + 1), names)
    axes.set_ylabel("Jain's fairness")
    figure.savefig(out / "fairness.svg")
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sim", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--demand", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows, fair, tried_apart = run(options)
    with open(options.out / "results.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["place", "load", "seed", "pair", "variant", "value"])
        writer.writerows(rows)
        writer.writerows(("one GPU", "", 1, pair, f"fairness {variant}", value) for (pair, variant), value in fair.items())
    table = means(rows)
    text = "\n".join([summary(table, fair), beside_summary(beside_mbf(rows)), apart_summary(tried_apart)])
    (options.out / "summary.md").write_text(text)
    print(text)
    plot(table, fair, options.out)


if __name__ == "__main__":
    main()
