#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The experiments on a few short workloads: they run, repeat themselves, and what they are about comes out."""

import os
import pathlib
import tempfile
import unittest

import run
import workloads

SIM = os.environ["CONSORT_SIM"]
PAIRS = [(workloads.LONG[0], workloads.SHORT[0]), (workloads.LONG[4], workloads.SHORT[1]),
         (workloads.LONG[5], workloads.SHORT[3])]


def speedups(pair, nodes):
    return run.run_pair(SIM, pair, nodes, load=2.0, seed=1, long_count=8)


class Experiments(unittest.TestCase):
    def test_packing_beats_a_context_an_application_under_every_policy(self):
        for nodes in ([workloads.NODE_A], [workloads.NODE_A, workloads.NODE_B]):
            sums = {}
            for pair in PAIRS:
                for variant, value in speedups(pair, nodes).items():
                    sums[variant] = sums.get(variant, 0) + value
            self.assertAlmostEqual(sums["cuda"], len(PAIRS))
            for variant in sums:
                if variant.endswith("-process"):
                    packed = variant.replace("-process", "-packed")
                    self.assertGreater(sums[packed], sums[variant], variant)
                    self.assertGreater(sums[variant], sums["cuda"], variant)

    def test_repeats_itself(self):
        self.assertEqual(speedups(PAIRS[0], [workloads.NODE_A]), speedups(PAIRS[0], [workloads.NODE_A]))

    def test_fair_shares_are_fair_where_the_order_of_arrival_is_not(self):
        pair = (workloads.LONG[0], workloads.SHORT[0])
        self.assertLess(run.fairness(SIM, pair, False, "none"), 0.95)
        for packed in (False, True):
            self.assertGreater(run.fairness(SIM, pair, packed, "tfs"), 0.99)

    def test_threads_and_batches_are_tried_apart(self):
        # As many batches as there are, one thread: the order in which they start is all that a scheduler can change.
        pair = PAIRS[0]
        bounded, free = (run.apart(SIM, pair, 1, 8, "ps", batches, 1) for batches in (1, 1024))
        self.assertLess(bounded, 0.95)
        self.assertGreater(free, bounded)

    def test_demand_is_bandwidth_up_to_what_the_gpu_has(self):
        scan = workloads.LONG[1].with_demand(0.5)
        self.assertEqual(scan.gigabytes_a_second, 60)
        self.assertFalse(scan.bound_by_memory())
        self.assertTrue(workloads.LONG[1].bound_by_memory())
        self.assertEqual(workloads.LONG[1].with_demand(2).gigabytes_a_second, workloads.MODELS["Tesla C2050"][2])

    def test_the_comparison_with_mbf_is_within_a_seed(self):
        rows = [(place, load, seed, pair, variant, value * seed * load) for place in ("a", "b") for load in (1.0, 2.0) for seed in (1, 2)
                for pair in ("p", "q") for variant, value in (("mbf-packed", 2.0), ("gmin-packed", 1.5), ("cuda", 1.0))]
        table = run.beside_mbf(rows)
        self.assertEqual([round(each, 9) for each in table["gmin-packed"]], [0.75, 0.75])
        text = run.beside_summary(table)
        self.assertIn("| gmin-packed | 0.750 ± 0.000 |", text)
        self.assertNotIn("cuda", text)

    def test_the_tables_have_every_variant(self):
        rows = [("one node", 1.0, seed, "A-B", variant, value + seed) for seed in (1, 2)
                for value, variant in enumerate(run.variants())]
        table = run.means(rows)
        self.assertEqual(table[("one node", "cuda")][1.0][0], 1.5)
        text = run.summary(table, {("A-B", "tfs-packed"): 0.75, ("C-D", "tfs-packed"): 0.25})
        for variant in run.variants():
            self.assertIn(f"| {variant} |", text)
        self.assertIn("| tfs-packed | 0.500 | 0.250 |", text)
        with tempfile.TemporaryDirectory() as folder:
            run.plot(table, {("A-B", "tfs-packed"): 0.75}, pathlib.Path(folder))

    def test_every_scenario_is_one_that_the_simulator_takes(self):
        for pair in workloads.PAIRS:
            summary, times = run.simulate(SIM, workloads.scenario(pair, [workloads.NODE_A], packed=True, policy="gmin",
                                                                  load=1.0, long_count=2), True)
            self.assertIn("0 never placed", summary)
            self.assertGreaterEqual(len(times), 4)


if __name__ == "__main__":
    unittest.main()
