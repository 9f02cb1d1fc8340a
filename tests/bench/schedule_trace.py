# SPDX-License-Identifier: Apache-2.0
"""tests/bench/schedule_trace.py: what a scheduler's trace (policies/schedule/trace.h) says of each application."""

import dataclasses


@dataclasses.dataclass
class Told:
    """Times in seconds, from the application's joining (or the trace's begin) to its leaving (or the last event)."""
    device: float = 0.0   # device time it was charged
    alone: float = 0.0    # what that work would have taken alone, as the worker took it to
    waiting: float = 0.0  # a batch of it waited, and none was in flight
    running: float = 0.0  # batches of it were in flight
    away: float = 0.0     # neither


class _Application:
    def __init__(self, now):
        self.told = Told()
        self._since = now
        self._waits = False
        self._in_flight = 0

    def step(self, now, event):
        passed = (now - self._since) / 1e9
        if self._in_flight:
            self.told.running += passed
        elif self._waits:
            self.told.waiting += passed
        else:
            self.told.away += passed
        self._since = now
        if event == "wait":
            self._waits = True
        elif event == "withdraw":
            self._waits = False
        elif event == "start":
            self._waits = False
            self._in_flight += 1
        elif event == "finish":
            self._in_flight -= 1


def read(text):
    """[Told] of all applications that the trace knows, in the order of their numbers; a number that is used again counts
    as another. ValueError: not a trace."""
    ended, present = [], {}
    now = 0
    for line in text.splitlines():
        event, *rest = line.split()
        if event in ("policy", "weight"):
            continue
        now = int(rest[0])
        if event == "choose":
            continue
        number = int(rest[1])
        if event == "join":
            present[number] = _Application(now)
            ended.append((number, present[number]))
            continue
        application = present[number]
        application.step(now, event)
        if event == "charge":
            application.told.device += int(rest[2]) / 1e9
            application.told.alone += int(rest[3]) / 1e9
        elif event == "leave":
            del present[number]
        elif event not in ("wait", "withdraw", "start", "finish", "expect"):
            raise ValueError(f"no trace: {line!r}")
    for application in present.values():
        application.step(now, "")
    return [application.told for _, application in sorted(ended, key=lambda pair: pair[0])]
