#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/turns_test.py: processes that take turns, and such that end or say nothing."""

import os
import pathlib
import sys
import tempfile
import unittest

import turns

ADDS = """
import hashlib, sys
assert sys.argv[1:] == ["turns"]
done = []
print("loading")
print("ready", flush=True)
for line in sys.stdin:
    done.append(line.strip())
    print(f"again {done[-1]} {len(done)}.5", flush=True)
print("digest", hashlib.sha256(repr(done).encode()).hexdigest())
"""


class Turns(unittest.TestCase):
    def taker(self, text):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        program = pathlib.Path(folder) / "program.py"
        program.write_text(text)
        return self.enterContext(turns.TurnTaker(sys.executable, program, dict(os.environ)))

    def test_takes_turns_and_says_what_was_computed(self):
        one, other = self.taker(ADDS), self.taker(ADDS)
        for process in (one, other):
            process.wait_until_ready()
        self.assertEqual([one.take("a"), other.take("a"), one.take("b")], [1.5, 1.5, 2.5])
        digests = [one.end(), other.end()]
        self.assertNotEqual(digests[0], digests[1])

    def test_a_turn_may_go_on_anywhere(self):
        process = self.taker("""
import os, time
print("ready", flush=True)
while True:
    work = input()
    time.sleep(0.1)
    print("again", work, f"{len(os.sched_getaffinity(0))}.5", flush=True)
""")
        process.wait_until_ready()
        for _ in range(3):
            self.assertEqual(process.take("a"), len(os.sched_getaffinity(0)) + 0.5)

    def test_a_program_that_ends_says_why(self):
        process = self.taker("import sys; print('ready', flush=True); input(); sys.exit('no such device')")
        process.wait_until_ready()
        with self.assertRaisesRegex(RuntimeError, "program.py ended with 1\nno such device"):
            process.take("a")

    def test_a_program_that_ended_before_its_turn_says_why(self):
        process = self.taker("print('ready', flush=True); raise SystemExit('out of memory')")
        process.wait_until_ready()
        while process._process.poll() is None:
            pass
        with self.assertRaisesRegex(RuntimeError, "program.py ended with 1\nout of memory"):
            process.take("a")

    def test_a_program_that_says_nothing_is_ended(self):
        limit, turns.ANSWER_SECONDS_MAX = turns.ANSWER_SECONDS_MAX, 0.5
        self.addCleanup(setattr, turns, "ANSWER_SECONDS_MAX", limit)
        process = self.taker("import time; time.sleep(300)")
        with self.assertRaisesRegex(RuntimeError, "ended with -9"):
            process.wait_until_ready()


if __name__ == "__main__":
    unittest.main()
