"""Import the packages that every notebook needs, and fork a kernel for each request.

It starts as a script, with the number of its socket and other modules to import. A request is a
line of JSON, the kernel's `argv`, `env` and `cwd`; the response is a line with its process id. It
ends with its socket, or with a line of the reason if a module cannot be imported.
"""

import gc
import importlib
import json
import os
import signal
import socket
import sys

# of this package only modules that every stage reads: a change of a loaded module outdates a result
MODULES = (
    *("ipykernel.kernelapp", "ipykernel.debugger", "numpy", "pandas", "matplotlib.figure"),
    *("seaborn", "helpers.config.loading", "helpers.display.tables", "helpers.results.files"),
)
# Optional imports of these modules: the debugger of ipykernel, and the estimates of seaborn
UNUSED = ("debugpy", "scipy")
# Imports for stages that measure: an experiment's first three, export to deploy, do not need them
LATER, FIRST = ("scipy.stats",), 4


def main() -> None:
    """Serve requests until the other end is closed; also return in a kernel that has ended."""
    gc.disable()  # imports leave no garbage, and looking for it takes a fifth of the time
    channel = socket.socket(fileno=int(sys.argv[1]))
    from helpers.store import package_files

    package_files()  # hashes the modules before their import
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")  # a kernel's
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow reads it when it is imported
    sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type]  # as if not installed
    try:
        load(*MODULES)
        for name in UNUSED:
            del sys.modules[name]
        load_quietly(*sys.argv[2:])
    except Exception as error:  # packages raise anything when they are imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        line = f"No kernel can be started: {reason}. Run: triton-notebooks doctor\n"
        channel.sendall(line.encode())
        return
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for a kernel that has ended
    requests = channel.makefile("r")
    for number, line in enumerate(requests, 1):
        if number == FIRST:
            load(*LATER)
            gc.freeze()
        if pid := os.fork():
            channel.sendall(f"{pid}\n".encode())
        else:
            requests.close()
            channel.close()
            run_kernel(**json.loads(line))
            break


def load(*names: str) -> None:
    """Import modules by name."""
    for name in names:
        importlib.import_module(name)


def load_quietly(*names: str) -> None:
    """Import modules without the lines that TensorFlow 2.21 writes before it reads its settings."""
    stderr = os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        load(*names)
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def run_kernel(argv: list[str], env: dict[str, str], cwd: str) -> None:
    """Run as the kernel, in a session of its own, until it is shut down."""
    gc.enable()
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    from ipykernel.kernelapp import launch_new_instance

    # it ends soon after its parent, which is this process' parent and not the requesting one
    launch_new_instance(argv=[*argv, f"--IPKernelApp.parent_handle={os.getppid()}"])


if __name__ == "__main__":
    main()
