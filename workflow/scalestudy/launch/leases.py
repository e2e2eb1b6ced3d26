"""Nodes of one job that several runs share, each with nodes of its own: `pilot: true` of a site.

All runs are started by one driver, on one of the nodes, so that a lock on that node's own disk tells who has which. A
process holds the locks of its nodes, and they end with it, however it ends. One run at a time collects nodes and keeps
those that it has got, so that narrow runs do not keep a wide one waiting for ever.

The driver's own node is shared with the driver, and with what prepares data and draws figures. It takes part in runs that
need all nodes, or that name it; these wait for other work there, and other work waits for them.
"""

from __future__ import annotations

import fcntl
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from scalestudy.errors import Skipped, UserError
from scalestudy.host_lock import lock_folder
from scalestudy.launch.allocation import allocation
from scalestudy.launch.job_environment import JobEnvironment
from scalestudy.spec.config import Site, read_site
from scalestudy.spec.hostlist import short
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import THIS_HOST, RunSpec

POLL_S = 0.2
SAY_AFTER_S = 5.0


@dataclass(frozen=True)
class Lease:
    """The nodes that a run has to itself."""

    hosts: tuple[str, ...] | None = None
    """As its job names them; None: all that the job has."""
    here: bool = True
    """Whether this machine is one of them."""


@contextmanager
def leased(
    name: str, spec: RunSpec, machine: Machine, site: Site | None = None, environment: Mapping[str, str] = os.environ
) -> Iterator[Lease]:
    """Held by a run while it lasts: its nodes, where runs share those of a job. `name` is what is printed while it waits.

    A process that waits has not imported torch yet: it takes no time from a run that is measured on this machine.
    """
    site = read_site() if site is None else site
    if not site.pilot:
        yield Lease()
        return
    found = allocation(environment, site)
    hosts = (platform.node(),) if found is None else found.hosts
    here = JobEnvironment(environment).here(hosts)
    known = len(hosts) > 1
    try:
        wanted, count = _wanted(spec, machine, site, hosts, here)
    except (Skipped, UserError):  # said where the run is resolved, as a result or an error of this run
        wanted, count, known = [here], 1, False
    with ExitStack() as held:
        taken = _take(held, name, wanted, count, _folder(environment))
        yield Lease(taken if known else None, here in taken)


def _wanted(spec: RunSpec, machine: Machine, site: Site, hosts: Sequence[str], here: str) -> tuple[Sequence[str], int]:
    """The nodes that a run may have, those that it should take first at the front, and how many of them it needs.

    Raises UserError where the job has too few.
    """
    launcher = spec.launch.launcher or site.launcher
    if spec.network is not None or launcher == "local" or spec.hosts == (THIS_HOST,):
        return [here], 1
    if spec.hosts is not None:
        known = {short(host): host for host in hosts}
        missing = [host for host in spec.hosts if short(host) not in known]
        if missing:
            raise UserError(f"the job does not have {', '.join(missing)}", "hosts")
        return [known[short(host)] for host in spec.hosts], len(spec.hosts)
    from scalestudy.launch.resolve import nodes_needed

    count = nodes_needed(spec, machine)
    if count > len(hosts):
        raise UserError(f"the run needs {count} nodes, the job has {len(hosts)}", "nodes")
    others = [host for host in hosts if host != here]
    return ([here, *others] if count == len(hosts) else others), count


def _folder(environment: Mapping[str, str]) -> Path:
    """Where the locks of this job's nodes lie, on this machine's own disk; nobody else can open it."""
    job = JobEnvironment(environment).job_id or "hosts"
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in job)
    folder = lock_folder() / f"scalestudy-{os.getuid()}-nodes-{safe}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise UserError("is not a folder of this user", str(folder), "have it removed")
    return folder


def _take(held: ExitStack, name: str, wanted: Sequence[str], count: int, folder: Path) -> tuple[str, ...]:
    """Lock as many of the wanted nodes as are needed; waits for its turn, and then for nodes that are in use."""
    begin, said = time.monotonic(), False

    def wait() -> None:
        nonlocal said
        if not said and time.monotonic() - begin > SAY_AFTER_S:
            said = True
            nodes = "a node" if count == 1 else f"{count} nodes"
            print(f"scalestudy: {name} waits for {nodes} of this job", file=sys.stderr, flush=True)
        time.sleep(POLL_S)

    with open(folder / "turn", "ab") as turn:
        while not _locked(turn):
            wait()
        taken: list[str] = []
        while True:
            for host in wanted:
                if len(taken) < count and host not in taken:
                    file = open(folder / f"node-{host}", "ab")  # noqa: SIM115 (held until the run has ended)
                    if _locked(file):
                        held.enter_context(file)
                        taken.append(host)
                    else:
                        file.close()
            if len(taken) == count:
                return tuple(taken)
            wait()


def _locked(file: IO[bytes]) -> bool:
    """Lock an open file, unless another process has it; whether that worked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
