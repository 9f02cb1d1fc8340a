#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/monitoring_test.py: the rules and dashboards of packaging/ against a real consortd and a real Prometheus.

Every metric and label that they name exists, every expression is one that Prometheus takes, the rules load and are
evaluated, alerts fire when promtool's cases say, and the page's documentation lists every metric.
"""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

import prometheus
import stack
from initramfs import REPOSITORY
from vm import die_with_parent

RULES = REPOSITORY / "packaging" / "prometheus" / "consort.rules.yml"
DASHBOARDS = sorted((REPOSITORY / "packaging" / "grafana").glob("*.json"))
PATIENCE_SECONDS = 40


def expressions():
    """(where, expression) of every panel and variable."""
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text("utf-8"))
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                yield f"{path.name}: {panel['title']}", target["expr"]
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
                assert found, variable
                yield f"{path.name}: ${variable['name']}", f"count by ({found.group(2)}) ({found.group(1)})"


def filled(expression, tenant):
    """With the dashboards' variables as Grafana puts them."""
    for name, value in (("instance", ".*"), ("device", ".*"), ("tenant", tenant)):
        expression = expression.replace(f"${name}", value)
    assert "$" not in expression, expression
    return expression


class Monitoring(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("promtool") or not prometheus.PROGRAM:
            raise unittest.SkipTest("no prometheus on this machine (Debian: prometheus)")
        folder = tempfile.TemporaryDirectory(prefix="mon-")
        cls.addClassCleanup(folder.cleanup)
        folder = pathlib.Path(folder.name)
        cls.daemon = cls.enterClassContext(stack.Daemon(folder, device="cpu", metrics="127.0.0.1:0"))
        cls.program = subprocess.Popen(
            [stack.PROGRAMS / "busy", "1000", "300000", "4"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            env=cls.daemon.local_environment(), preexec_fn=die_with_parent)
        cls.addClassCleanup(cls.program.wait)
        cls.addClassCleanup(cls.program.kill)
        target = urllib.parse.urlparse(cls.daemon.metrics_url()).netloc
        cls.prometheus = cls.enterClassContext(prometheus.Prometheus(folder, target, RULES))
        cls.wait("the rules to have something to work with", lambda: cls.prometheus.value(
            'consort:tenant_share:ratio_rate1m{tenant="local"}') is not None)

    @classmethod
    def wait(cls, what, look):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not look():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {PATIENCE_SECONDS} s for {what}\n{cls.daemon.log_tail()}")
            time.sleep(0.2)

    def families(self):
        """Of /metrics: {name: type}."""
        with urllib.request.urlopen(self.daemon.metrics_url(), timeout=PATIENCE_SECONDS) as answer:
            return dict(re.findall(r"^# TYPE (\S+) (\S+)$", answer.read().decode(), re.MULTILINE))

    def known(self):
        """Names that a query may use: metrics, what histograms are made of, recording rules."""
        names = set(re.findall(r"- record: (\S+)", RULES.read_text("utf-8")))
        for name, kind in self.families().items():
            names |= {name + end for end in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
        return names

    def test_every_name_in_rules_and_dashboards_exists(self):
        known = self.known()
        texts = [(RULES.name, re.sub(r"(?m)^ *(#|summary:|description:|- alert:).*$", "", RULES.read_text("utf-8")))]
        texts += list(expressions())
        for where, text in texts:
            for name in re.findall(r"\bconsort[_:][a-z0-9_:]+", text):
                self.assertIn(name, known, where)

    def test_promtool_takes_the_rules_and_their_cases(self):
        for arguments in (["check", "rules", RULES], ["test", "rules", RULES.with_suffix(".test.yml")]):
            done = subprocess.run(["promtool", *arguments], cwd=RULES.parent, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("SUCCESS", done.stdout)

    def test_prometheus_evaluates_the_rules(self):
        self.wait("all rules to be evaluated", lambda: all(
            rule["health"] != "unknown" for group in self.prometheus.get("rules")["data"]["groups"]
            for rule in group["rules"]))
        rules = [rule for group in self.prometheus.get("rules")["data"]["groups"] for rule in group["rules"]]
        self.assertEqual(len(rules), RULES.read_text("utf-8").count("expr:"))
        for rule in rules:
            self.assertEqual((rule["name"], rule["health"], rule.get("lastError", "")), (rule["name"], "ok", ""))
        # A healthy host has no alert.
        self.assertEqual([alert["labels"]["alertname"] for alert in self.prometheus.get("alerts")["data"]["alerts"]
                          if alert["state"] == "firing"], [])
        self.assertAlmostEqual(self.prometheus.value('consort:tenant_share:ratio_rate1m{tenant="local"}'), 1)

    def test_every_panel_has_something_to_show(self):
        # What a host without faults has nothing of.
        quiet = ("Functions that programs lacked",)
        for where, expression in expressions():
            with self.subTest(where):
                samples = self.prometheus.query(filled(expression, "local"))
                if not where.endswith(quiet):
                    self.assertTrue(samples, expression)

    def test_dashboards_are_such_as_grafana_imports(self):
        self.assertEqual([path.name for path in DASHBOARDS], ["operator.json", "tenant.json"])
        identities = set()
        for path in DASHBOARDS:
            dashboard = json.loads(path.read_text("utf-8"))
            identities.add(dashboard["uid"])
            places = set()
            for panel in dashboard["panels"]:
                self.assertEqual(panel["datasource"]["uid"], "${datasource}")
                place = panel["gridPos"]
                self.assertLessEqual(place["x"] + place["w"], 24)
                cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                         for y in range(place["y"], place["y"] + place["h"])}
                self.assertFalse(cells & places, f"{panel['title']} covers another")
                places |= cells
            numbers = [panel["id"] for panel in dashboard["panels"]]
            self.assertEqual(len(numbers), len(set(numbers)))
        self.assertEqual(len(identities), len(DASHBOARDS))

    def test_the_documentation_lists_every_metric(self):
        page = "".join((REPOSITORY / "docs" / name).read_text("utf-8") for name in ("howto/metrics.md", "MEMORY.md"))
        told = set(re.findall(r"`(consort_[a-z_]+)`", page))
        self.assertEqual(told, set(self.families()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
