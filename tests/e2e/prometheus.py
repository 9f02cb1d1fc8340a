# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/prometheus.py: a real Prometheus that reads one target every second."""

import http
import json
import pathlib
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from vm import die_with_parent

PROGRAM = shutil.which("prometheus")
PATIENCE_SECONDS = 30


class Prometheus:
    """For a with block. `target`: HOST:PORT. `rules`: a file of rules."""

    def __init__(self, folder, target, rules=None):
        self._folder = pathlib.Path(folder)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = "127.0.0.1:%d" % free.getsockname()[1]
        config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                  "scrape_configs": [{"job_name": "consort", "static_configs": [{"targets": [target]}]}]}
        if rules:
            config["rule_files"] = [str(rules)]
        self._config = self._folder / "prometheus.yml"
        self._config.write_text(json.dumps(config), "ascii")

    def __enter__(self):
        with open(self._folder / "prometheus.log", "wb") as log:
            self._process = subprocess.Popen(
                [PROGRAM, f"--config.file={self._config}", f"--storage.tsdb.path={self._folder}/tsdb",
                 f"--web.listen-address={self.address}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=die_with_parent)
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def get(self, path, **parameters):
        """What the HTTP API answers; None while it is not up. A refusal is an answer, with its "error".

        A server that listens and is not ready yet says 503, in plain text (Prometheus, "Management API")."""
        url = f"http://{self.address}/api/v1/{path}?" + urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return None if error.code == http.HTTPStatus.SERVICE_UNAVAILABLE else json.load(error)
        except OSError:
            return None

    def query(self, expression):
        """The samples of an instant query, or None while Prometheus is not up."""
        answer = self.get("query", query=expression)
        if answer is None:
            return None
        if answer["status"] != "success":
            raise AssertionError(f"{expression}: {answer['error']}")
        return answer["data"]["result"]

    def value(self, expression):
        """The first sample's, or None."""
        samples = self.query(expression)
        return float(samples[0]["value"][1]) if samples else None
