"""Loopback indexes for machines that reach nothing else: python .ci/index.py PORT WHEELS

/pypi is what this machine's PyPI answers; /pytorch has the wheels of the folder WHEELS, as
PyTorch's own index has its CPU builds.
"""

import os
import re
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copyfileobj
from urllib.parse import quote, unquote, urljoin
from urllib.request import urlopen

PYPI = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
TRUST = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
WHEELS = Path(sys.argv[2])


class Index(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        _, kind, *rest = self.path.split("/")
        if kind == "file":
            with urlopen(unquote(rest[0]), context=TRUST) as file:
                self.send_response(200)
                self.send_header("Content-Length", file.headers["Content-Length"])
                self.end_headers()
                copyfileobj(file, self.wfile, 1 << 20)
        elif kind == "pypi":
            url = f"{PYPI}/{rest[0]}/"
            with urlopen(url, context=TRUST) as page:
                text = page.read().decode()

            def here(found: "re.Match[str]") -> str:
                address, _, digest = urljoin(url, found[1]).partition("#")
                return (
                    f'href="/file/{quote(address, safe="")}/{address.rpartition("/")[2]}#{digest}"'
                )

            text = re.sub(r' data-(?:dist-info|core)-metadata="[^"]*"', "", text)
            self.answer(re.sub(r'href="([^"]*)"', here, text).encode(), "text/html")
        elif rest[-1].endswith(".whl"):
            self.answer((WHEELS / unquote(rest[-1])).read_bytes(), "application/octet-stream")
        else:
            names = [path.name for path in WHEELS.glob(f"{rest[0]}-*.whl")]
            links = "".join(f'<a href="{quote(name)}">{name}</a>\n' for name in names)
            self.answer(links.encode(), "text/html")

    def answer(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Index).serve_forever()
