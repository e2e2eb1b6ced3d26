"""Machine: what the runs run on. One file in config/machines/."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from scalestudy.errors import Problem
from scalestudy.spec.base import Spec
from scalestudy.spec.run import RunSpec

GIB = 1 << 30


class Machine(Spec):
    """Hardware and limits. What is unset is found out where the run starts."""

    description: str = ""
    """What it is, in a line."""
    nodes: Annotated[int, Field(ge=1)] | None = None
    """Nodes that one run can have; unset: no limit is checked."""
    devices_per_node: Annotated[int, Field(ge=0)] | None = None
    """Accelerators of a node; unset: as found; 0: a CPU machine."""
    device: Literal["cpu", "cuda"] | None = None
    """What runs train on where a study does not say; unset: as found."""
    device_name: str | None = None
    """Accelerator, as its maker calls it."""
    cores_per_node: Annotated[int, Field(ge=1)] | None = None
    """Physical cores of a node; unset: as found."""
    memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Main memory of a node, GiB; unset: as found."""
    walltime_limit_h: Annotated[float, Field(gt=0)] | None = None
    """Longest job, hours."""
    sources: dict[str, str] = {}
    """Where each value comes from."""

    @property
    def memory_bytes(self) -> int:
        """Main memory of a node, bytes."""
        if self.memory_gib is not None:
            return int(self.memory_gib * GIB)
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine_problems(spec: RunSpec, machine: Machine, name: str) -> Iterator[Problem]:
    """What is impossible in a spec on this machine."""
    if machine.nodes is None or spec.accelerator:
        return
    per_node = spec.ranks_per_node or machine.devices_per_node or spec.ranks
    nodes = spec.nodes or -(-spec.ranks // per_node)
    if nodes > machine.nodes:
        what = f"{spec.ranks} ranks need {nodes} nodes; machine `{name}` has {machine.nodes}"
        yield Problem(("ranks",), what, "vary smaller numbers, or exclude this combination")
