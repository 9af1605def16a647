"""Chromium without a display for tests, driven through the pipe of its DevTools protocol: no library, no port."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
# No network, and no graphics card: WebGL is computed by SwiftShader.
OPTIONS = (
    "--headless", "--no-sandbox", "--remote-debugging-pipe", "--no-first-run", "--disable-dev-shm-usage",
    "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--hide-scrollbars", "--disable-background-networking",
    "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
PATIENCE = 60.0  # seconds


class Page:
    """One page, its console and its requests: `show`, `evaluate`, `click`, `screenshot`."""

    def __init__(self, reading: int, writing: int):
        self.reading, self.writing, self.last, self.rest = reading, writing, 0, b""
        self.session: str | None = None
        self.problems: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **parameters) -> dict:
        """The answer to one command; events that come before it are kept."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.last:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        return answer["result"]

    def _next(self) -> dict:
        while b"\0" not in self.rest:
            part = os.read(self.reading, 1 << 20)
            assert part, "the browser has ended"
            self.rest += part
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def _note(self, event: dict) -> None:
        method, said = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(said["exceptionDetails"])[:600])
        elif (method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert")) or (
            method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning")
        ):
            self.problems.append(json.dumps(said)[:600])

    def print_view(self, on: bool = True) -> None:
        """Show the page as it is printed."""
        self.call("Emulation.setEmulatedMedia", media="print" if on else "screen")

    def show(self, path: Path, width: int = 1400, height: int = 1000, scripts: bool = True, before: str = "") -> None:
        """Load a file in a new tab of a size, until it is whole; before: a script that runs ahead of the page's own."""
        self.session, self.problems, self.requests = None, [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        if before:
            self.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        self.call("Page.navigate", url=path.as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")

    def evaluate(self, expression: str):
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + PATIENCE
        while not self.evaluate(condition):
            assert time.monotonic() < end, f"never came true: {condition[:300]}"
            time.sleep(0.02)

    def place(self, selector: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
        """Where a point of an element is in the window, after scrolling to it."""
        code = f"""(() => {{ const one = document.querySelector({json.dumps(selector)});
            one.scrollIntoView({{block: 'center', behavior: 'instant'}});
            const box = one.getBoundingClientRect();
            return [box.left + {across} * box.width, box.top + {down} * box.height]; }})()"""
        return tuple(self.evaluate(code))

    def mouse(self, kind: str, x: float, y: float) -> None:
        """A mouse event: mouseMoved, mousePressed or mouseReleased, of the left button."""
        pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def click(self, selector: str) -> None:
        """Click on the middle of an element."""
        at = self.place(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, *at)

    def press(self, key: str) -> None:
        """Press a key, where the focus is."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def screenshot(self, path: Path) -> Path:
        """A picture of the window."""
        png = self.call("Page.captureScreenshot")["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(png))
        return path


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with a profile of its own, that ends with the block."""
    (its_in, our_out), (our_in, its_out) = os.pipe(), os.pipe()
    # The protocol is spoken on 3 and 4, whatever numbers the pipes have here.
    line = [
        "bash",
        "-c",
        f'exec "$@" 3<&{its_in} 4>&{its_out}',
        "bash",
        CHROMIUM,
        *OPTIONS,
        f"--user-data-dir={profile}",
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen(line, pass_fds=(its_in, its_out), **quiet)
    os.close(its_in)
    os.close(its_out)
    page = Page(our_in, our_out)
    try:
        yield page
        page.session = None
        page.call("Browser.close")
        child.wait(PATIENCE)
    finally:
        child.kill()
        child.wait()
        os.close(our_in)
        os.close(our_out)
