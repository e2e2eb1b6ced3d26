"""Job: everything that the processes of one run have to know."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from scalestudy.errors import UserError, nearest
from scalestudy.measure.links import Node
from scalestudy.spec.run import RunSpec

STEP_TIMES = Path("config/reference/step_times.csv")


@dataclass(frozen=True)
class Resolved:
    """What the machine filled in."""

    nodes: int
    ranks_per_node: int
    threads_per_rank: int
    device: str
    cores: int
    step_time_s: float | None
    """Emulated compute time of one step; None where compute is real."""


@dataclass(frozen=True)
class Job:
    """One run, ready to start."""

    run: str
    spec: RunSpec
    resolved: Resolved
    manifest: Path
    folder: Path
    """Scratch that all ranks see: rendezvous and their reports."""
    extensions: Path
    weights: Path | None
    """Where the final weights are to be kept."""
    beside: Path | None = None
    """The folder of the result, on a file system that all ranks see: checkpoints, and a file that asks to stop."""
    resume: Path | None = None
    """The checkpoint to go on from."""
    borrowed: bool = False
    """That checkpoint is of another run, with perhaps another number of ranks: only its state is taken."""
    network: tuple[Node, ...] = ()
    """Emulated nodes, in order; none where the run uses the network that is there."""
    deadline: float | None = None
    """When this job will be killed, seconds since 1970."""

    @property
    def keep(self) -> Path:
        """Where ranks leave files that are to lie beside the result."""
        return self.folder / "keep"

    def node_of(self, process: int) -> int:
        """The node of a rank, or of a server: those go round the nodes."""
        servers_from = self.spec.ranks
        if process >= servers_from:
            return (process - servers_from) % self.resolved.nodes
        return process // self.resolved.ranks_per_node


def emulated_step_time(model: str, accelerator: str, rank_batch: int, table: Path = STEP_TIMES) -> float:
    """Seconds that the accelerator takes to train one batch: batch over the published training throughput.

    `infinite` takes no time. Where a model has several rows for an accelerator, the batch size nearest to the run's is
    taken. Raises UserError naming what the table has.
    """
    if accelerator == "infinite":
        return 0.0
    if not table.is_file():
        raise UserError("there is no table of step times here", str(table), "run the command at the top of the project")
    with open(table, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    of_accelerator = [row for row in rows if row["accelerator"] == accelerator]
    if not of_accelerator:
        known = {row["accelerator"] for row in rows} | {"infinite"}
        raise UserError(
            f"no step times are known for accelerator `{accelerator}`", str(table), nearest(accelerator, known)
        )
    of_model = [row for row in of_accelerator if row["model"] == model]
    if not of_model:
        known = {row["model"] for row in of_accelerator}
        raise UserError(f"no step time of `{model}` on `{accelerator}` is known", str(table), nearest(model, known))
    row = min(of_model, key=lambda row: abs(int(row["batch"]) - rank_batch))
    return rank_batch / float(row["images_per_s"])
