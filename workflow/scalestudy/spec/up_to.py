"""`{to: machine}`: an axis whose values are as many as the machine has, and what a study names beyond it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import WithJsonSchema, WrapValidator

from scalestudy.errors import UserError
from scalestudy.hardware import accelerators
from scalestudy.spec.base import Spec, refused, shown
from scalestudy.spec.hosts import WORDS, HostAxis, hosts_of
from scalestudy.spec.machine import Machine, most_nodes

KEYS = ("ranks", "nodes", "loader.workers")
"""Keys of a run that can be as many as the machine has."""
PLACES = ("machine", "node")


class UpTo(Spec):
    """In place of a list in `vary`: powers of two, up to what there is, its end included."""

    to: Literal["machine", "node"]
    """`machine`: as many nodes as a job can have; `node`: one of them."""


def _list_or_up_to(value: Any, handler: Any) -> Any:
    if isinstance(value, str) and value in WORDS:
        return HostAxis(hosts=value)  # type: ignore[arg-type]
    if isinstance(value, dict) and "to" in value:
        if value.keys() != {"to"}:
            other = next(key for key in value if key != "to")
            raise refused(f"unknown key `{other}`", "write `{to: machine}` or `{to: node}`", other)
        if value["to"] not in PLACES:
            raise refused(f"{shown(value['to'])} is not valid here", "valid: machine, node", "to")
        return UpTo(to=value["to"])
    return handler(value)


OrUpTo = WrapValidator(_list_or_up_to)
"""In `Annotated`: a list, `{to: machine}`, or a word that stands for the machine's nodes by name."""
AXIS_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "array", "items": {}, "minItems": 1},
            {
                "type": "object",
                "description": "Powers of two, up to what the machine, or one node of it, has, its end included.",
                "properties": {"to": {"enum": list(PLACES)}},
                "required": ["to"],
                "maxProperties": 1,
            },
            {
                "enum": list(WORDS),
                "description": "Of `nodes`: the machine's nodes by name, each alone, every two, or each with the next.",
            },
        ]
    }
)


def powers_of_two(end: int) -> list[int]:
    """1, 2, 4, … below `end`, and `end`."""
    return [*(1 << power for power in range(end.bit_length()) if 1 << power < end), end]


@dataclass(frozen=True)
class Extent:
    """What one machine has, for the runs of one study."""

    machine: Machine
    name: str
    device: str | None = None
    """The device that the study's base sets."""
    lacks: list[str] = field(default_factory=list, compare=False)
    """What of the study's axes it does not have, a sentence each."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Its nodes by name. Raises NoHosts."""
        return hosts_of(self.machine, self.name)

    def lack(self, what: str) -> None:
        """Note what it does not have."""
        self.lacks.append(what)

    @property
    def devices(self) -> int:
        """Accelerators of a node that runs of the study use; 0 where they compute on cores, or compute is emulated."""
        if self.device is not None and self.device != "cuda":
            return 0
        if self.machine.devices_per_node is not None:
            return self.machine.devices_per_node
        return 0 if self.machine.device == "cpu" and self.device is None else accelerators().count

    @property
    def cores(self) -> int:
        """Cores of a node."""
        return self.machine.cores_per_node or len(os.sched_getaffinity(0))

    def nodes(self, to: str) -> int:
        """Nodes that a run can have; 1 where the machine does not say."""
        return 1 if to == "node" else most_nodes(self.machine) or 1

    @property
    def ranks_on_node(self) -> int:
        """Ranks that use the whole of a node: one per device, else one per core."""
        return self.end("ranks", "node")

    def end(self, key: str, to: str) -> int:
        """The largest value of a key: nodes; workers of a rank, one per core; or ranks, one per device, else per core."""
        if key == "nodes":
            return self.nodes(to)
        if key == "loader.workers":
            return self.cores
        if self.devices == 0 and (self.device or self.machine.device) == "cuda":
            remedy = "set `devices_per_node` in its file, or `device: cpu` to measure the CPU"
            raise UserError("no accelerator is known of it, or found here", f"config/machines/{self.name}.yaml", remedy)
        return (self.devices or self.cores) * self.nodes(to)

    def values(self, key: str, axis: UpTo, where: str) -> list[int]:
        """The values of an axis of one key; UserError for a key that no machine limits."""
        if key not in KEYS:
            remedy = f"write a list; as many as the machine has can be {', '.join(f'`{each}`' for each in KEYS)}"
            raise UserError(f"`{key}` has no end that a machine sets", where, remedy)
        return powers_of_two(self.end(key, axis.to))

    def filter(self, where: Mapping[str, Any]) -> dict[str, Any]:
        """A choice of runs in which `{to: …}` stands for the largest value."""
        return {key: self.end(key, wanted["to"]) if is_end(key, wanted) else wanted for key, wanted in where.items()}


def is_end(key: str, wanted: Any) -> bool:
    """Whether a choice of runs asks for as many as the machine has."""
    return key in KEYS and isinstance(wanted, dict) and wanted.keys() == {"to"} and wanted["to"] in PLACES
