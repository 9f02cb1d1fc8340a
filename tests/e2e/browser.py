# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/browser.py: a headless Chromium, spoken to over its DevTools pipe.

One page. Every error that the page logs or throws is kept, so that a test can require that there is none. Source of the
protocol: https://chromedevtools.github.io/devtools-protocol/ (messages are JSON, each ended by a NUL byte, on the
browser's descriptors 3 and 4).
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from vm import die_with_parent

START_SECONDS = 60
ANSWER_SECONDS = 30
PROGRAM = shutil.which("chromium")


class BrowserError(Exception):
    """The browser did not do what it must."""


class Browser:
    """One Chromium with one page, for a with block. Thread compatible."""

    def __init__(self):
        self.errors = []  # of the page's console, scripts and requests
        self._next = 1
        self._buffer = b""
        self._session = None

    def __enter__(self):
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-")
        to_browser, self._to = os.pipe()
        self._from, from_browser = os.pipe()

        def descriptors():
            die_with_parent()
            # First out of the way, then into place: the pipes' numbers may be 3 and 4 themselves.
            into, out = os.dup(to_browser), os.dup(from_browser)
            into, out = os.dup(into), os.dup(out)
            os.dup2(into, 3)
            os.dup2(out, 4)

        log = open(os.path.join(self._profile.name, "log"), "wb")
        self._process = subprocess.Popen(
            [PROGRAM, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
             "--force-color-profile=srgb", "--lang=en-GB", f"--user-data-dir={self._profile.name}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, close_fds=False, preexec_fn=descriptors,
            env=dict(os.environ, HOME=self._profile.name))
        log.close()
        os.close(to_browser)
        os.close(from_browser)
        deadline = time.monotonic() + START_SECONDS
        page = None
        while page is None:
            targets = self._ask("Target.getTargets", limit=START_SECONDS)["targetInfos"]
            page = next((target for target in targets if target["type"] == "page"), None)
            if time.monotonic() > deadline:
                raise BrowserError("no page")
        self._session = self._ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        try:
            self._process.terminate()
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        # Its helpers may write a little longer.
        shutil.rmtree(self._profile.name, ignore_errors=True)
        self._profile._finalizer.detach()

    def _read(self, deadline):
        """The next message."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self._from, 1 << 20) if ready else b""
            if not more:
                raise BrowserError("the browser does not answer" if not ready else "the browser has gone")
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, message):
        """Keeps what an event says of errors."""
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(each.get("value", each.get("description"))) for each in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))

    def _ask(self, method, session=None, limit=ANSWER_SECONDS, **params):
        number = self._next
        self._next += 1
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + limit
        while True:
            answer = self._read(deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def ask(self, method, **params):
        """A command to the page."""
        return self._ask(method, session=self._session, **params)

    def run(self, script):
        """The value of a JavaScript expression in the page; promises are waited for."""
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise BrowserError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, script, what, seconds=ANSWER_SECONDS):
        """Until the expression is true."""
        deadline = time.monotonic() + seconds
        while not self.run(f"Boolean({script})"):
            if time.monotonic() > deadline:
                raise BrowserError(f"waited {seconds} s for {what}: {script}")
            time.sleep(0.1)

    def look(self, width, height, scheme, mobile=False, scale=1):
        """The size of the window, and the colours that the system is said to prefer."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url):
        self.ask("Page.navigate", url=url)

    def press(self, key, code=None, number=0):
        """A key, as a person presses it."""
        text = "\r" if key == "Enter" else ""
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, windowsVirtualKeyCode=number,
                     **({"text": text} if text and kind == "keyDown" else {}))

    def screenshot(self, path, whole=True):
        """A PNG of the page."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole,
                        **({"clip": {**self._content(), "scale": 1}} if whole else {}))
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def _content(self):
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        return {key: size[key] for key in ("x", "y", "width", "height")}
