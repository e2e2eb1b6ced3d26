"""How a run starts and ends: real processes, on this host alone or on nodes that are this host twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration import fork_server, ssh_nodes
from tests.integration.processes import wait_until, with_files_below
from tests.integration.tries import ROOT, SCALESTUDY, held, made, own_warnings

TWO = ("ranks=2", "strategy=allreduce")
TWO_NODES = (*TWO, "nodes=2")
FOUR_ON_TWO_NODES = ("ranks=4", "nodes=2", "strategy=allreduce")
LONG = ("train.epochs=100000", "train.evaluate_every_epochs=0")
UNTIL_ENDED = (*LONG, "checkpoint.every_steps=20", "faults=[{kind: slow_rank, rank: 0, seconds: 0.02}]")
"""Steps that are mostly sleep, with checkpoints by which they are seen."""


@dataclass
class Attempt:
    """One `scalestudy try`, whose every process can be found: each has a file below `folder` open."""

    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def out(self) -> Path:
        """The run's folder."""
        return self.folder / "out"

    @property
    def said(self) -> str:
        """What it printed."""
        return (self.folder / "said").read_text()

    @property
    def result(self) -> dict[str, Any]:
        """The result that it left."""
        return dict(json.loads((self.out / "result.json").read_text()))

    def processes(self) -> list[psutil.Process]:
        """Every process of the run that is not quite gone."""
        return with_files_below(self.folder)

    def rank(self, rank: int) -> psutil.Process:
        """The process of a rank that has begun to train."""
        file = self.out / "log" / f"rank.{rank}.log"
        found = wait_until(lambda: [process for process in self.processes() if output_of(process) == file], 60)
        assert found, self.said
        return found[0]

    def supervisor(self) -> psutil.Process:
        """What does the work of `scalestudy try`: a child of the warm server, with the client's output."""
        mine = [process for process in self.processes() if output_of(process) == self.folder / "said"]
        (found,) = [process for process in mine if process.pid != self.process.pid and process.children()]
        return found

    def wait_for_training(self) -> None:
        """Until the ranks of UNTIL_ENDED are in their steps, as their first checkpoint tells."""
        assert wait_until(lambda: any((self.out / "checkpoint").glob("step-*")), 60), self.said

    def nothing_is_left(self) -> None:
        """No process, so no port and no lock either; no temporary file."""
        assert wait_until(lambda: not self.processes(), 15), self.processes()
        left = {file.name for file in (self.folder / "tmp").iterdir() if file.suffix != ".lock"}
        assert not {name for name in left if not name.startswith("torchinductor_")}  # torch's cache of its own
        assert not [file for file in self.out.glob(".*") if file.suffix != ".lock"]


def output_of(process: psutil.Process) -> Path | None:
    """The file that a process writes to."""
    try:
        return Path(f"/proc/{process.pid}/fd/1").readlink()
    except OSError:
        return None


def begin(folder: Path, *settings: str, cwd: Path = ROOT, scalestudy: str = SCALESTUDY, **environment: str) -> Attempt:
    """Start `scalestudy try …` with a temporary folder of its own; code of one's own lies below `cwd`."""
    (folder / "tmp").mkdir()
    command = [scalestudy, "try", *settings, "--out", str(folder / "out")]
    with open(folder / "said", "wb") as said:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            stdout=said,
            stderr=said,
            env={**os.environ, "TMPDIR": str(folder / "tmp"), "SCALESTUDY_LOCKS": str(folder), **environment},
        )
    return Attempt(folder, process)


def make(folder: Path, *settings: str, cwd: Path = ROOT, **environment: str) -> Attempt:
    """`begin`, forked, to its end."""
    attempt = begin(folder, *settings, cwd=cwd, scalestudy=str(fork_server.commands() / "scalestudy"), **environment)
    attempt.process.wait(150)
    return attempt


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which ssh reaches alpha and beta, which are this host, and a site that names them."""
    folder = tmp_path_factory.mktemp("ssh")
    (folder / "site.yaml").write_text("hosts: [alpha, beta]\n")
    path = f"{ssh_nodes.programs(folder)}:{os.environ['PATH']}"
    return {"PATH": path, "SCALESTUDY_SITE": str(folder / "site.yaml")}


# On one host


def test_a_stopped_rank_is_silent_and_ends_the_run(tmp_path: Path) -> None:
    attempt = begin(tmp_path, *TWO, *UNTIL_ENDED, "heartbeat_timeout_s=3")
    attempt.wait_for_training()
    attempt.rank(1).send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    assert attempt.process.wait(60) == 1
    assert 2 < time.monotonic() - stopped < 30  # seconds; the default of heartbeat_timeout_s
    assert "rank 1 sent no heartbeat for 3 s: it is stopped, or waits for a device" in attempt.said
    assert "heartbeat_timeout_s" in attempt.said
    attempt.nothing_is_left()


def test_a_step_slower_than_any_heartbeat_is_no_hang(tmp_path: Path) -> None:
    slow = "faults=[{kind: slow_rank, rank: 1, seconds: 3.5, from_step: 12}]"
    short = ("measure={warmup_steps: 1, steps: 12}", "train.evaluate_every_epochs=0")
    attempt = make(tmp_path, *TWO, *short, "heartbeat_timeout_s=2", slow)
    assert made(attempt.process.returncode, attempt.said), attempt.said
    assert held(attempt.result)
    assert attempt.result["faults"] == {"slow_rank": 1}


def test_processes_bound_to_cores_have_one_each_and_their_affinity_is_recorded(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("this machine has one core")
    attempt = make(tmp_path, *TWO, "train.epochs=3", "launch.binding=core")
    first, second = attempt.result["affinity"]
    assert first and second and not set(first) & set(second)
    assert own_warnings(attempt.result) == []


# Over several nodes


def test_ssh_starts_ranks_on_every_node_though_one_comes_late_and_the_jobs_port_is_taken(
    tmp_path: Path, nodes: dict[str, str]
) -> None:
    late = tmp_path / "late"
    late.mkdir()
    (late / "ssh").write_text(f'#!/bin/sh\nsleep 1.5\nexec {nodes["PATH"].partition(":")[0]}/ssh "$@"\n')
    (late / "ssh").chmod(0o700)
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        slow_nodes = {**nodes, "PATH": f"{late}:{nodes['PATH']}", "MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1"}
        attempt = make(tmp_path, *FOUR_ON_TWO_NODES, "train.epochs=3", **slow_nodes)
    assert made(attempt.process.returncode, attempt.said), attempt.said
    assert held(attempt.result)
    assert attempt.result["launch"] == {"launcher": "ssh", "hosts": ["alpha", "beta"]}
    assert attempt.result["samples_seen"] == 3 * 11 * 128
    attempt.nothing_is_left()


def test_a_rank_that_dies_on_another_node_ends_all_and_names_the_node(tmp_path: Path, nodes: dict[str, str]) -> None:
    attempt = begin(tmp_path, *TWO_NODES, *UNTIL_ENDED, **nodes)
    attempt.wait_for_training()
    attempt.rank(1).send_signal(signal.SIGKILL)
    died = time.monotonic()
    assert attempt.process.wait(60) == 1
    attempt.nothing_is_left()
    assert time.monotonic() - died < 30
    assert "beta: rank 1 was killed by signal 9 (SIGKILL), cause unknown; no result is written" in attempt.said
    assert attempt.said.count("scalestudy: ") == 1 and "Traceback" not in attempt.said


def test_a_supervisor_that_is_killed_takes_every_node_along(tmp_path: Path, nodes: dict[str, str]) -> None:
    attempt = begin(tmp_path, *TWO_NODES, *UNTIL_ENDED, **nodes)
    attempt.wait_for_training()
    attempt.supervisor().send_signal(signal.SIGKILL)
    assert attempt.process.wait(30) == 128 + 9
    assert "the process that was making this run was killed by signal 9 (SIGKILL)" in attempt.said
    attempt.nothing_is_left()


def test_a_node_that_cannot_be_reached_is_named_with_what_the_launcher_said(
    tmp_path: Path, nodes: dict[str, str]
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("hosts: [alpha, nosuchnode.invalid]\n")
    fault = tmp_path / "fault"
    attempt = make(tmp_path, *TWO_NODES, **{**nodes, "SCALESTUDY_SITE": str(site), "MULTINODE_FAULT": str(fault)})
    assert attempt.process.returncode == 1
    assert fault.read_text() == "ssh: node nosuchnode.invalid could not be started (exit status 255)\n"
    assert "ssh: node nosuchnode.invalid could not be started (exit status 255)" in attempt.said
    assert "| ssh: Could not resolve hostname nosuchnode.invalid" in attempt.said
    attempt.nothing_is_left()


FAMILIES = ("openmpi", "mpich")
"""Endings of Debian's mpirun and mpiexec. Intel MPI is not in Debian; its launcher is that of MPICH."""


def with_mpi(folder: Path, family: str, environment: dict[str, str]) -> dict[str, str]:
    """The environment in which mpirun and mpiexec are those of a family; both may be installed side by side."""
    folder.mkdir()
    for name in ("mpirun", "mpiexec"):
        ssh_nodes.needs(f"{name}.{family}")
        (folder / name).write_text(f'#!/bin/sh\nexec {shutil.which(f"{name}.{family}")} "$@"\n')
        (folder / name).chmod(0o700)
    return {**environment, "PATH": f"{folder}:{environment['PATH']}"}


MODEL_THAT_ASKS_MPI = """\
import os

import torch


class Asks(torch.nn.Sequential):
    def __init__(self, classes, channels):
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        print(MPI.Get_library_version().splitlines()[0], flush=True)
        print(f"MPI {world.rank} of {world.size}, {os.environ['LOCAL_RANK']} of {os.environ['LOCAL_WORLD_SIZE']}", flush=True)
        assert world.allreduce(2**world.rank) == 2**world.size - 1
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64 * channels, classes))
"""


@pytest.mark.parametrize("family", FAMILIES)
def test_mpirun_starts_every_rank_in_one_mpi_world_in_the_order_of_the_nodes(
    tmp_path: Path, nodes: dict[str, str], family: str
) -> None:
    pytest.importorskip("mpi4py")
    nodes = with_mpi(tmp_path / "bin", family, nodes)
    extensions = tmp_path / "config" / "extensions"
    extensions.mkdir(parents=True)
    (extensions / "asks.py").write_text(MODEL_THAT_ASKS_MPI)
    # Open MPI takes alpha and beta for two machines; what it would share inside each is one and the same here.
    apart = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_mpi_yield_when_idle": "1"}
    settings = ("strategy=mpi_allreduce", "model.import=asks:Asks", "train.epochs=3", "launch.launcher=mpirun")
    attempt = make(tmp_path, *FOUR_ON_TWO_NODES, *settings, cwd=tmp_path, **nodes, **apart)
    assert made(attempt.process.returncode, attempt.said), attempt.said
    logs = [(attempt.out / "log" / f"rank.{rank}.log").read_text().splitlines() for rank in range(4)]
    said = [[line for line in log if line.startswith(("Open MPI", "MPICH", "MPI "))] for log in logs]
    assert {lines[0].split()[0].rstrip(":") for lines in said} == {{"openmpi": "Open", "mpich": "MPICH"}[family]}
    assert [lines[1] for lines in said] == [
        "MPI 0 of 4, 0 of 2", "MPI 1 of 4, 1 of 2", "MPI 2 of 4, 0 of 2", "MPI 3 of 4, 1 of 2",
    ]  # fmt: skip
    assert held(attempt.result)
    used = {"openmpi": "MPI tcp", "mpich": "TCP over "}[family]  # by MPICH's ranks only gloo's is known
    assert attempt.result["instrument"]["transport_between"].startswith(used)
    assert attempt.result["instrument"]["mpi"].split()[0] == {"openmpi": "Open", "mpich": "MPICH"}[family]
