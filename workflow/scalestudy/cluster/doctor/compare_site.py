"""Machine and site file against the scheduler's own description; every sentence names the file that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scalestudy.cluster.doctor.facts import WORDS, ClusterFacts
from scalestudy.cluster.doctor.findings import Finding
from scalestudy.cluster.resources import memory_mb
from scalestudy.errors import nearest
from scalestudy.spec.machine import Machine, Queue


def differences(
    machine: Machine, machine_file: str, settings: Any, site_file: str, facts: ClusterFacts
) -> Iterator[Finding]:
    """Values of both files that the scheduler would refuse, or leave waiting for ever; then hints."""
    system, known = WORDS[facts.system], [queue.name for queue in facts.queues]
    default = facts.queue(None)
    own = settings.queue or (default.name if default is not None else None)
    named = [(machine_file, f"queues.{name}", name) for name in machine.queues]
    named += [(site_file, "scheduler.queue", settings.queue)] if settings.queue else []
    for file, key, name in named if facts.nodes and known else ():
        if name not in known:
            yield Finding(f"{file}: `{key}`: {system} has no open queue `{name}`", nearest(name, known))
    queues: list[str | None] = [*machine.queues] or [own]
    for queue in queues if facts.nodes else ():
        if queue is None or queue in known:
            for wrong, what, remedy in _of_queue(machine, queue, facts, system):
                if wrong:
                    yield Finding(f"{machine_file}: {what}", remedy)
    yield from _of_cluster(machine, machine_file, settings, site_file, facts)


Row = tuple[bool, str, str]
"""Whether it is wrong, the finding, and its remedy."""


def _of_queue(machine: Machine, queue: str | None, facts: ClusterFacts, system: str) -> Iterator[Row]:
    """The machine file against the nodes and limits of one queue."""
    nodes, kind, found = facts.nodes_of(queue), facts.kind_of(queue), facts.queue(queue)
    assert kind is not None
    where, limits = f" in {queue}" if queue else "", machine.queues.get(queue or "", Queue())
    prefix = f"queues.{queue}." if queue in machine.queues else ""
    never = "jobs with more nodes would never run"
    wanted = (limits.most_nodes if machine.queues else machine.nodes) or 0
    key = f"{prefix}most_nodes" if limits.most_nodes else "nodes"
    yield (
        wanted > len(nodes),
        f"`{key}: {wanted}`, and {system} has {len(nodes)} nodes{where}",
        f"set `{key}: {len(nodes)}` there: {never}",
    )
    cores = machine.cores_per_node or kind.cores
    effect = "jobs would never run" if (cores or 0) > (kind.cores or 0) else "the others would be idle"
    yield (
        kind.cores is not None and cores != kind.cores,
        f"`cores_per_node: {cores}`, and a node{where} has {kind.cores} by {system}",
        f"set `cores_per_node: {kind.cores}` there: {effect}",
    )
    asked, has = memory_mb(machine) if machine.memory_gib or machine.job_memory_gib else 0, kind.memory_mib or 0
    yield (
        0 < has < asked,
        f"each job asks for {asked:,} MiB per node, and a node{where} has {has:,} by {system}",
        f"set `memory_gib: {int(has / 102.4) / 10:g}` there, or `job_memory_gib` to less",
    )
    gpus = machine.devices_per_node if limits.devices_per_node is None else limits.devices_per_node
    counts = kind.gpus > 0 or facts.system != "sge"  # a Grid Engine may not count its GPUs
    yield (
        gpus is not None and gpus != kind.gpus and counts,
        f"`devices_per_node: {gpus}`, and a node{where} has {kind.gpus} GPUs by {system}",
        f"set `devices_per_node: {kind.gpus}` there, or name the queue that has such nodes",
    )
    if found is None:
        return
    limit_h, of_queue = (found.walltime_min or 0) / 60, bool(limits.walltime_limit_h)
    mine, key = limits.walltime_limit_h or machine.walltime_limit_h, f"{prefix if of_queue else ''}walltime_limit_h"
    yield (
        limit_h > 0 and (mine is None or mine > limit_h),
        f"`{key}` is {f'{mine:g}' if mine else 'not set'}, and a job in {found.name} has at most {limit_h:g} hours",
        f"set `{key}: {limit_h:g}` there: what takes longer becomes a chain of jobs",
    )
    most, wanted = found.most_nodes or 0, limits.most_nodes or machine.limits.most_nodes or machine.nodes or len(nodes)
    yield (
        0 < most < min(wanted, len(nodes)),
        f"a job in {found.name} may have at most {most} nodes",
        f"set `{prefix or 'limits.'}most_nodes: {most}` there",
    )


def _of_cluster(
    machine: Machine, machine_file: str, settings: Any, site_file: str, facts: ClusterFacts
) -> Iterator[Finding]:
    """Both files against the whole cluster: nodes by name, accounts, jobs of one user."""
    system, names = WORDS[facts.system], {node.name for node in facts.nodes}
    in_queues = {node.name for queue in machine.queues for node in facts.nodes_of(queue)}
    if in_queues and (machine.nodes or 0) > len(in_queues):
        yield Finding(
            f"{machine_file}: `nodes: {machine.nodes}`, and {system} has {len(in_queues)} nodes in its queues",
            f"set `nodes: {len(in_queues)}` there: jobs with more nodes would never run",
        )
    if unknown := sorted(set(machine.host_names) - names) if names else []:
        yield Finding(
            f"{machine_file}: `hosts` names {', '.join(unknown[:5])}, which {system} does not have",
            "take the names from `scalestudy doctor --hosts`: jobs on others would never run",
        )
    if down := [node.name for node in facts.nodes if not node.up]:
        yield Finding(f"{len(down)} of {len(facts.nodes)} nodes take no jobs now: {', '.join(down[:5])}")
    account, accounts = settings.account, facts.accounts
    if account and accounts and account not in accounts:
        yield Finding(
            f"{site_file}: `scheduler.account: {account}` is not among your accounts", nearest(account, accounts)
        )
    if not account and len(accounts) > 1:
        yield Finding(
            f"{site_file}: no `scheduler.account`: jobs are charged to the default one of {', '.join(accounts)}"
        )
    most, known = facts.most_submitted, machine.limits.most_jobs
    if most is not None and (known is None or known > most):
        yield Finding(
            f"{machine_file}: `limits.most_jobs` is {known or 'not set'}, and {system} lets a user have {most} jobs",
            f"set `limits: {{most_jobs: {most}}}` there: the plan's makespan counts on it, and jobs wait for it",
        )
    yield from map(Finding, facts.notes)
