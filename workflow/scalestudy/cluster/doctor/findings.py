"""Findings with remedies: lacks of nodes, and values of machine and site file that the scheduler contradicts.

Every sentence about a file names the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.cluster.doctor.facts import WORDS, ClusterFacts
from scalestudy.cluster.resources import memory_mb
from scalestudy.data.decode import kernel
from scalestudy.errors import nearest
from scalestudy.measure.instrument import code_digest
from scalestudy.site_fault import site_file
from scalestudy.spec.config import read_site
from scalestudy.spec.machine import Machine, Queue

SKEW_S = 1.0
"""Clocks further apart than this make a deadline wrong."""
SLACK = 0.97
"""A node's memory, less what its firmware and kernel keep, over what its vendor says."""
Report = Mapping[str, Any]
Version = tuple[int, ...]
OTHERS = (
    "take a torch for these: `make setup LOCK=cuda126` (CUDA 12.6, sm_50 to sm_90) or `make setup LOCK=default` (CUDA 13.0, "
    "sm_75 and newer), or a build of your own; or ask for other nodes"
)
"""Remedy. Architectures of CUDA 12.6: PyTorch, .ci/manywheel/build_cuda.sh; of 13.0: as the locked wheel says of itself."""
CODE = re.compile(r"(sm|compute)_(\d+)(\d)[a-z]?")


@dataclass(frozen=True)
class Finding:
    """One finding; `remedy` is empty where nothing is wrong."""

    what: str
    remedy: str = ""


def node_findings(reports: Sequence[Report], nodes: int, machine: Machine, machine_file: str) -> Iterator[Finding]:
    """Find lacks of the nodes, each item once, with its nodes."""
    if len(reports) < nodes:
        yield Finding(
            f"{len(reports)} of {nodes} nodes answered",
            f"see the job's log; set `launcher` in {site_file()} to how a job reaches its other nodes (srun, pbsdsh, qrsh, mpiexec, ssh)",
        )
    affected_hosts: dict[tuple[str, str], list[str]] = {}
    for wrong, what, remedy in _checks(machine, machine_file):
        for report in filter(wrong, reports):
            affected_hosts.setdefault((what, remedy), []).append(report["host"])
    for report in reports:
        if (trouble := problem(report["torch"], report.get("gpu") or {})) is not None:
            affected_hosts.setdefault(trouble, []).append(report["host"])
    for (what, remedy), hosts in affected_hosts.items():
        yield Finding(f"{', '.join(hosts[:5])}{' and more' if len(hosts) > 5 else ''}: {what}", remedy)
    versions = {str((r["torch"].get("version"), r["python"]["version"])) for r in reports if "error" not in r["torch"]}
    if len(versions) > 1:
        what = f"nodes have different versions: {', '.join(sorted(versions))}"
        yield Finding(what, "use one environment on all nodes")


def problem(torch: Mapping[str, Any], gpu: Mapping[str, Any]) -> tuple[str, str] | None:
    """The obstacle between torch and this GPU, and its remedy; None where there is none, or none is known.

    `torch` has `cuda` (text) and `arch` (list), `gpu` `capability` and `driver_cuda` ([major, minor]), as the probe finds them.
    """
    capability, driver = tuple(gpu.get("capability") or ()), tuple(gpu.get("driver_cuda") or ())
    cuda, version, archs = torch.get("cuda"), torch.get("version"), torch.get("arch") or []
    name = gpu.get("name") or "its GPU"
    if capability and not cuda and "error" not in torch:
        wrong = f"a GPU, {name}, and torch {version} has no CUDA"
    elif driver and cuda and driver[0] < int(cuda.partition(".")[0]):
        needs = f"a driver for CUDA {driver[0]}.{driver[1]}, and torch {version} needs one for CUDA"
        wrong = f"{needs} {cuda.partition('.')[0]}: it sees no GPU"
    elif capability and archs and not carries(archs, capability):
        holds = f"for which torch {version} holds no code ({' '.join(archs)})"
        wrong = (
            f"{name} (sm_{capability[0]}{capability[1]}), {holds}: runs would die with `no kernel image is available`"
        )
    else:
        return None
    return wrong, OTHERS


def carries(archs: Iterable[str], capability: Version) -> bool:
    """Whether code for `sm_75`, `compute_90`, … runs on a GPU of this compute capability.

    Binary code runs on the same major version and no lower minor one, PTX (`compute_…`) on that and all later ones:
    CUDA C++ Programming Guide, "Compilation with NVCC", binary and PTX compatibility.
    """
    targets = [(match[1], (int(match[2]), int(match[3]))) for match in map(CODE.fullmatch, archs) if match]
    return any(of <= capability and (kind == "compute" or of[0] == capability[0]) for kind, of in targets)


def devices(report: Report) -> int:
    """GPUs that torch can use on a node."""
    return int(report["torch"].get("devices") or 0)


def _checks(machine: Machine, file: str) -> list[tuple[Callable[[Report], bool], str, str]]:
    """Condition, sentence after the host names, and remedy of each check."""
    gpus, cores, memory = machine.devices_per_node or 0, machine.cores_per_node or 0, machine.memory_gib or 0
    lacks, site = read_site().lacks, site_file()
    cuda = machine.device == "cuda" or (machine.device is None and gpus > 0)
    return [
        (lambda r: not r["shared"], "this folder is not seen", "put the project on storage that all nodes share"),
        (lambda r: "error" in r["torch"], "torch cannot be imported", f"name the software of jobs in {site}: `modules`, `conda`, `container`, or `scheduler.setup`"),
        (lambda r: r.get("code") not in (None, code_digest()), "another scalestudy than this one", "install this one there too; build the container's image again"),
        (lambda r: "error" in r["scratch"], "its scratch cannot be written", f"set `scratch` in {site} to the node's own disk"),
        (lambda r: r["mpi"] is None and "mpirun" not in lacks, "no mpirun: runs that need MPI will fail", f"load a module of MPI: `modules` in {site}; where no node has one, `lacks: [mpirun]` there has such runs skipped"),
        (lambda r: r["torch"].get("kind", "") not in ("", "cuda"), "an accelerator of a type that runs cannot use", "set `device: cpu` to measure the CPU"),
        (lambda r: cuda and not devices(r), "no GPU that torch can use", f"check the request of GPUs in {site}, the driver, and that torch is a CUDA build; without GPUs, set `device: cpu` in {file}"),
        (lambda r: cuda and 0 < devices(r) < gpus, f"fewer GPUs than `devices_per_node: {gpus}` of {file}", f"correct `devices_per_node` there, or request whole nodes in {site}"),
        (lambda r: r.get("node_cores", cores) < cores, f"fewer cores than `cores_per_node: {cores}` of {file}", "correct `cores_per_node`"),
        (lambda r: r.get("memory_gib", memory) < SLACK * memory, f"less memory than `memory_gib: {memory}` of {file}", "correct `memory_gib`"),
        (lambda r: abs(r["skew_s"] or 0.0) > SKEW_S, "a clock that differs by more than a second from that of the shared storage", "tell the administrators: deadlines depend on the clock"),
        (lambda r: r.get("decoder", "").startswith("plain"), f"no C kernel to decode images, so that threads of the loader scale badly: `{kernel.BUILD}` builds it with a C compiler and libjpeg-turbo's headers", ""),
        (lambda r: not all(r["data_roots"].values()), "no folder of `data_roots`", f"correct it in {site}, or mount it on the nodes"),
    ]  # fmt: skip


def differences(
    machine: Machine, machine_file: str, settings: Any, site_file: str, facts: ClusterFacts
) -> Iterator[Finding]:
    """Find values of both files that the scheduler would refuse, or leave waiting for ever; then hints."""
    queue_names, default = [queue.name for queue in facts.queues], facts.queue(None)
    own = settings.queue or (default.name if default is not None else None)
    rows = [*_of_cluster(machine, machine_file, settings, site_file, facts)]
    queues: list[str | None] = [*machine.queues] or [own]
    for queue in queues if facts.nodes else ():
        if queue is None or queue in queue_names:
            rows += [(wrong, f"{machine_file}: {what}", todo) for wrong, what, todo in _of_queue(machine, queue, facts)]
    yield from (Finding(what, remedy) for wrong, what, remedy in rows if wrong)
    yield from map(Finding, facts.notes)


Row = tuple[bool, str, str]
"""Whether it is wrong, the finding, and its remedy; without one it is a hint."""


def _of_queue(machine: Machine, queue: str | None, facts: ClusterFacts) -> Iterator[Row]:
    """The machine file against the nodes and limits of one queue."""
    nodes, record, system = facts.nodes_of(queue), facts.queue(queue), WORDS[facts.system]
    where, limits = f" in {queue}" if queue else "", machine.queues.get(queue or "", Queue())
    gpus = machine.devices_per_node if limits.devices_per_node is None else limits.devices_per_node
    # Nodes as the file has them, where there are any: a queue may have other nodes beside them.
    alike = [one.kind for one in nodes if one.kind.gpus == gpus and machine.cores_per_node in (None, one.kind.cores)]
    kind = alike[0] if alike else Counter(one.kind for one in nodes).most_common(1)[0][0]
    prefix = f"queues.{queue}." if queue in machine.queues else ""
    never = "jobs with more nodes would never run"
    demand = (limits.most_nodes if machine.queues else machine.nodes) or 0
    key = f"{prefix}most_nodes" if limits.most_nodes else "nodes"
    what = f"`{key}: {demand}`, and {system} has {len(nodes)} nodes{where}"
    yield demand > len(nodes), what, f"set `{key}: {len(nodes)}` there: {never}"
    cores = machine.cores_per_node or kind.cores
    effect = "jobs would never run" if (cores or 0) > (kind.cores or 0) else "the others would be idle"
    what = f"`cores_per_node: {cores}`, and a node{where} has {kind.cores} by {system}"
    yield kind.cores is not None and cores != kind.cores, what, f"set `cores_per_node: {kind.cores}` there: {effect}"
    memory, has = memory_mb(machine) if machine.memory_gib or machine.job_memory_gib else 0, kind.memory_mib or 0
    what = f"each job asks for {memory:,} MiB per node, and a node{where} has {has:,} by {system}"
    yield 0 < has < memory, what, f"set `memory_gib: {int(has / 102.4) / 10:g}` there, or `job_memory_gib` to less"
    counts = facts.system == "slurm" or any(node.kind.gpus for node in facts.nodes)  # others may not count their GPUs
    what = f"`devices_per_node: {gpus}`, and a node{where} has {kind.gpus} GPUs by {system}"
    todo = f"set `devices_per_node: {kind.gpus}` there, or name the queue that has such nodes"
    yield gpus is not None and gpus != kind.gpus and counts, what, todo
    if record is None:
        return
    limit_h, mine = (record.walltime_min or 0) / 60, limits.walltime_limit_h or machine.walltime_limit_h
    key = f"{prefix if limits.walltime_limit_h else ''}walltime_limit_h"
    what = f"`{key}` is {f'{mine:g}' if mine else 'not set'}, and a job in {record.name} has at most {limit_h:g} hours"
    todo = f"set `{key}: {limit_h:g}` there: what takes longer becomes a chain of jobs"
    yield limit_h > 0 and (mine is None or mine > limit_h), what, todo
    most, demand = record.most_nodes or 0, limits.most_nodes or machine.limits.most_nodes or machine.nodes or len(nodes)
    what = f"a job in {record.name} may have at most {most} nodes"
    yield 0 < most < min(demand, len(nodes)), what, f"set `{prefix or 'limits.'}most_nodes: {most}` there"


def _of_cluster(
    machine: Machine, machine_file: str, settings: Any, site_file: str, facts: ClusterFacts
) -> Iterator[Row]:
    """Both files against the whole cluster: queues and nodes by name."""
    system, names = WORDS[facts.system], {node.name for node in facts.nodes}
    queue_names = [queue.name for queue in facts.queues]
    named = [(f"{machine_file}: `queues.{name}`", name) for name in machine.queues]
    of_site = [
        name.partition("@")[0] for name in (settings.queue or "").split(",")
    ]  # `gpu,gpu2` and `gpu.q@@a100` are valid
    named += [(f"{site_file}: `scheduler.queue`", name) for name in of_site if name]
    for key, name in named if facts.nodes and queue_names else ():
        yield name not in queue_names, f"{key}: {system} has no open queue `{name}`", nearest(name, queue_names)
    in_queues = {node.name for queue in machine.queues for node in facts.nodes_of(queue)}
    what = f"{machine_file}: `nodes: {machine.nodes}`, and {system} has {len(in_queues)} nodes in its queues"
    todo = f"set `nodes: {len(in_queues)}` there: jobs with more nodes would never run"
    yield 0 < len(in_queues) < (machine.nodes or 0), what, todo
    unknown = sorted(set(machine.hosts) - names) if names else []
    what = f"{machine_file}: `hosts` names {', '.join(unknown[:5])}, which {system} does not have"
    yield bool(unknown), what, f"correct them as {system} writes them: jobs on others would never run"
