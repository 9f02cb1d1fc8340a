#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/full_host.py: how long a consortd with 64 devices and 1,000 applications lets operators wait.

    tests/bench/full_host.py [--build DIR] [--runs N]

The daemon is the real one, its workers and applications are simulated (tests/load/README.md) and report as always while
it is asked. Each time is a whole request as its asker sees it: a new connection for metrics and the page's data, a process
for consortctl. `page, between answers` is the time between two answers that the page in a headless Chromium has shown; it
asks once a second. Beside the wall clock stands the processor's work for it, of the daemon and of consortctl, which other
load hardly changes.

Exit status 0: every answer was whole.
"""

import argparse
import datetime
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from build_kind import build_kind

HERE = pathlib.Path(__file__).resolve().parent
LIMITS_MS = {"GET /metrics": 100, "consortctl status": 200}
SETTLE_SECONDS = 3


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent.parent / "build" / "release")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--benchmark_out", type=pathlib.Path, help="file for all values, as JSON")
    parser.add_argument("--benchmark_out_format", choices=("json",), default="json")
    return parser.parse_args()


def cpu_ms(pid):
    """User and system time of a process so far."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1e6


def measure(pid, runs, ask):
    """[wall ms], and the processor time of one: of the daemon, less what it works anyway, and of programs that asked."""
    def of_children():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return 1000 * (used.ru_utime + used.ru_stime)

    begin, before = time.monotonic(), cpu_ms(pid)
    time.sleep(1)
    idle = (cpu_ms(pid) - before) / (time.monotonic() - begin)
    walls = []
    start, before, children = time.monotonic(), cpu_ms(pid), of_children()
    for _ in range(runs):
        begin = time.monotonic()
        ask()
        walls.append(1000 * (time.monotonic() - begin))
    worked = cpu_ms(pid) - before - idle * (time.monotonic() - start) + of_children() - children
    return walls, max(0.0, worked / runs)


def page_times(browser, url, runs):
    """ms between the answers that the page showed, and ms that one showing takes, with all rows."""
    with browser.Browser() as page:
        page.look(1280, 900, "light")
        page.open(url)
        page.wait("document.body && Number(document.body.dataset.answers) > 2", "two answers", 60)
        page.run('for (const id of ["sessions", "tenants", "events"]) document.querySelector("#more-" + id).click()')
        page.run("window.shown = []; new MutationObserver(() => window.shown.push(performance.now()))"
                 '.observe(document.body, {attributeFilter: ["data-answers"]})')
        page.wait(f"window.shown.length > {runs}", "answers", 60 + 5 * runs)
        between = page.run("window.shown.slice(1).map((at, i) => at - window.shown[i])")
        showing = page.run(f"[...Array({runs})].map(() => {{ const begin = performance.now(); show();"
                           " document.body.offsetHeight; return performance.now() - begin; })")
        if page.errors:
            raise RuntimeError(f"the page complained: {page.errors}")
    return between, showing


def row(name, walls, worked=None):
    ordered = sorted(walls)
    late = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return (f"| {name} | {statistics.median(walls):.1f} | {late:.1f} | {ordered[-1]:.1f} "
            f"| {'' if worked is None else f'{worked:.1f}'} | {LIMITS_MS.get(name, '')} |")


def main():
    arguments = parse_arguments()
    os.environ["CONSORT_BUILD"] = str(arguments.build.resolve())
    sys.path.insert(0, str(HERE.parent / "e2e"))
    import browser  # which read CONSORT_BUILD
    import stack
    from full_host import APPLICATIONS, DEVICES, full_host

    def fetch(path, whole):
        with urllib.request.urlopen(daemon.page_url() + path, timeout=60) as answer:
            text = answer.read().decode()
        if whole not in text:
            raise RuntimeError(f"/{path} lacks {whole}")

    def control(*words):
        done = subprocess.run([stack.BUILD / "bin" / "consortctl", "--admin-socket", daemon.admin_socket, *words],
                              capture_output=True, text=True, timeout=60)
        if done.returncode != 0 or done.stdout.count("python3-") < APPLICATIONS:
            raise RuntimeError(f"consortctl {words}: {done.stderr or 'not all are there'}")

    open_now = f'"sessions_open":{APPLICATIONS}'
    asked = {"GET /metrics": lambda: fetch("metrics", "consort_queueing_delay_seconds_sum"),
             "page's data, when opened": lambda: fetch("api/v1/page", open_now),
             "page's data, what is new": lambda: fetch("api/v1/page/1000000/1000000/1000000/all/", open_now),
             "consortctl status": lambda: control("status"),
             "consortctl top --once": lambda: control("top", "--once")}
    with tempfile.TemporaryDirectory(prefix="full-") as folder, full_host(folder) as host:
        daemon = host.daemon
        time.sleep(SETTLE_SECONDS)
        taken = {name: measure(daemon.pid, arguments.runs, ask) for name, ask in asked.items()}
        pages = page_times(browser, daemon.page_url(), arguments.runs) if browser.PROGRAM else None
        begin, before = time.monotonic(), cpu_ms(daemon.pid)
        time.sleep(2)
        idle = (cpu_ms(daemon.pid) - before) / (time.monotonic() - begin) / 10

    today = datetime.date.today().isoformat()
    if arguments.benchmark_out:
        arguments.benchmark_out.write_text(json.dumps({"date": today, "taken": taken, "page": pages, "idle_percent": idle},
                                                      indent=1) + "\n")
    print(f"{today}, {build_kind(arguments.build)}, {APPLICATIONS} applications on {DEVICES} devices, {arguments.runs} runs, ms; "
          f"load of this machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| what | median | 95 % | most | processor | at most |\n| --- | --- | --- | --- | --- | --- |")
    for name, (walls, worked) in taken.items():
        print(row(name, walls, worked))
    if pages:
        print(row("page, between answers", pages[0]))
        print(row("page, showing one with all rows", pages[1]))
    print(f"\nUnasked, consortd takes {idle:.1f} % of a core.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"full_host: {error}", file=sys.stderr)
        sys.exit(1)
