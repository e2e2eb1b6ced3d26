"""Resolve the settings that a run leaves to the machine: device, threads, nodes, hosts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scalestudy.errors import Skipped
from scalestudy.hardware import ON_PURPOSE, accelerators
from scalestudy.launch.allocation import Allocation, mpi_by_srun, where_to_run
from scalestudy.site_fault import SiteFault, lacking, site_file
from scalestudy.spec.config import Site, read_site
from scalestudy.spec.machine import Machine, geometry
from scalestudy.spec.run import NGINX, RunSpec
from scalestudy.spec.step_times import emulated_step_time
from scalestudy.strategies.build import missing_build, missing_on_node
from scalestudy.training.job import Resolved

if TYPE_CHECKING:
    from scalestudy.emulation.network import EmulatedNode

COMPILERS = ("c++", "g++", "clang++")


def resolve(spec: RunSpec, machine: Machine, site: Site | None = None) -> tuple[Resolved, Allocation]:
    """Resolve a run by machine and job.

    Raises Skipped where the run cannot be made here, and SiteFault where a job's node lacks a feature of the site file.
    """
    site = read_site() if site is None else site
    by_srun = mpi_by_srun(site)
    if missing := missing_on_node(spec.strategy, "srun" if by_srun else "mpirun"):
        raise lacking(*missing, site.lacks)
    if reason := missing_build(spec.strategy):
        raise Skipped(reason)
    device, step_time_s = _device(spec, machine)
    if spec.tf32 and device != "cuda":
        raise Skipped("TF32 is of GPUs, and the run computes on the CPU; leave `tf32` out")
    devices = machine.devices_per_node or (accelerators().count if device == "cuda" else 0)
    nodes, ranks_per_node = geometry(spec, machine, devices)
    if spec.compile and step_time_s is None and not any(map(shutil.which, COMPILERS)):
        raise lacking("torch.compile needs a C++ compiler, and none was found (g++ or clang++)", "c++", site.lacks)
    sharers = max(devices, ranks_per_node) if spec.launch.oversubscribe else devices
    threads = spec.threads_per_rank or (max(1, machine.cores // sharers) if device == "cuda" and devices else 1)
    where = where_to_run(spec, nodes, site)
    if device == "cuda":
        _check_gpus(spec, where, devices, machine, site)
    if where.launcher == "mpirun" and not by_srun:
        _check_mpi(spec, site)
    promised = machine.transport
    resolved = Resolved(
        nodes, ranks_per_node, threads, device, machine.cores, step_time_s, promised.within, promised.between, devices,
        *_peaks(spec, machine, device),
    )  # fmt: skip
    return resolved, where


def _peaks(spec: RunSpec, machine: Machine, device: str) -> tuple[float | None, float | None]:
    """Dense peak of an accelerator in matrix products and in convolutions, TFLOP/s; None where it is not stated.

    Torch computes convolutions of float32 in TF32 where the GPU can, unless `tf32` forbids it.
    """
    peaks = machine.peak_tflops
    products = peaks.get(spec.autocast or ("tf32" if spec.tf32 else spec.dtype))
    may_use_tf32 = device == "cuda" and spec.tf32 is None and spec.autocast is None and spec.dtype == "float32"
    return products, peaks.get("tf32", products) if may_use_tf32 else products


def _device(spec: RunSpec, machine: Machine) -> tuple[str, float | None]:
    """Where ranks compute, and the seconds of a step where that is emulated.

    On a machine with accelerators in its file, the CPU computes only where run or file name it.
    """
    if spec.accelerator is not None:
        return "cpu", emulated_step_time(spec.model.name, spec.accelerator, spec.rank_batch)
    if device := spec.device or machine.device:
        return device, None
    visible_devices = accelerators()
    if visible_devices.refusal:
        raise Skipped(f"{visible_devices.refusal}; {ON_PURPOSE}")
    return "cuda" if visible_devices.count or machine.devices_per_node else "cpu", None


def _check_mpi(spec: RunSpec, site: Site) -> None:
    """Require an mpirun with known options."""
    from scalestudy.launch import mpi

    family, strategy = mpi.family("mpirun"), spec.strategy
    if family is None or (strategy.needs_build and family is not mpi.OPEN):
        names = [mpi.OPEN.name] if strategy.needs_build else [one.name for one in mpi.FAMILIES]
        here = "none of these" if family is None else f"that of {family.name}"
        reason = f"strategy `{strategy.name}` needs the mpirun of {' or '.join(names)}; the `mpirun` here is {here}"
        raise lacking(reason, "mpirun", site.lacks)


def check_promised_gpus(resolved: Resolved, machine: Machine, file: str) -> None:
    """Raise SiteFault where the machine's `file` promises GPUs, ranks are to compute on them, and this node shows too few."""
    promised = machine.devices_per_node
    if resolved.device != "cuda" or not promised:
        return
    seen = accelerators().count
    if seen < min(promised, resolved.ranks_per_node):
        has = f"{seen} of them" if seen else "none"
        what = f"{file} says {promised} GPUs per node, but this node has {has}"
        remedy = f"correct the request in {site_file()}, or `devices_per_node` in {file}; to compute on CPUs, set `device: cpu` there"
        raise SiteFault(what, remedy)


def _check_gpus(spec: RunSpec, where: Allocation, devices: int, machine: Machine, site: Site) -> None:
    """Require a GPU per rank, or an exchange that can share them, and a torch for GPUs."""
    ranks_on_host = -(-spec.ranks // len(where.hosts))
    if ranks_on_host > devices:
        of = "this machine has" if len(where.hosts) == 1 else "a node has"
        if not spec.launch.oversubscribe or not devices:
            may = "; `launch.oversubscribe: true` lets them share, over gloo" if devices else ""
            what = f"{ranks_on_host} ranks need as many GPUs; {of} {devices}{may}"
            raise Skipped(what) if machine.devices_per_node else lacking(what, "gpu", site.lacks)
        if not spec.strategy.shares_devices:
            what = f"{ranks_on_host} ranks cannot share {devices} GPU{'s' if devices > 1 else ''}"
            why = "NCCL refuses two ranks on one GPU, and gloo has not all that this exchange needs on GPUs"
            remedy = "use `allreduce`, `ring` or `parameter_server`"
            raise Skipped(f"{what} with strategy `{spec.strategy.name}`: {why}; {remedy}")
    seen = accelerators().count
    if where.is_here and spec.program is None and seen:
        import torch

        if not torch.backends.cuda.is_built():
            what = f"this machine has {seen} GPU{'s' if seen > 1 else ''}, and torch {torch.__version__} is built for the CPU alone"
            raise Skipped(f"{what}; install a torch for GPUs, or set `device: cpu` to measure the CPU")


@dataclass(frozen=True)
class EmulatedNetwork:
    """What a run has of an emulated network."""

    nodes: Sequence[EmulatedNode] = ()
    """Those of its ranks; none: it uses the network that is there."""
    processes: tuple[int, ...] = ()
    """The switch and the server, where there are such processes."""
    server: str | None = None
    """Address of the server of its data, where it has one."""


@contextmanager
def network_of(spec: RunSpec, resolved: Resolved, where: Allocation, data: Path | None) -> Iterator[EmulatedNetwork]:
    """The emulated nodes of the run, while it runs; none where it uses the network that is there.

    One more has a server of the files below `data`, where the run reads from one.
    """
    if spec.network is None:
        yield EmulatedNetwork()
        return
    if where.launcher != "local":
        what = "an emulated network connects processes that are forked on one machine"
        raise Skipped(f"{what}; this run is started by {where.launcher}")
    from scalestudy.emulation.network import emulated_nodes

    has_server = spec.loader.origin == NGINX and data is not None
    with emulated_nodes(resolved.nodes + has_server, spec.network.mib_per_s, spec.network.latency_ms / 1000) as nodes:
        switch = tuple(node.relay for node in nodes[:1] if node.relay)
        if not has_server or data is None:
            yield EmulatedNetwork(nodes, switch)
            return
        from scalestudy.emulation.file_server import file_server

        with file_server(nodes[-1], data) as (address, server):
            yield EmulatedNetwork(nodes[:-1], (*switch, server), address)
