"""A headless Chromium, driven by the DevTools protocol over pipes: nothing but the browser has to be installed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Ten times and more what a command takes, for busy machines.
DEADLINE = 120.0


def find() -> str | None:
    """The program, if it is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """A browser with one page. It ends with the context."""

    def __init__(self, program: str, width: int = 1280, height: int = 1000) -> None:
        self._size = (width, height)
        self._folder = tempfile.mkdtemp(prefix="ringfold-chromium-")
        reads, self._output = os.pipe()
        self._input, writes = os.pipe()
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-extensions",
            "--disable-background-networking",
            "--no-first-run",
            "--hide-scrollbars",
            "--force-color-profile=srgb",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._folder}",
        ]
        # The browser reads commands from descriptor 3, and writes to 4.
        script = f'exec "$@" 3<&{reads} 4>&{writes}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", program, *options, "about:blank"],
            pass_fds=(reads, writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(reads)
        os.close(writes)
        self._received = b""
        self._calls = 0
        self._session: str | None = None
        self.errors: list[str] = []

    def __enter__(self) -> Chromium:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(*self._size)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._output)
        os.close(self._input)
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(DEADLINE)
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command, and waits for its result."""
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._output, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + DEADLINE
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") == self._calls:
                assert "error" not in answer, f"{method} failed: {answer['error']}"
                return dict(answer["result"])
            self._note(answer)

    def _receive(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._received:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self._input], [], [], left)[0], f"no answer to {method}"
            piece = os.read(self._input, 1 << 20)
            assert piece, f"the browser has ended during {method}"
            self._received += piece
        message, _, self._received = self._received.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        """Keeps what the page reports as an error."""
        content = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(content["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and content["entry"]["level"] == "error":
            self.errors.append(f"{content['entry']['text']} {content['entry'].get('url', '')}")

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, theme: str) -> None:
        """Pretends that the system is ``light`` or ``dark``."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def wait_for(self, expression: str, timeout: float = DEADLINE) -> float:
        """Waits until an expression is true. Returns how long that took."""
        begun = time.monotonic()
        while not self.evaluate(expression):
            assert time.monotonic() - begun < timeout, f"not true within {timeout} s: {expression}"
            time.sleep(0.02)
        return time.monotonic() - begun

    def click(self, selector: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector: str, text: str) -> None:
        self.evaluate(
            f"(() => {{ const field = document.querySelector({json.dumps(selector)}); field.value = {json.dumps(text)};"
            " field.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def screenshot(self, path: Path) -> None:
        """Saves what is visible as a PNG."""
        data = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))
