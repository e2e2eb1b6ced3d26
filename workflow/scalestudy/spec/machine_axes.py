"""Axes with values from the machine: `{to: machine}`, and its nodes by name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from scalestudy.errors import UserError
from scalestudy.hardware import accelerators
from scalestudy.spec.base import Spec
from scalestudy.spec.layout import machine_file
from scalestudy.spec.machine import Machine, max_nodes
from scalestudy.spec.run import THIS_HOST
from scalestudy.spec.sizes import kilobytes

KEYS = ("ranks", "nodes", "loader.workers")
"""Keys of a run that a machine limits."""
HostWord = Literal["each", "pairs"]
HOST_WORDS: tuple[str, ...] = get_args(HostWord)
"""Values of `nodes` that stand for nodes by name: each alone, or every two of them."""


class MachineAxis(Spec):
    """In place of a list in `vary`: powers of two up to the machine's own number, that included."""

    to: Literal["machine", "node"]
    """`machine`: as many nodes as a job can have; `node`: one of them."""


class NoHosts(UserError):
    """The machine has too few nodes, or does not name them."""


@dataclass(frozen=True)
class MachineCapacity:
    """Nodes, devices and cores of one machine, for the runs of one study."""

    machine: Machine
    name: str
    device: str | None = None
    """Device that the study's base sets."""

    @property
    def devices(self) -> int:
        """Accelerators of a node that the runs use; 0 where they compute on cores, or compute is emulated."""
        if (self.device or self.machine.device) not in (None, "cuda"):
            return 0
        return accelerators().count if self.machine.devices_per_node is None else self.machine.devices_per_node

    def end(self, key: str, to: str) -> int:
        """Largest value of a key: nodes; workers, one per core; ranks, one per device, else per core of one node."""
        nodes = 1 if to == "node" else max_nodes(self.machine) or 1
        if key == "nodes":
            return nodes
        if key == "loader.workers":
            return self.machine.cores
        if self.devices == 0 and (self.device or self.machine.device) == "cuda":
            remedy = "set `devices_per_node` in its file, or `device: cpu` to measure the CPU"
            raise UserError("no accelerator is known of it, or found here", machine_file(self.name), remedy)
        on_cores = (self.device or self.machine.device) in (None, "cpu")
        return self.devices * nodes or self.machine.cores * (1 if on_cores else nodes)

    def groups(self, word: str) -> list[tuple[str, ...]]:
        """Nodes of each run of `nodes: each` or `pairs`: no pair of one node. Raises NoHosts where nodes have no names."""
        hosts = self.machine.hosts
        if not hosts and self.machine.nodes in (None, 1):
            hosts = (THIS_HOST,)
        if not hosts:
            what = f"machine `{self.name}` does not name its nodes"
            remedy = 'add `hosts: ["node[01-16]"]`, the names that `sinfo -h -o %N`, `pbsnodes -a` or `qhost` prints'
            raise NoHosts(what, machine_file(self.name), remedy)
        return list(itertools.combinations(hosts, 1 if word == "each" else 2))

    def resolve(self, where: Mapping[str, Any]) -> dict[str, Any]:
        """A choice of runs with numbers for `{to: …}`, and with sizes of data in bytes, as the runs have them."""
        resolved = dict(where)
        if "data.scale" in where:
            resolved["data.scale"] = kilobytes(where["data.scale"], self.machine)
        for key in KEYS:
            if where.get(key) in ({"to": "machine"}, {"to": "node"}):
                resolved[key] = self.end(key, where[key]["to"])
        return resolved
