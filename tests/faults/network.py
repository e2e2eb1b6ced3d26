"""A network between two ranks that is lost while they train."""

from __future__ import annotations

import dataclasses
import os
import subprocess

from tests.faults.faults import AtMoment
from tests.faults.steps import Step, trained
from tests.faults.world import Case, NotHere, Running

OUT = "tried"
COMMAND = (
    "scalestudy", "try", "model={name: mlp, hidden: 8, layers: 2}", "strategy=allreduce", "ranks=2", "nodes=2",
    "network.mib_per_s=20", "batch.per_rank=32", "optimiser.learning_rate=0.05", "train.epochs=2",
    "measure.whole_program=true", "checkpoint.every_steps=10", "keep=weights", "--out", OUT,
)  # fmt: skip


class LostNetwork(AtMoment):
    """The link of one of two emulated nodes goes down while a checkpoint is written."""

    def not_for(self, step: Step) -> str:
        return super().not_for(step) or ("" if step.name == "train" else "its processes do not talk to each other")

    def met_by(self, step: Step) -> Step:
        return dataclasses.replace(
            step, command=COMMAND, target=None, removed=(), outcome=lambda folder: trained(folder / OUT)
        )

    def strike(self, case: Case, step: Step, running: Running, writer: int) -> bool:
        if os.geteuid() != 0:
            raise NotHere("needs root, to take down a link in a network namespace")
        inside = ["nsenter", "--target", str(writer), "--net"]
        subprocess.run([*inside, "ip", "link", "set", "net0", "down"], check=True, capture_output=True)
        return False


LOST_NETWORK = LostNetwork(
    "lost_network",
    "the link of one of two nodes (network namespaces) goes down for good while a checkpoint is written",
    words=r"network|no answer",
    promised="The run ends with a message.",
)
