"""What is found out about a job, and the commands that follow from it."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalestudy.errors import Skipped, UserError
from scalestudy.launch import mpi
from scalestudy.launch.allocation import Allocation, allocation, where_to_run
from scalestudy.launch.control import added
from scalestudy.launch.job_environment import JobEnvironment
from scalestudy.launch.launchers import commands, forwarded, node_script, write_script
from scalestudy.launch.ranks import Heartbeats
from scalestudy.launch.resolve import resolve
from scalestudy.results.transports import (
    mpi_transports,
    nccl_transports,
    nccl_warnings,
    transports_named,
)
from scalestudy.spec.config import Site
from scalestudy.spec.hostlist import slurm_hosts
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from scalestudy.training.job import Job
from tests.unit import test_training as training


def spec(**data: object) -> RunSpec:
    """A run from plain data."""
    return training.spec(**{"strategy": "allreduce", **data})


def job(hosts: tuple[str, ...], **data: object) -> Job:
    """A run of four ranks that is never started."""
    return training.job(spec(**{"ranks": 4, "nodes": 2, **data}), hosts=hosts)


@pytest.mark.parametrize(
    ("variable", "text", "launcher"),
    [
        ("PBS_NODEFILE", "n1\nn1\nn2\nn2\n", "pbsdsh"),
        ("PE_HOSTFILE", "n1 2 all.q@n1 UNDEFINED\nn2 2 all.q@n2 UNDEFINED\n", "qrsh"),
    ],
)
def test_a_schedulers_file_of_nodes_names_each_host_once(
    tmp_path: Path, variable: str, text: str, launcher: str
) -> None:
    file = tmp_path / "nodes"
    file.write_text(text)
    assert allocation({variable: str(file)}, Site()) == Allocation(("n1", "n2"), launcher)
    with pytest.raises(UserError, match="the job's list of nodes cannot be read"):
        allocation({variable: str(tmp_path / "gone")}, Site())


def test_slurms_nodes_are_listed_as_in_its_own_words() -> None:
    assert allocation({"SLURM_JOB_NODELIST": "n[1-2]"}, Site()) == Allocation(("n1", "n2"), "srun")
    assert slurm_hosts("gpu[08-10,12],login,r[1-2]n[01-02]-ib,x[5]") == [
        "gpu08", "gpu09", "gpu10", "gpu12", "login", "r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib", "x5",
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"list of nodes cannot be read: `n\[1` has a bracket without its other one"):
        allocation({"SLURM_JOB_NODELIST": "n[1"}, Site())


# In a batch job of two nodes, processes of mpirun inherit what the batch script had, as seen on a Slurm 23.11.
OF_MPIRUN_IN_SBATCH = {"SLURM_JOB_ID": "7", "SLURM_NODEID": "0", "SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "3"}


def test_mpiruns_processes_inside_a_batch_job_of_slurm_have_mpiruns_numbers() -> None:
    job = JobEnvironment(OF_MPIRUN_IN_SBATCH)
    assert (job.process_number("mpirun"), job.process_number("mpiexec")) == (3, 3)
    assert JobEnvironment({"SLURM_NODEID": "1", "PMI_RANK": "0"}).process_number("srun") == 1
    assert JobEnvironment({"SLURM_NODEID": "0"}).process_number("mpirun") is None


def test_a_job_is_known_by_its_id_and_its_end() -> None:
    assert (JobEnvironment({}).job_id, JobEnvironment({}).launcher, JobEnvironment({}).deadline) == (None, None, None)
    job = JobEnvironment({"PBS_JOBID": "12.server", "PBS_NODEFILE": "/n", "SCALESTUDY_DEADLINE": "1700000000"})
    assert (job.job_id, job.launcher, job.deadline) == ("12.server", "pbsdsh", 1.7e9)
    assert JobEnvironment({"SCALESTUDY_DEADLINE": "1", "MULTINODE_DEADLINE": "2"}).deadline == 2  # of this very job
    for name in ("SCALESTUDY_DEADLINE", "MULTINODE_DEADLINE"):
        with pytest.raises(UserError, match="`soon` is not a time") as error:
            _ = JobEnvironment({name: "soon"}).deadline
        assert error.value.where == name


def test_the_runs_launcher_wins_over_the_sites_and_that_over_the_schedulers(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("n1\nn2\nn3\n")
    job_of_pbs = {"PBS_NODEFILE": str(file)}
    run, chosen = spec(ranks=4, nodes=2), spec(ranks=4, nodes=2, launch={"launcher": "mpiexec"})
    assert where_to_run(run, 2, Site(), job_of_pbs) == Allocation(("n1", "n2"), "pbsdsh")
    assert where_to_run(run, 2, Site(launcher="ssh"), job_of_pbs).launcher == "ssh"
    assert where_to_run(chosen, 2, Site(launcher="ssh"), job_of_pbs).launcher == "mpiexec"
    assert where_to_run(run, 2, Site(launcher="local"), job_of_pbs).launcher == "local"


def test_an_agents_words_reach_it_whole_through_shells_that_lose_quotes(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    odd = {
        "PYTHONPATH": "x y:'z'",
        "SSH_TTY": "no",
        "CUDA_VISIBLE_DEVICES": "3",
        "PATH": "/usr/bin:/bin",
        "SECRET": "no",
    }
    script = write_script(folder, odd)
    text = script.read_text().replace("\nexec ", "\nenv; printf '%s|' ")
    said = subprocess.run(["sh", "-c", text, "node.sh", "1"], env={}, capture_output=True, text=True, check=True).stdout
    assert "PYTHONPATH=x y:'z'\n" in said
    assert "SECRET" not in said and "SSH_TTY" not in said and "CUDA_VISIBLE" not in said
    assert said.endswith(f"|agent|{folder}|1|")


@pytest.mark.parametrize("inside", [False, True])
def test_what_a_launcher_starts_goes_into_the_jobs_image_first_and_what_is_in_it_stays(
    tmp_path: Path, inside: bool
) -> None:
    """A stand-in for Apptainer, which notes that it was called and makes the folder that an image has."""
    image, apptainer = tmp_path / "of_image", tmp_path / "apptainer"
    apptainer.write_text(f'#!/bin/sh\necho "into $2"\nmkdir {image}\nshift 2\nexec "$@"\n')
    apptainer.chmod(0o755)
    script = node_script(tmp_path, 'echo "$GREETING $1"', {"MULTINODE_WRAPPER": f"'{apptainer}' exec my.sif"})
    script.write_text(script.read_text().replace("/.singularity.d", str(image)))
    if inside:
        image.mkdir()
    done = subprocess.run(
        ["sh", str(script), "3"], env={"GREETING": "node"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == ("" if inside else "into my.sif\n") + "node 3\n"
    assert script.stat().st_mode & 0o777 == 0o700


OF_SLURM = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURMD_NODENAME": "n1"}


def named(*hosts: str, **data: object) -> RunSpec:
    """A run that names its nodes, with a rank on each."""
    return spec(hosts=list(hosts), ranks=len(hosts), **data)


def test_a_run_that_names_its_nodes_gets_them_in_the_order_in_which_the_job_numbers_them() -> None:
    assert where_to_run(named("n3", "n1"), 2, Site(), OF_SLURM) == Allocation(("n1", "n3"), "srun")
    assert where_to_run(named("n3", "n2"), 2, Site(), OF_SLURM) == Allocation(("n2", "n3"), "srun", away=True)
    assert where_to_run(named("n2"), 1, Site(), OF_SLURM) == Allocation(("n2",), "srun", away=True)
    assert where_to_run(named("n2.site.org"), 1, Site(launcher="ssh"), OF_SLURM).hosts == ("n2",)


@pytest.mark.parametrize(
    ("data", "launcher", "environment", "words"),
    [
        ({"ranks": 4, "nodes": 4}, "auto", OF_SLURM, "the run needs 4 nodes, the job has 3: n1, n2, n3"),
        ({"ranks": 4, "nodes": 4}, "ssh", {}, "launcher `ssh` has no nodes to reach"),
        ({"hosts": ["n1", "n9"], "ranks": 2}, "auto", OF_SLURM, "the run is about node n9, and the job has n1, n2, n3"),
        ({"hosts": ["n1", "n2"], "ranks": 2}, "local", OF_SLURM, "launcher `local` reaches no other node"),
        (
            {"hosts": ["n1", "n2"], "ranks": 2, "strategy": "parameter_server"},
            "mpirun",
            OF_SLURM,
            "use another launcher",
        ),
    ],
)
def test_nodes_that_a_run_cannot_have_are_an_error(
    data: dict[str, object], launcher: Any, environment: dict[str, str], words: str
) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        where_to_run(spec(**data), 4, Site(launcher=launcher), environment)


def test_of_a_run_that_is_away_nothing_is_started_here() -> None:
    away = replace(job(("b", "c")), away=True)
    for launcher in ("ssh", "qrsh"):
        assert [command[0] for command in commands(launcher, away, Path("/runs/node.sh"))] == [launcher, launcher]
    alone = replace(job(("b",), nodes=1), away=True)
    assert "--host" in commands("mpirun", alone, Path("s"))[0]
    assert "--host" not in commands("mpirun", replace(alone, away=False), Path("s"))[0]


def test_pbsdsh_starts_one_agent_at_the_first_line_of_each_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nodes").write_text("a\na\nb\nb\n")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    assert [command[2:5] for command in commands("pbsdsh", job(("a", "b")), Path("s"))] == [
        ["-n", "0", "--"],
        ["-n", "2", "--"],
    ]


def test_what_multi_node_runs_and_their_site_need_goes_to_the_other_nodes() -> None:
    stays = {"HOSTNAME": "a", "SSH_CONNECTION": "b", "MY_TOKEN": "c", "CUDA_VISIBLE_DEVICES": "0"}
    goes = {"AWS_ACCESS_KEY_ID": "1", "LAB_A": "2", "MY_FABRIC": "3", "NCCL_SOCKET_IFNAME": "4", "http_proxy": "5"}
    assert forwarded({**goes, **stays}, ["MY_FABRIC", "LAB_*"]) == goes


def test_ranks_that_speak_mpi_are_started_by_srun_where_the_site_says_so_and_a_job_of_slurm_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.yaml").write_text("srun_mpi: pmix\n")
    monkeypatch.setenv("SCALESTUDY_SITE", str(tmp_path / "site.yaml"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert commands("mpirun", job(("a", "b")), Path("s"))[0][0] == "mpirun"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (words,) = commands("mpirun", job(("a", "b")), Path("s"))
    assert words[:2] == ["srun", "--mpi=pmix"]
    assert {"--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--nodelist=a,b"} <= set(words)
    assert JobEnvironment({"SLURM_NODEID": "1", "PMIX_RANK": "3"}).process_number("mpirun") == 3


MPI_VERSIONS = {
    "Open MPI": "mpirun (Open MPI) 4.1.4",
    "MPICH": "HYDRA build details:\n    Version:                                 4.0.2",
    "Intel MPI": "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005 (id: 74c4a23)",
}
OPEN_MPI = "--map-by ppr:2:node:oversubscribe --bind-to none"


def install_mpirun(monkeypatch: pytest.MonkeyPatch, folder: Path, says: str) -> None:
    (folder / "mpirun").write_text(f"#!/bin/sh\ncat <<'.'\n{says}\n.\n")
    (folder / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("name", "one_node", "two_nodes"),
    [
        ("Open MPI", f"-np 2 {OPEN_MPI}", f"-np 4 {OPEN_MPI} --host a:2,b:2"),
        ("MPICH", "-n 2 -ppn 2 -hosts localhost", "-n 4 -ppn 2 -hosts a,b"),
        ("Intel MPI", "-n 2 -ppn 2 -hosts localhost", "-n 4 -ppn 2 -hosts a,b"),
    ],
)
def test_each_family_of_mpi_is_started_in_its_own_words(
    name: str, one_node: str, two_nodes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    install_mpirun(monkeypatch, tmp_path, MPI_VERSIONS[name])
    family = mpi.family("mpirun")
    assert family is not None and family.name == name
    assert mpi.words("mpirun", 2, 2, ()) == ["mpirun", *one_node.split()]
    assert mpi.words("mpirun", 4, 2, ("a", "b")) == ["mpirun", *two_nodes.split()]


def test_a_launcher_of_no_known_family_of_mpi_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py")
    run = spec(strategy="mpi_allreduce", ranks=2)
    install_mpirun(monkeypatch, tmp_path, MPI_VERSIONS["MPICH"])
    resolve(run, Machine(), Site())
    install_mpirun(monkeypatch, tmp_path, "some other launcher 1.0")
    with pytest.raises(Skipped, match=r"needs the mpirun of Open MPI or Intel MPI or MPICH; .* is none of these"):
        resolve(run, Machine(), Site())


def test_the_time_for_which_a_whole_job_was_suspended_is_no_silence() -> None:
    assert Heartbeats(1).silent_s(0, 3600.0) == 2.0


# The lines that 003 shows of a cluster that communicates well, the second with its host and numbers.
AS_003_SHOWS = """\
gpu002:1299562:1299573 [0] NCCL INFO Ring 00 : 0[0] -> 1[1] via P2P/IPC
gpu028:149460:149495 [0] NCCL INFO Ring 01 : 3 -> 0 [send] via NET/IB/0
"""
FELL_BACK = AS_003_SHOWS.replace("P2P/IPC", "SHM").replace("NET/IB/0", "NET/Socket/0")


def test_a_transport_that_is_not_the_best_is_warned_of() -> None:
    two, best = job(("a", "b")), nccl_transports(AS_003_SHOWS)
    assert list(nccl_warnings(two, best, has_infiniband=True)) == []
    slow = nccl_transports(FELL_BACK)
    assert list(nccl_warnings(two, slow, has_infiniband=True)) == [
        "NCCL sends from rank 0 to 1, on one machine, via SHM, not P2P (1 channels)",
        "NCCL sends from rank 3 to 0 via NET/SOCKET/0, not NET/IB, though there is InfiniBand",
    ]
    assert len(list(nccl_warnings(two, slow, has_infiniband=False))) == 1
    assert transports_named(two, "nccl", None, best) == {"transport_between": "NET/IB", "transport_within": "P2P/IPC"}
    assert transports_named(two, "nccl", None, nccl_transports("")) == {}
    assert transports_named(two, "gloo", "ib0", nccl_transports("")) == {"transport_between": "TCP over ib0"}


def test_open_mpis_log_names_what_ranks_send_through(tmp_path: Path) -> None:
    two = replace(job(("a", "b")), log=tmp_path)
    said = "[n1:80] mca: bml: Using {} btl for send to [[21042,1],{}] on node n1\n"
    for rank in range(4):
        beside, away = rank ^ 1, (rank + 2) % 4
        lines = [said.format("self", rank), said.format("vader", beside), said.format("tcp", away)]
        two.log_of(rank).write_text("Using interface: eth0\n" + "".join(lines))
    assert transports_named(two, "gloo", "eth0", mpi_transports(two)) == {
        "transport_between": "MPI tcp", "transport_within": "MPI vader",
    }  # fmt: skip


def test_agents_of_one_host_add_what_their_processes_use_and_not_what_the_host_does() -> None:
    row = {"clock_s": 101.0, "cpu_s": 0.4, "busy_s": 50.0, "read_bytes": 7.0, "anonymous_bytes": 10.0}
    later = {**row, "clock_s": 102.0, "busy_s": 52.0, "cpu_s": 1.6}
    assert added([[{**row, "devices": 2.0}], [row, later]]) == [
        {**row, "cpu_s": 0.8, "read_bytes": 14.0, "anonymous_bytes": 20.0, "devices": 2.0},
        {**later, "cpu_s": 2.0, "read_bytes": 14.0, "anonymous_bytes": 20.0, "devices": 2.0},
    ]
