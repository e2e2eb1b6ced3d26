"""From the resources of a Snakemake job to a request to a scheduler.

Names are those of this executor and those that rules written for others use; README.md has them in a table. A name with
a scheduler's in front (`slurm_account`) is meant for that scheduler alone, and comes before the plain one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_multinode.schedulers import Request
from snakemake_executor_plugin_multinode.site import checked_word

COUNTS = (
    "nodes", "ranks_per_node", "tasks", "cpus_per_rank", "gpus_per_node", "gpus", "gpus_held_per_node", "mem_mb",
    "mem_mb_per_cpu", "runtime",
)  # fmt: skip
"""Resources that are whole numbers."""
WORDS = ("account", "queue", "qos", "constraint", "gpu_model")
"""Resources that are single words."""
ALIASES = {"ranks_per_node": "tasks_per_node", "cpus_per_rank": "cpus_per_task", "gpus": "gpu", "queue": "partition"}
"""Other names of some of them, in rules written for other executors."""
WIDTHS = ("nodes", "ranks_per_node", "tasks")
FROM_ONE = (*WIDTHS, "cpus_per_rank", "runtime")
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
MIN_MEM_MB = 200
"""A job has at least so much memory: the Snakemake in it needs it, whatever the rule's own command takes."""


def request_of(resources: Mapping[str, Any], threads: int, kind: str) -> Request:
    """Compose the request of a job to a scheduler of that kind, with a name and files still to be given.

    ValueError, with a sentence, where a resource is of a wrong kind, or two of them contradict each other.
    """
    counts = {plain: _count(resources, plain, kind) for plain in COUNTS}
    words = {plain: _word(resources, plain, kind) for plain in WORDS}
    nodes = counts["nodes"] or 1
    ranks_per_node = _shared_out(counts, "tasks", "ranks_per_node", nodes) or 1
    cpus_per_rank = counts["cpus_per_rank"] or max(1, threads)
    gpus_per_node = _shared_out(counts, "gpus", "gpus_per_node", nodes) or 0
    if words["gpu_model"] is not None and not gpus_per_node:
        raise ValueError(f"the resource `gpu_model` ({words['gpu_model']}) has no effect without `gpus`")
    if _named(resources, "gres", kind) is not None:
        raise ValueError(f"`gres` is not read: request GPUs by `gpus` and `gpu_model`, anything else by `{kind}_extra`")
    # `mem_mb_per_cpu` comes first: Snakemake sets `mem_mb` by itself where a rule does not.
    mem_mb = (counts["mem_mb_per_cpu"] or 0) * ranks_per_node * cpus_per_rank or counts["mem_mb"]
    return Request(
        name="",
        script=Path(),
        log=Path(),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        gpus_per_node=gpus_per_node,
        cpus_per_rank=cpus_per_rank,
        mem_mb=max(mem_mb, MIN_MEM_MB) if mem_mb else None,
        runtime_min=counts["runtime"],
        gpus_held_per_node=counts["gpus_held_per_node"] or 0,
        queue=words["queue"],
        account=words["account"],
        qos=words["qos"],
        constraint=words["constraint"],
        gpu_model=words["gpu_model"],
        extra=_extra(resources, kind),
        hosts=_hosts(resources, nodes),
    )


def state_file(resources: Mapping[str, Any], folder: Path) -> Path | None:
    """The file in which a job says that it has saved its state, where it has one; `folder` is that of its first output.

    ValueError where it is no path.
    """
    value = resources.get("chain_state")
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"the resource `chain_state` must be the path of a file, not {value!r}")
    return (folder / value).absolute()


def of_group(merged: Mapping[str, Any], members: Sequence[Mapping[str, Any]], kind: str) -> dict[str, Any]:
    """The resources of a group of jobs: Snakemake has added up those of members that may run side by side.

    That is right for cores, memory and GPUs, and wrong for properties of the whole job. The group is one task on one node,
    with the cores that its widest member needs. ValueError for a member with several nodes, and where members with several
    tasks may run side by side.
    """
    if any((_count(member, "nodes", kind) or 1) > 1 for member in members):
        raise ValueError(
            "a job over several nodes cannot be part of a group, whose members share one node; take its rule out of the "
            "group"
        )
    widest = max(_tasks(member, kind) for member in members)
    if widest > 1 and _tasks(merged, kind) > widest:
        raise ValueError(
            "members of a group with several tasks cannot run side by side: let them have a resource of which there is one, "
            "as `--resources alone=1 --set-resource-scopes alone=local` says"
        )
    replaced = {name for plain in (*WIDTHS, "cpus_per_rank") for names in _names(plain, kind) for name in names}
    resources = {name: value for name, value in merged.items() if name not in replaced}
    for plain in ("mem_mb_per_cpu", "gpus_held_per_node"):
        for name in (plain, f"{kind}_{plain}"):
            if name in resources:
                resources[name] = max(member.get(name) or 0 for member in members)
    cores = max(_count(merged, "cpus_per_rank", kind) or 1, merged.get("_cores", 1))
    each = [_tasks(member, kind) * (_count(member, "cpus_per_rank", kind) or 1) for member in members]
    return {**resources, "cpus_per_rank": cores if widest == 1 else max(cores, *each)}


def _tasks(resources: Mapping[str, Any], kind: str) -> int:
    """Tasks of a job on one node."""
    return max(_count(resources, plain, kind) or 1 for plain in ("ranks_per_node", "tasks"))


def _names(plain: str, kind: str) -> tuple[list[str], list[str]]:
    """The scheduler's own names of a resource, which come first, and those for all schedulers."""
    names = [plain, ALIASES[plain]] if plain in ALIASES else [plain]
    return [f"{kind}_{name}" for name in names], names


def _named(resources: Mapping[str, Any], plain: str, kind: str) -> tuple[str, Any] | None:
    """The name by which a resource is set, and its value. ValueError where two names contradict each other."""
    for group in _names(plain, kind):
        settings = [(name, resources[name]) for name in group if resources.get(name) is not None]
        if len({repr(value) for _, value in settings}) > 1:
            pairs = [f"`{name}` ({value!r})" for name, value in settings]
            raise ValueError(f"the resources {' and '.join(pairs)} contradict each other")
        if settings:
            return settings[0]
    return None


def _count(resources: Mapping[str, Any], plain: str, kind: str) -> int | None:
    name, value = _named(resources, plain, kind) or ("", None)
    least = int(plain in FROM_ONE)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise ValueError(f"the resource `{name}` must be a whole number of at least {least}, not {value!r}")
    return value


def _word(resources: Mapping[str, Any], plain: str, kind: str) -> str | None:
    name, value = _named(resources, plain, kind) or ("", None)
    return None if value is None else checked_word(str(value), f"the resource `{name}`")


def _shared_out(counts: Mapping[str, int | None], total: str, share: str, nodes: int) -> int | None:
    """How many a node has, from the number on all nodes and that of one. ValueError where they contradict each other."""
    of_all, of_one = counts[total], counts[share]
    if of_all is None:
        return of_one
    if of_all % nodes:
        raise ValueError(f"the resource `{total}` ({of_all}) is not a multiple of `nodes` ({nodes})")
    if of_one not in (None, of_all // nodes):
        raise ValueError(f"the resources `{total}` ({of_all}) and `{share}` ({of_one}) contradict each other")
    return of_all // nodes


def _hosts(resources: Mapping[str, Any], nodes: int) -> tuple[str, ...]:
    """`n01,n02`: as many names as the job has nodes; none where any nodes will do."""
    value = resources.get("hosts")
    if value is None:
        return ()
    hosts = tuple(str(value).split(","))
    if len(hosts) != nodes or not all(HOST.fullmatch(host) for host in hosts):
        raise ValueError(f"the resource `hosts` must name {nodes} nodes with commas between them, not {str(value)!r}")
    return hosts


def _extra(resources: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """Further words for the submit line of one scheduler."""
    name = f"{kind}_extra"
    value = resources.get(name)
    if value is None:
        return ()
    if not isinstance(value, str):
        raise ValueError(f"the resource `{name}` must be words as a shell reads them, not {value!r}")
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"the resource `{name}` is not closed: {error}: {value!r}") from None
