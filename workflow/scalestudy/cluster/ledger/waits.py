"""How long this folder's own jobs waited in the queue, by queue and size."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalestudy.cluster.ledger.used import LEDGER, MIN_JOBS, ledger_events, number


@dataclass(frozen=True)
class Wait:
    """The wait of one job. `queue` is empty where the ledger does not have it."""

    queue: str
    nodes: int
    seconds: float


@dataclass(frozen=True)
class Waited:
    """Waits of jobs like one that is planned, and which jobs these are: `jobs of 2 to 3 nodes in gpu`."""

    median_s: float
    p90_s: float
    jobs: int
    like: str


def read_waits(file: Path = LEDGER) -> list[Wait]:
    """The wait of each job of this folder between its submission and the start of its script.

    A job that a limit of the scheduler kept out waits in the queue from when it has an id.
    """
    submitted: dict[str, tuple[float, str, int]] = {}
    waits = []
    for event in ledger_events(file):
        at_s, name, kind = number(event.get("time_s")), event["name"], event.get("event")
        if kind == "submitted" and at_s is not None:
            submitted[name] = at_s, str(event.get("queue") or ""), int(number(event.get("nodes")) or 1)
        elif kind == "id" and name in submitted and at_s is not None:
            submitted[name] = at_s, *submitted[name][1:]
        elif kind == "ended" and name in submitted and (began_s := number(event.get("began_s"))) is not None:
            since_s, queue, nodes = submitted.pop(name)
            waits.append(Wait(queue, nodes, max(0.0, began_s - since_s)))
    return waits


class Waits:
    """The waits that are known, and the queue of jobs that name none."""

    def __init__(self, seen: Sequence[Wait] = (), default_queue: str = "") -> None:
        self.seen, self.default_queue = seen, default_queue
        self._look = functools.cache(self._like)

    def of(self, queue: str | None, nodes: int) -> Waited | None:
        """Waits of at least three jobs: of this queue and about this size, else of this queue, else of all; None where
        there are fewer. About the same size: from one power of two to the next."""
        return self._look(queue or self.default_queue, nodes.bit_length())

    def _like(self, queue: str, bits: int) -> Waited | None:
        here = [wait for wait in self.seen if wait.queue == queue]
        alike = [wait for wait in here if wait.nodes.bit_length() == bits]
        least, most = 2 ** (bits - 1), 2**bits - 1
        size = "1 node" if most == 1 else f"{least} to {most} nodes"
        place = f" in {queue}" if queue else ""
        choices = ((alike, f"jobs of {size}{place}"), (here, f"jobs of all sizes{place}"), (self.seen, "all jobs"))
        for waits, like in choices:
            if len(waits) >= MIN_JOBS:
                seconds = [wait.seconds for wait in waits]
                p90_s = statistics.quantiles(seconds, n=10, method="inclusive")[-1]
                return Waited(statistics.median(seconds), p90_s, len(waits), like)
        return None

    def kinds(self, jobs: Iterable[tuple[str | None, int]]) -> list[Waited]:
        """The different answers for these queues and numbers of nodes."""
        found = (self.of(queue, nodes) for queue, nodes in jobs)
        return list(dict.fromkeys(waited for waited in found if waited is not None))
