# SPDX-License-Identifier: Apache-2.0
"""tests/bench/turns.py: Python programs that are measured in turns, each in a process that stays.

Times of one such program differ by half from process to process, and drift. So processes that run in different ways
take turns, in another order each time, and each turn begins on a processor that is drawn anew: a busy process stays
where it is, and processors of a virtual machine differ by as much. Their programs (tests/gpu/pytorch_mlp.py, pytorch_gpt2.py, with the argument
`turns`) say "ready" when all is loaded that has to be, answer each line on their standard input, which names some work, with
"again WORK SECONDS", and say at its end a digest of all that they computed.
"""

import contextlib
import os
import random
import re
import subprocess
import tempfile
import threading
import time

ANSWER_SECONDS_MAX = 300
# By then it is awake; from then on the scheduler may move it.
PLACED_SECONDS = 0.002


def any_processor():
    """One of those that this process may use."""
    return random.choice(sorted(os.sched_getaffinity(0)))


class TurnTaker:
    """A process of such a program, for a with block; one that does not answer is ended."""

    def __init__(self, python, program, environment):
        """Starts it. `program`: its path."""
        self._name = program.name
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen([python, program, "turns"], env=environment, text=True, stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=self._log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(BrokenPipeError):
                file.close()

    def _await(self, pattern):
        late = threading.Timer(ANSWER_SECONDS_MAX, self._process.kill)
        late.start()
        try:
            for line in self._process.stdout:
                found = re.match(pattern, line)
                if found:
                    return found
        finally:
            late.cancel()
        self._log.seek(0)
        raise RuntimeError(f"{self._name} ended with {self._process.wait()}\n{self._log.read()[-4000:]}")

    def wait_until_ready(self):
        self._await(r"ready$")

    def _let_run_on(self, processors):
        """Its main thread, from when it wakes on."""
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(self._process.pid, processors)

    def take(self, work, processor=None):
        """Seconds. `processor`: where it begins; None: on any."""
        self._let_run_on({any_processor() if processor is None else processor})
        with contextlib.suppress(BrokenPipeError):  # one that has ended does not answer, and is asked why
            self._process.stdin.write(work + "\n")
            self._process.stdin.flush()
        time.sleep(PLACED_SECONDS)
        self._let_run_on(os.sched_getaffinity(0))
        return float(self._await(r"again \S+ ([\d.]+)$").group(1))

    def end(self):
        """The digest."""
        self._process.stdin.close()
        return self._await(r"digest (\w+)$").group(1)
