"""A headless Chromium, driven through a pipe by its DevTools protocol: no package, no port, no network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One page of one Chromium. `requests` has the address of everything that the page asked for."""

    def __init__(self, process: subprocess.Popen[bytes], write: int, read: int) -> None:
        self.process, self.write, self.read = process, write, read
        self.number, self.session, self.rest = 0, "", b""
        self.requests: list[str] = []
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command; returns its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer.get('error')}"
                return dict(answer["result"])

    def open(self, page: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Load a file in a window of that size, in a light or dark scheme."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.requests, self.events = [], []
        self.send("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive()

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        found = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            more = os.read(self.read, 1 << 20)
            assert more, "Chromium has ended"
            self.rest += more
        first, _, self.rest = self.rest.partition(b"\0")
        message = json.loads(first)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if "method" in message:
            self.events.append(message)
        return dict(message)


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A Chromium with a fresh profile; the test is left out, by name, where none is installed."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("Debian's package chromium is not installed")
    their_read, our_write = os.pipe()
    our_read, their_write = os.pipe()
    # Chromium reads commands from descriptor 3 and writes answers to 4.
    script = f'exec "$0" "$@" 3<&{their_read} 4>&{their_write}'
    process = subprocess.Popen(
        ["bash", "-c", script, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        pass_fds=(their_read, their_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_read)
    os.close(their_write)
    try:
        yield Browser(process, our_write, our_read)
    finally:
        os.close(our_write)
        os.close(our_read)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
