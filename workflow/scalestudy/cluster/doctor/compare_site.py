"""Machine and site file against what the scheduler says; every sentence names the file that is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from scalestudy.cluster.doctor.facts.model import ClusterFacts, NodeKind
from scalestudy.cluster.doctor.findings import Finding
from scalestudy.cluster.resources import memory_mb
from scalestudy.errors import nearest
from scalestudy.spec.machine import Machine, Queue

WORDS = {"slurm": "Slurm", "pbs": "PBS", "sge": "Grid Engine"}


def differences(
    machine: Machine, machine_file: str, settings: Any, site_file: str, facts: ClusterFacts
) -> Iterator[Finding]:
    """What of both files the scheduler would refuse, or leave waiting for ever; then what is good to know."""
    said = WORDS[facts.system]
    if facts.nodes:
        default = facts.queue(None)
        own = settings.queue or (default.name if default is not None else None)
        queues: Sequence[str | None] = list(machine.queues) or [own]
        yield from _unknown_queues(machine, machine_file, settings, site_file, facts)
        in_queues = {node.name for queue in machine.queues for node in facts.nodes_of(queue)}
        if machine.queues and machine.nodes is not None and machine.nodes > len(in_queues):
            yield Finding(
                f"{machine_file}: `nodes: {machine.nodes}`, and {said} has {len(in_queues)} nodes in its queues",
                f"set `nodes: {len(in_queues)}` there: jobs with more nodes would never run",
            )
        for queue in queues:
            if queue is None or facts.queue(queue) is not None:
                yield from _of_nodes(machine, machine_file, queue, facts)
                yield from _of_time(machine, machine_file, queue, facts)
        if unknown := sorted(set(machine.host_names) - {node.name for node in facts.nodes}):
            yield Finding(
                f"{machine_file}: `hosts` names {', '.join(unknown[:5])}, which {said} does not have",
                "take the names from `scalestudy doctor --hosts`: jobs on others would never run",
            )
        if down := [node.name for node in facts.nodes if not node.up]:
            yield Finding(f"{len(down)} of {len(facts.nodes)} nodes take no jobs now: {', '.join(down[:5])}")
    yield from _accounts(settings, site_file, facts)
    most, known = facts.most_submitted, machine.limits.most_jobs
    if most is not None and (known is None or known > most):
        yield Finding(
            f"{machine_file}: `limits.most_jobs` is {known or 'not set'}, and {said} lets a user have {most} jobs",
            f"set `limits: {{most_jobs: {most}}}` there: the plan's makespan counts on it, and jobs wait for it",
        )
    yield from (Finding(note) for note in facts.notes)


def _unknown_queues(
    machine: Machine, machine_file: str, settings: Any, site_file: str, facts: ClusterFacts
) -> Iterator[Finding]:
    known = [queue.name for queue in facts.queues]
    named = [(machine_file, f"queues.{name}", name) for name in machine.queues]
    named += [(site_file, "scheduler.queue", settings.queue)] if settings.queue else []
    for file, key, name in named:
        if known and name not in known:
            yield Finding(f"{file}: `{key}`: {WORDS[facts.system]} has no open queue `{name}`", nearest(name, known))


def _of_nodes(machine: Machine, file: str, queue: str | None, facts: ClusterFacts) -> Iterator[Finding]:
    said, there = WORDS[facts.system], facts.nodes_of(queue)
    where = f" in {queue}" if queue else ""
    limits = machine.queues.get(queue or "", Queue())
    wanted = limits.most_nodes if machine.queues else machine.nodes
    if wanted is not None and wanted > len(there):
        key = f"queues.{queue}.most_nodes" if limits.most_nodes else "nodes"
        yield Finding(
            f"{file}: `{key}: {wanted}`, and {said} has {len(there)} nodes{where}",
            f"set `{key}: {len(there)}` there: jobs with more nodes would never run",
        )
    kind = facts.kind_of(queue)
    assert kind is not None
    yield from _of_kind(machine, file, kind, said, where, limits)


def _of_kind(machine: Machine, file: str, kind: NodeKind, said: str, where: str, limits: Queue) -> Iterator[Finding]:
    cores = machine.cores_per_node
    if cores is not None and kind.cores is not None and cores != kind.cores:
        effect = "jobs would never run" if cores > kind.cores else "the others would be idle"
        yield Finding(
            f"{file}: `cores_per_node: {cores}`, and a node{where} has {kind.cores} by {said}",
            f"set `cores_per_node: {kind.cores}` there: {effect}",
        )
    asked = memory_mb(machine) if machine.memory_gib or machine.job_memory_gib else None
    if asked is not None and kind.memory_mib is not None and asked > kind.memory_mib:
        fits = int(kind.memory_mib / 1024 * 10) / 10
        yield Finding(
            f"{file}: each job asks for {asked:,} MiB per node, and a node{where} has {kind.memory_mib:,} by {said}",
            f"set `memory_gib: {fits:g}` there, or `job_memory_gib` to less",
        )
    gpus = machine.devices_per_node if limits.devices_per_node is None else limits.devices_per_node
    if gpus is not None and gpus != kind.gpus and not (said == WORDS["sge"] and not kind.gpus):
        yield Finding(
            f"{file}: `devices_per_node: {gpus}`, and a node{where} has {kind.gpus} GPUs by {said}",
            f"set `devices_per_node: {kind.gpus}` there, or name the queue that has such nodes",
        )


def _of_time(machine: Machine, file: str, queue: str | None, facts: ClusterFacts) -> Iterator[Finding]:
    found = facts.queue(queue)
    limit = None if found is None or found.walltime_min is None else found.walltime_min / 60
    own = machine.queues.get(queue or "", Queue()).walltime_limit_h
    mine, key = (own, f"queues.{queue}.walltime_limit_h") if own else (machine.walltime_limit_h, "walltime_limit_h")
    where = f" in {found.name}" if found is not None else ""
    if limit is not None and (mine is None or mine > limit):
        yield Finding(
            f"{file}: `{key}` is {f'{mine:g}' if mine else 'not set'}, and a job{where} has at most {limit:g} hours",
            f"set `{key}: {limit:g}` there: what takes longer becomes a chain of jobs",
        )
    most = None if found is None else found.most_nodes
    wanted = machine.queues.get(queue or "", Queue()).most_nodes or machine.limits.most_nodes or machine.nodes
    if most is not None and (wanted is None or wanted > most) and most < len(facts.nodes_of(queue)):
        key = f"queues.{queue}.most_nodes" if queue in machine.queues else "limits.most_nodes"
        yield Finding(f"{file}: a job{where} may have at most {most} nodes", f"set `{key}: {most}` there")


def _accounts(settings: Any, file: str, facts: ClusterFacts) -> Iterator[Finding]:
    if settings.account and facts.accounts and settings.account not in facts.accounts:
        yield Finding(
            f"{file}: `scheduler.account: {settings.account}` is not among your accounts",
            nearest(settings.account, facts.accounts),
        )
    if not settings.account and len(facts.accounts) > 1:
        yield Finding(
            f"{file}: no `scheduler.account`: jobs are charged to the default one of {', '.join(facts.accounts)}"
        )
