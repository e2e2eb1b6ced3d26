"""Findings about nodes, with remedies; every sentence about a file names the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.cluster.doctor import gpu_support
from scalestudy.measure.instrument import code_digest
from scalestudy.site_fault import site_file
from scalestudy.spec.config import read_site
from scalestudy.spec.machine import Machine

SKEW_S = 1.0
"""Clocks further apart than this make a deadline wrong."""
MACHINE_FILE = "the machine file"
SLACK = 0.97
"""A node's memory, less what its firmware and kernel keep, over what its vendor says."""


@dataclass(frozen=True)
class Finding:
    """One finding; `remedy` is empty where nothing is wrong."""

    what: str
    remedy: str = ""


OF_SEVERAL = {"has": "have", "does": "do", "lacks": "lack", "runs": "run"}
"""Verbs of one node, as several have them."""
Check = tuple[Callable[[dict[str, Any]], bool], str, str]


def node_findings(
    reports: Sequence[dict[str, Any]], nodes: int, machine: Machine, machine_file: str = MACHINE_FILE
) -> Iterator[Finding]:
    """Find lacks of the nodes, each item once, with its nodes."""
    if len(reports) < nodes:
        yield Finding(
            f"{len(reports)} of {nodes} nodes answered",
            f"see the job's log; set `launcher` in {site_file()} to how a job reaches its other nodes (srun, pbsdsh, qrsh, mpiexec, ssh)",
        )
    for wrong, what, remedy in _checks(machine, machine_file):
        if hosts := [report["host"] for report in reports if wrong(report)]:
            yield Finding(_said(hosts, what), remedy)
    troubles: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        if trouble := gpu_support.problem(report["torch"], report.get("gpu") or {}):
            troubles.setdefault(trouble, []).append(report["host"])
    yield from (Finding(_said(hosts, what), remedy) for (what, remedy), hosts in troubles.items())
    versions = {str((r["torch"].get("version"), r["python"]["version"])) for r in reports if "error" not in r["torch"]}
    if len(versions) > 1:
        yield Finding(
            f"nodes have different versions: {', '.join(sorted(versions))}", "use one environment on all nodes"
        )


def devices(report: Mapping[str, Any]) -> int:
    """GPUs that torch can use on a node."""
    return int(report["torch"].get("devices") or 0)


def _checks(machine: Machine, file: str) -> list[Check]:
    """Condition, sentence after the host's name, and remedy of each check."""
    gpus, cores, memory = machine.devices_per_node or 0, machine.cores_per_node, machine.memory_gib
    lacks, site = read_site().lacks, site_file()
    cuda = machine.device == "cuda" or (machine.device is None and gpus > 0)
    return [
        (lambda r: not r["shared"], "does not see this folder", "put the project on storage that all nodes share"),
        (lambda r: "error" in r["torch"], "cannot import torch", f"name the software of jobs in {site}: `modules`, `conda`, `container`, or `scheduler.setup`"),
        (lambda r: r.get("code") not in (None, code_digest()), "runs another scalestudy than this one", "install this one there too; build the container's image again"),
        (lambda r: "error" in r["scratch"], "cannot write its scratch", f"set `scratch` in {site} to the node's own disk"),
        (lambda r: r["mpi"] is None and "mpirun" not in lacks, "has no mpirun: runs that need MPI will fail", f"load a module of MPI: `modules` in {site}; where no node has one, `lacks: [mpirun]` there has such runs skipped"),
        (lambda r: r["torch"].get("accelerator", "cuda") != "cuda", "has an accelerator of a type that runs cannot use", "set `device: cpu` to measure the CPU"),
        (lambda r: cuda and not devices(r), "has no GPU that torch can use", f"check the request of GPUs in {site}, the driver, and that torch is a CUDA build; without GPUs, set `device: cpu` in {file}"),
        (lambda r: cuda and 0 < devices(r) < gpus, f"has fewer GPUs than `devices_per_node: {gpus}` of {file}", f"correct `devices_per_node` there, or request whole nodes in {site}"),
        (lambda r: bool(cores) and r.get("node_cores", cores) < (cores or 0), f"has fewer cores than `cores_per_node: {cores}` of {file}", "correct `cores_per_node`"),
        (lambda r: bool(memory) and r.get("memory_gib", memory) < SLACK * (memory or 0), f"has less memory than `memory_gib: {memory}` of {file}", "correct `memory_gib`"),
        (lambda r: abs(r["skew_s"] or 0.0) > SKEW_S, "has a clock that differs by more than a second from that of the shared storage", "tell the administrators: deadlines depend on the clock"),
        (lambda r: not all(r["data_roots"].values()), "lacks a folder of `data_roots`", f"correct it in {site}, or mount it on the nodes"),
    ]  # fmt: skip


def _said(hosts: Sequence[str], what: str) -> str:
    """The hosts, and a sentence that begins with the verb of one of them."""
    names = list(dict.fromkeys(hosts))
    verb, _, rest = what.partition(" ")
    verb = OF_SEVERAL.get(verb, verb) if len(names) > 1 else verb
    return f"{', '.join(names[:5])}{' and more' if len(names) > 5 else ''} {verb} {rest}"
