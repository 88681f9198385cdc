"""Which faults the tests notice, of those drawn from the functions of a folder:

    PYTHONPATH=.ci python -m pytest -n 0 -p mutation --mutate helpers/config tests/config

runs the tests once, and for each fault those again that call the function. A sample's faults are
the same from run to run. `--faults FILE` keeps their names: "-" is one that no test noticed.

A fault is a changed comparison, condition, sum, product, constant or result. It replaces the code
of a function in a forked process, so tests that start other processes do not notice it.
"""

import ast
import copy
import functools
import gc
import hashlib
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FunctionType

from _pytest.runner import runtestprotocol

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 10.0  # of tests that are run again for a fault
SWAPPED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}
SWAPPED |= {ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot}
SWAPPED |= {ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add}
SWAPPED |= {ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}


def pytest_addoption(parser):
    group = parser.getgroup("mutation")
    group.addoption("--mutate", help="folder or file whose functions get faults")
    group.addoption("--sample", type=int, default=100, help="number of faults")
    group.addoption("--faults", help="file to write")


def changed(node):
    """Change a node in place; say how, or return an empty text if it cannot be changed."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            node.ops = [SWAPPED[type(op)]()]
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in SWAPPED:
            node.op = SWAPPED[type(op)]()
        case ast.If(test=test) | ast.IfExp(test=test):
            node.test = ast.UnaryOp(ast.Not(), test)
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value) | float(value)):
            node.value = value + 1
        case ast.Return(value=value) if value and not isinstance(value, ast.Constant):
            node.value = ast.Constant(None)
        case _:
            return False
    return True


def inside(code):
    """Yield a code object and all within it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from inside(each)


def faults(path):
    """Yield a name, the outermost function's key and the code with a fault, for each in a file."""
    tree = ast.parse(path.read_text())
    for outer in ast.walk(tree):
        for child in ast.iter_child_nodes(outer):
            child.parent = outer
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for place, node in enumerate(ast.walk(tree)):
        above, owner, is_code = node, None, True
        while parent := getattr(above, "parent", None):
            if isinstance(parent, functions):
                owner, is_code = parent, is_code and above in parent.body
            above = parent
        if owner is None or not is_code or not changed(copy.copy(node)):
            continue
        kept = dict(vars(node))
        changed(node)
        ast.fix_missing_locations(tree)
        made = compile(tree, str(path), "exec")
        vars(node).clear()
        vars(node).update(kept)
        line = getattr(node, "lineno", owner.lineno)
        name = f"{path.relative_to(ROOT)}:{owner.name}:{type(node).__name__}:{line}:{place}"
        first = min([owner.lineno, *(each.lineno for each in owner.decorator_list)])
        yield name, (str(path), owner.name, first), made


class Mutation:
    def __init__(self, config):
        self.config, self.calls, self.seconds, self.failed = config, {}, {}, set()

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_runtestloop(self, session):
        if session.config.option.collectonly:
            return None
        items = session.items
        for item, following in zip(items, [*items[1:], None], strict=True):
            seen = self.calls[item] = set()

            def profile(frame, event, _, seen=seen):
                if event == "call" and frame.f_code.co_filename.startswith(str(ROOT / "helpers")):
                    seen.add(key(frame.f_code))

            threading.setprofile(profile)
            sys.setprofile(profile)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.setprofile(None)
            threading.setprofile(None)
        self.mutate()
        return True

    def mutate(self):
        place = (ROOT / self.config.option.mutate).resolve()
        paths = sorted([place] if place.is_file() else place.rglob("*.py"))
        every = [fault for path in paths for fault in faults(path)]
        every.sort(key=lambda each: hashlib.sha256(each[0].encode()).hexdigest())
        gc.unfreeze()
        objects = gc.get_objects()
        functions = {}
        for each in objects:
            if type(each) is FunctionType:
                functions.setdefault(key(each.__code__), []).append(each)
        caches = [each for each in objects if type(each) is functools._lru_cache_wrapper]
        lines, terminal = [], self.config.pluginmanager.get_plugin("terminalreporter")
        for name, owner, code in every[: self.config.option.sample]:
            callers = [item for item, seen in self.calls.items() if owner in seen]
            items = [item for item in callers if item.nodeid not in self.failed]
            found = [c for c in inside(code) if key(c) == owner]
            if not items or not found or owner not in functions:
                lines.append(f"? {name}")
                continue
            items.sort(key=lambda item: self.seconds[item.nodeid])
            is_noticed = self.notices(items, functions[owner], found[0], caches)
            lines.append(f"{'+' if is_noticed else '-'} {name}")
        for line in ["", *(line for line in lines if line[0] == "-")]:
            terminal.write_line(line)
        signs = Counter(line[0] for line in lines)
        summary = f"noticed {signs['+']}, not noticed {signs['-']}, not called {signs['?']}"
        terminal.write_line(summary)
        if self.config.option.faults:
            Path(self.config.option.faults).write_text("\n".join(sorted(lines)) + "\n")

    def notices(self, items, targets, code, caches):
        """Run tests in a forked process with the fault; return whether one fails or hangs."""
        child = os.fork()
        if not child:
            os.setsid()
            with open(os.devnull, "w") as sink:
                os.dup2(sink.fileno(), 1)
                os.dup2(sink.fileno(), 2)
            status = 3
            try:
                for each in targets:
                    each.__code__ = code
                for each in caches:
                    each.cache_clear()
                spent, status = 0.0, 0
                for item in items:
                    spent += self.seconds[item.nodeid]
                    if spent > SECONDS and item is not items[0]:
                        break
                    if any(r.failed for r in runtestprotocol(item, log=False, nextitem=None)):
                        status = 1
                        break
            except BaseException:
                status = 1
            finally:
                os._exit(status)
        end = time.monotonic() + 5 * SECONDS + 30
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return status != 0
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return True


def key(code):
    return code.co_filename, code.co_name, code.co_firstlineno


def pytest_configure(config):
    if config.option.mutate:
        config.pluginmanager.register(Mutation(config))
