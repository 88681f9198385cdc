"""A stand-in for the docker command and its engine, whose containers are processes outside the
client's session; Triton's is a server that is always ready. The folder DOCKER_STAND_IN holds what
the engine knows: `calls`, a line of JSON each; `images`, a name a line; `fault`, what goes wrong;
and a file for each container.
"""

import csv
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

HERE = Path(os.environ["DOCKER_STAND_IN"])
READY = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200), self.send_header("Content-Length", "0"), self.end_headers()
    def log_message(self, *_): pass
print("Started HTTPService", flush=True)
servers = [HTTPServer(("127.0.0.1", int(port)), Handler) for port in sys.argv[1:]]
Thread(target=servers[1].serve_forever, daemon=True).start()
servers[0].serve_forever()
"""
SAYS = {
    "no engine": "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. "
    "Is the docker daemon running?",
    "no permission": "permission denied while trying to connect to the Docker daemon socket",
}


def text(name):
    path = HERE / name
    return path.read_text() if path.exists() else ""


def states():
    found = {}
    for path in HERE.glob("*.container"):
        with suppress(FileNotFoundError):  # it has just ended
            found[path] = json.loads(path.read_text())
    return found


def alive(state):
    with suppress(OSError):
        return " Z " not in Path(f"/proc/{state['pid']}/stat").read_text()
    return False


def run(arguments):
    options = []
    while arguments[0].startswith("--"):
        options.append(arguments.pop(0))
    image, *command = arguments
    given = [option[2:].partition("=")[::2] for option in options]
    lines = csv.reader(value for name, value in given if name == "mount")
    parts = [dict(part.partition("=")[::2] for part in line) for line in lines]
    mounts = {part["target"]: part["source"] for part in parts}
    ports = dict(value.split(":")[2:0:-1] for name, value in given if name == "publish")
    labels = dict(value.partition("=")[::2] for name, value in given if name == "label")
    name = next(value for option, value in given if option == "name")
    if image not in text("images").split():
        print(f"docker: Error response from daemon: No such image: {image}", file=sys.stderr)
        return 125
    if fault := text("fault"):
        print(fault, file=sys.stderr)
        return 125 if fault.startswith("docker: ") else 1
    if command[0] != "tritonserver":
        for target, source in mounts.items():
            command = [word.replace(target, source) for word in command]
    else:
        command = [sys.executable, "-c", READY, ports["8000"], ports["8002"]]
    child = subprocess.Popen(command, start_new_session=True)
    path = HERE / f"{name}.container"
    path.with_suffix(".new").write_text(
        json.dumps({"name": name, "labels": labels, "pid": child.pid})
    )
    path.with_suffix(".new").rename(path)
    signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
    code = child.wait()
    path.unlink(missing_ok=True)  # --rm
    return code if code >= 0 else 128 - code


def main(arguments):
    with (HERE / "calls").open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")
    verb, *rest = arguments
    if (fault := text("fault")) in SAYS:
        print(SAYS[fault], file=sys.stderr)
        return 1
    if verb in ("version", "info"):
        print("28.2.2" if verb == "version" else text("runtimes"))
        return 0
    if verb == "image":
        return 0 if rest[-1] in text("images").split() else 1
    if verb == "inspect":
        found = [state for state in states().values() if state["name"] == rest[-1]]
        for state in found:
            status = state.get("status") or ("running" if alive(state) else "exited")
            fields = {".State.Status": status, ".State.Pid": state["pid"]}
            print(fields.get(rest[0].removeprefix("--format={{").removesuffix("}}"), ""))
        return 0 if found else 1
    if verb == "ps":
        key, _, value = next(r for r in rest if "=label=" in r).split("=", 2)[2].partition("=")
        for state in states().values():
            if key in state["labels"] and value in ("", state["labels"][key]):
                print(state["name"], state["labels"]["triton-notebooks.owner"])
        return 0
    if verb == "rm":
        for path, state in states().items():
            if state["name"] in rest:
                with suppress(ProcessLookupError):
                    os.kill(state["pid"], signal.SIGKILL)
                path.unlink(missing_ok=True)
        return 0
    return run(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
