"""Which cores a process may use: by core, by socket, or as found. The granted cores are recorded."""

from __future__ import annotations

import os
from collections.abc import Sequence

from scalestudy.hardware import bus_ids
from scalestudy.measure.placement import Cpu, near_device, topology
from scalestudy.training.job import Job


def deal(binding: str, cpus: Sequence[Cpu], near: Sequence[Sequence[int]], threads: int) -> list[list[int]]:
    """The CPUs of each process of one machine; `near` holds, for each, those on its device's socket.

    `core`: `threads` whole cores each, near ones first; once all are dealt, they are dealt again. `socket`: the
    device's socket, else the sockets in turn, as `mpirun --map-by socket` deals them.
    """
    dealt = []
    if binding == "core":
        cores: dict[tuple[int, int], list[int]] = {}
        for cpu in cpus:
            cores.setdefault((cpu.socket, cpu.core), []).append(cpu.number)
        count, free = min(threads, len(cores)), list(cores)
        for near_cpus in near:
            if len(free) < count:
                free += [core for core in cores if core not in free]
            best = sorted(free, key=lambda core: not set(cores[core]) & set(near_cpus))[:count]
            free = [core for core in free if core not in best]
            dealt.append(sorted(number for core in best for number in cores[core]))
        return dealt
    sockets = sorted({cpu.socket for cpu in cpus})
    for index, near_cpus in enumerate(near):
        mine = {cpu.socket for cpu in cpus if cpu.number in near_cpus} or {sockets[index % len(sockets)]}
        dealt.append(sorted(cpu.number for cpu in cpus if cpu.socket in mine))
    return dealt


def bind(job: Job, rank: int, devices: int) -> None:
    """Restrict this process to its CPUs, before it starts threads. `devices`: how many of its neighbours have a GPU."""
    neighbours = job.on_host(job.host_of(rank))
    near = [near_device(bus_id) for bus_id in bus_ids(devices)] + [[]] * (len(neighbours) - devices)
    cpus = topology(sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(
        0, deal(job.spec.launch.binding, cpus, near, job.resolved.threads_per_rank)[job.local_rank(rank)]
    )
