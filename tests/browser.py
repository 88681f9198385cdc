"""A headless Chromium that tests drive by its DevTools protocol: one for many pages."""

import base64
import json
import shutil
import subprocess
from contextlib import contextmanager

from websocket import create_connection  # comes with JupyterLab

from tests.conftest import wait_for

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), "")
FLAGS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "hide-scrollbars"),
    *("disable-background-networking", "disable-sync", "disable-component-update"),
    *("remote-debugging-port=0", "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
)
WRITTEN = {"Log.entryAdded": "entry", "Runtime.consoleAPICalled": "args"}
WRITTEN |= {"Runtime.exceptionThrown": "exceptionDetails"}  # to the console, and where its text is
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
PORTRAIT, LANDSCAPE = 680, 1032  # pixels between the margins of A4


class Browser:
    """One page at a time, with what it asked for and wrote to its console since it was opened."""

    def __init__(self, socket):
        self._socket, self._count, self._session = socket, 0, ""
        self.requests = []
        self.console = []
        self.loads = 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Call a method of the protocol and return its result; events meanwhile are noted."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == self._count:
                if "navigated" in str(answer.get("error")):  # the page was loaded again meanwhile
                    return self.call(method, **parameters)
                assert "error" not in answer, (method, answer)
                return dict(answer["result"])
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _note(self, event, facts):
        if event == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])
        elif event == "Page.loadEventFired":
            self.loads += 1
        elif event in WRITTEN:
            self.console.append(str(facts[WRITTEN[event]]))

    def open(self, url, *, scripts=True):
        self._load("about:blank")  # to its end, so that its event is not counted as the page's
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._load(url)

    def _load(self, url):
        self.requests, self.console, self.loads = [], [], 0
        self.call("Page.navigate", url=url)
        wait_for(lambda: self.evaluate("document.readyState") == "complete" and self.loads)

    def show(self, width, medium="light"):
        """Lay the page out `width` pixels wide: light, dark or as printed."""
        look = {"deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, **look)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if medium == "dark" else "light"}
        kind = "print" if medium == "print" else "screen"
        self.call("Emulation.setEmulatedMedia", media=kind, features=[scheme])

    def evaluate(self, expression):
        """Evaluate JavaScript in the page, whatever its security policy allows."""
        asked = {"returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", expression=expression, **asked)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key):
        text = {"Enter": "\r", " ": " "}.get(key)
        about = {"key": key, "windowsVirtualKeyCode": KEYS[key]} | ({"text": text} if text else {})
        self.call("Input.dispatchKeyEvent", type="keyDown", **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def pdf(self):
        size = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True}
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False, **size)["data"])


@contextmanager
def started(profile):
    """Start a browser with a new profile; it ends with the block."""
    command = [BROWSER, *(f"--{flag}" for flag in FLAGS), f"--user-data-dir={profile}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        place = profile / "DevToolsActivePort"
        wait_for(lambda: place.exists() and len(place.read_text().split()) == 2)
        port, path = place.read_text().split()
        address = f"ws://127.0.0.1:{port}{path}"
        socket = create_connection(address, timeout=600, suppress_origin=True)
        try:
            yield Browser(socket)
        finally:
            socket.close()
    finally:
        process.terminate()
        process.wait(30)
