"""A worker's side of the fleet: what it is asked about itself, and the stages that it runs.

A stage runs in a process of its own (`bench`), so that a crash does not take the worker along, and
at most once: an order is for this very process, and an order that was begun is never begun again,
whatever a scheduler believes.
"""

import json
import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from helpers import results
from helpers.fleet import gate, kinship, offers
from helpers.fleet.bench import END_SECONDS, SHARED_VARIABLE, job_of
from helpers.fleet.orders import Bundle, Order, contents, hashed, manifest_of, paths_of
from helpers.pipeline import stale
from helpers.store import LOCKED_VARIABLE, content_name, write_atomic

POLL_SECONDS = 0.1
KILLED = "The worker process was killed, probably out of memory. Run again."
NOT_WANTED = "the run that requested this stage has ended"


@dataclass
class Station:
    """One worker process of a fleet."""

    outputs: Path
    offered: list[str]
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)
    begun: set[str] = field(default_factory=set)  # tickets
    _bench: "Bench | None" = None
    _run: str = ""  # that it runs stages of

    def about(self, probe: str) -> dict[str, object]:
        """Say what the submitter must know before it sends anything; `probe` is a file in its own
        outputs folder.
        """
        return {
            "identity": self.identity,
            "machine": offers.description(),
            "offered": self.offered,
            "software": kinship.software(),
            "shared": (self.outputs / probe).exists(),
        }

    def obstacles(self, orders: Sequence[Order]) -> dict[str, str]:
        """Say what stands in the way of stages here, by the names of their jobs."""
        content_name.cache_clear()  # the user's files may be others than an hour ago
        jobs = map(job_of, orders)
        return {job.name: job.obstacle for job in jobs}

    def check(self, order: Order, is_shared: bool) -> str:
        """Say why a stage must run here; empty if its result holds. What is known of it at home is
        taken over if it is not done here.
        """
        job = job_of(order)
        found = results.read(job.result)
        if not is_shared and not (found and found.state == "done"):
            for name, content in order.known.items():
                write_atomic(self.outputs / order.target / name, content)
        return stale(job)

    def perform(
        self,
        order: Order,
        is_shared: bool,
        is_wanted: Callable[[], bool],
        tell: Callable[[dict[str, str]], None],
    ) -> Bundle:
        """Run the stage of an order, unless it has been begun, and give what it left.

        Ends the stage when it `is_wanted` no more. `tell` gets what is to be said meanwhile.
        """
        if order.worker != self.identity or order.ticket in self.begun:
            return Bundle(
                "refused", "The stage was started before and never runs twice. Run again."
            )
        self.begun.add(order.ticket)
        with gate.entered(order.measures, is_wanted, lambda why: tell({"waits": why})) as inside:
            if not inside:
                return Bundle("refused", NOT_WANTED)
            tell({"runs": order.stage})
            answer = self._ask(order, is_shared, is_wanted, tell)
        base, job = self.outputs / order.target, job_of(order)
        left = answer["state"] not in ("skipped", "refused")
        files = contents(base, [*manifest_of(base, job), *paths_of(job)]) if left else {}
        return Bundle(answer["state"], answer["reason"], files, hashed(files))

    def _ask(
        self,
        order: Order,
        is_shared: bool,
        is_wanted: Callable[[], bool],
        tell: Callable[[dict[str, str]], None],
    ) -> dict[str, str]:
        if self._bench and (self._run != order.run or self._bench.process.poll() is not None):
            self.close()  # each run begins with the modules and the files that there are now
        if self._bench is None:
            self._bench, self._run = Bench(is_shared), order.run
        self._bench.send(order)
        while True:
            for answer in self._bench.answers():
                if "state" in answer:
                    return answer
                tell(answer)
            if self._bench.process.poll() is not None:
                self.close()
                return {"state": "failed", "reason": KILLED}
            if not is_wanted():
                self.close()
                return {"state": "failed", "reason": NOT_WANTED}

    def close(self) -> None:
        """End the running stage, if there is one, and what it has started."""
        if self._bench:
            self._bench.close()
            self._bench = None


class Bench:
    """The process that runs the stages."""

    def __init__(self, is_shared: bool) -> None:
        reading, writing = os.pipe()
        env = {**os.environ, **({LOCKED_VARIABLE: "1", SHARED_VARIABLE: "1"} if is_shared else {})}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "helpers.fleet.bench", str(writing)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[writing],
            env=env,
            start_new_session=True,  # Ctrl-C ends the worker, which ends it
        )
        os.close(writing)
        self._answers, self._rest = reading, b""

    def send(self, order: Order) -> None:
        """Send an order."""
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.process.wait(END_SECONDS)

    def answers(self) -> list[dict[str, str]]:
        """Give what has come, waiting a moment for it."""
        if not select.select([self._answers], [], [], POLL_SECONDS)[0]:
            return []
        *lines, self._rest = (self._rest + os.read(self._answers, 2**16)).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """End it as Ctrl-C does, and kill it if that does not help."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._answers)
