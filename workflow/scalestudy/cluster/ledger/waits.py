"""How long jobs waited in the queue: what this folder's own jobs did, by queue and size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalestudy.cluster.ledger.used import LEDGER, ledger_events

LEAST_JOBS = 3
"""Fewer jobs say nothing about the next one."""


@dataclass(frozen=True)
class Wait:
    """What one job waited."""

    queue: str
    """Empty where the ledger does not say."""
    nodes: int
    seconds: float


@dataclass(frozen=True)
class Waited:
    """What jobs like one that is planned have waited, and which jobs these are."""

    median_s: float
    p90_s: float
    jobs: int
    like: str
    """`jobs of 2 to 3 nodes in gpu`."""


def read_waits(file: Path = LEDGER) -> list[Wait]:
    """What each job of this folder waited between its submission and the start of its script.

    Older ledgers do not say when a script began: the end and what was used then give it, and the driver's delay in
    noticing the end counts as waiting. A job that a limit of the scheduler kept out waits in the queue from when it has an id.
    """
    submitted: dict[str, tuple[float, str, int]] = {}
    waits = []
    for event in ledger_events(file):
        at_s, name = _number(event.get("time_s")), event["name"]
        used_s, began_s = _number(event.get("used_s")), _number(event.get("began_s"))
        if event.get("event") == "submitted" and at_s is not None:
            submitted[name] = at_s, str(event.get("queue") or ""), int(_number(event.get("nodes")) or 1)
        elif event.get("event") == "id" and name in submitted and at_s is not None:
            submitted[name] = at_s, *submitted[name][1:]
        elif event.get("event") == "ended" and name in submitted and at_s is not None:
            since_s, queue, nodes = submitted.pop(name)
            if began_s is None and used_s and not event.get("unseen"):
                began_s = at_s - used_s
            if began_s is not None:
                waits.append(Wait(queue, nodes, max(0.0, began_s - since_s)))
    return waits


def _number(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, (int, float)) else math.inf
    except OverflowError:  # digits without end
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class Waits:
    """The waits that are known, and the queue of jobs that name none."""

    seen: Sequence[Wait] = ()
    default_queue: str = ""
    _found: dict[tuple[str, int], Waited | None] = field(default_factory=dict, repr=False, compare=False)

    def of(self, queue: str | None, nodes: int) -> Waited | None:
        """What at least three jobs waited: of this queue and about this size, else of this queue, else of all; None
        where there are fewer. About the same size: from one power of two to the next."""
        queue = queue or self.default_queue
        key = queue, nodes.bit_length()
        if key not in self._found:
            self._found[key] = self._look(queue, nodes.bit_length())
        return self._found[key]

    def _look(self, queue: str, bits: int) -> Waited | None:
        here = [wait for wait in self.seen if wait.queue == queue]
        alike = [wait for wait in here if wait.nodes.bit_length() == bits]
        least, most = 2 ** (bits - 1), 2**bits - 1
        size = "1 node" if most == 1 else f"{least} to {most} nodes"
        place = f" in {queue}" if queue else ""
        choices = ((alike, f"jobs of {size}{place}"), (here, f"jobs of all sizes{place}"), (self.seen, "all jobs"))
        for waits, like in choices:
            if len(waits) >= LEAST_JOBS:
                seconds = [wait.seconds for wait in waits]
                p90_s = statistics.quantiles(seconds, n=10, method="inclusive")[-1]
                return Waited(statistics.median(seconds), p90_s, len(waits), like)
        return None

    def kinds(self, jobs: Iterable[tuple[str | None, int]]) -> list[Waited]:
        """The different answers for these queues and numbers of nodes."""
        found = (self.of(queue, nodes) for queue, nodes in jobs)
        return list(dict.fromkeys(waited for waited in found if waited is not None))
