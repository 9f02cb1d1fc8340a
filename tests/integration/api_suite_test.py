# SPDX-License-Identifier: Apache-2.0
"""How the runs of the driver API suite are judged: see api_suite.py."""

import contextlib
import io
import unittest

import api_suite


def entry(*failures, result="COMPLETED", status="RUN"):
    return {"result": result, "status": status, "failures": [{"failure": text} for text in failures]}


class KnownFailures(unittest.TestCase):
    def test_a_line_may_be_about_some_channels_only(self):
        text = "# c\n\nA.X  everywhere\nA.Y (stream vm)  no shared memory\n"
        self.assertEqual(api_suite.read_known_failures(text, "rings"), {"A.X": "everywhere"})
        self.assertEqual(api_suite.read_known_failures(text, "vm"), {"A.X": "everywhere", "A.Y": "no shared memory"})

    def test_a_line_needs_a_reason_and_a_channel_that_exists(self):
        for text in ("A.X\n", "A.X (vm)\n"):
            with self.assertRaisesRegex(ValueError, "txt:1: no `Suite.Name  reason`"):
                api_suite.read_known_failures(text, "rings")
        with self.assertRaisesRegex(ValueError, "no channel 'wires'"):
            api_suite.read_known_failures("A.X (wires)  why\n", "rings")

    def test_the_committed_list_is_in_order(self):
        for channel in api_suite.CHANNELS:
            api_suite.read_known_failures(api_suite.KNOWN_FAILURES.read_text("utf-8"), channel)


    def test_what_the_cpu_device_cannot_do_is_not_known_of_others(self):
        known = sorted(api_suite.read_known_failures(api_suite.KNOWN_FAILURES.read_text("utf-8"), "rings"))
        failing = [({name: entry("no") for name in known} | {"A.X": entry()}, "")]
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(api_suite.report(failing, "rings", True), 0)
            self.assertEqual(api_suite.report(failing, "rings", True, "nvidia"), 1)
            self.assertEqual(api_suite.report([({"A.X": entry()}, "")], "rings", True, "nvidia"), 0)


class Judgement(unittest.TestCase):
    def judge(self, cases, known, complete=True):
        return api_suite.judge(cases, known, complete)

    def test_a_failure_is_a_problem_unless_known(self):
        passed, _, problems = self.judge({"A.X": entry("no"), "A.Y": entry("no"), "A.Z": entry()}, {"A.X": "why"})
        self.assertEqual(passed, ["A.Z"])
        self.assertEqual(problems, ["FAILED A.Y\nno"])

    def test_a_known_failure_that_passes_or_does_not_exist_is_a_problem(self):
        _, _, problems = self.judge({"A.X": entry()}, {"A.X": "why", "A.Y": "why"})
        self.assertEqual([problem.split(" ")[0] for problem in problems], ["PASSED", "A.Y"])
        self.assertEqual(self.judge({}, {"A.Y": "why"}, complete=False)[2], [])

    def test_what_did_not_run_is_neither(self):
        self.assertEqual(self.judge({"A.X": entry(status="NOTRUN"), "A.Y": entry(result="SKIPPED")}, {}),
                         ([], ["A.Y"], []))


if __name__ == "__main__":
    unittest.main()
