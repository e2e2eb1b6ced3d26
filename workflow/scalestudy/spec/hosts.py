"""`nodes: each`: an axis over the nodes of a machine by name, so that each of them, or each pair of them, is measured."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, get_args

from scalestudy.errors import UserError
from scalestudy.spec.base import Spec
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import THIS_HOST

Which = Literal["each", "pairs", "neighbours"]
WORDS: tuple[str, ...] = get_args(Which)
KEY = "nodes"
"""The key of a run that the words stand for; it is `hosts` that they set."""


class HostAxis(Spec):
    """In place of numbers for `nodes`: the machine's nodes by name."""

    hosts: Which
    """`each`: every node alone; `pairs`: every two of them; `neighbours`: each with the next in the list, the last with
    the first."""


class NoHosts(UserError):
    """The machine does not say what its nodes are called."""


def hosts_of(machine: Machine, name: str) -> tuple[str, ...]:
    """The nodes of a machine by name: those of its file; of one that has one node, or says nothing, this host.

    Raises NoHosts where the machine has several nodes and its file does not name them.
    """
    if machine.hosts:
        return machine.host_names
    if machine.nodes is None or machine.nodes == 1:
        return (THIS_HOST,)
    remedy = 'add `hosts: ["node[01-16]"]`; `scalestudy doctor --hosts --profile …` asks the scheduler for the names'
    raise NoHosts(f"machine `{name}` does not name its nodes", f"config/machines/{name}.yaml", remedy)


def groups(axis: HostAxis, hosts: Sequence[str]) -> list[tuple[str, ...]]:
    """The nodes of each run; no pair where there is one node."""
    if axis.hosts == "each":
        return [(host,) for host in hosts]
    if axis.hosts == "pairs" or len(hosts) < 3:
        return list(itertools.combinations(hosts, 2))
    return list(zip(hosts, [*hosts[1:], hosts[0]], strict=True))
