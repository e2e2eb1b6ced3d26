"""The driver as a job: what it asks for, how it leaves, and what follows. Stand-ins play Snakemake and the scheduler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalestudy.cluster import drive
from scalestudy.errors import UserError
from scalestudy.files import write_json
from snakemake_executor_plugin_multinode.schedulers.settings import Settings

ROOT = Path(__file__).resolve().parents[3]


def stand_in(folder: Path, name: str, text: str) -> Path:
    """A stand-in for a command."""
    file = folder / name
    file.write_text(f"#!/bin/bash\n{text}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a site of Slurm, and stand-ins for its commands: sbatch notes its words."""
    (tmp_path / "bin").mkdir()
    for name in ("squeue", "scontrol", "scancel"):
        stand_in(tmp_path / "bin", name, "true")
    stand_in(tmp_path / "bin", "sbatch", f'printf "%s\\n" "$*" >>{tmp_path}/submitted; echo 41')
    text = "scheduler: {kind: slurm, account: lab, options: [--exclusive, --qos=long], setup: [export SET=up]}\n"
    (tmp_path / "site.yaml").write_text(text)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SCALESTUDY_SITE", str(tmp_path / "site.yaml"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "workflow"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submitted(site: Path) -> list[str]:
    file = site / "submitted"
    return file.read_text().splitlines() if file.exists() else []


def test_a_driver_asks_for_one_core_with_the_sites_account_and_without_whole_nodes(site: Path) -> None:
    job, log = drive.start(drive.DrivePlan(["snakemake", "all"], 1440))
    (words,) = submitted(site)
    assert job == "41"
    assert "-N 1 --ntasks=1 --cpus-per-task=1 --mem=4000M -t 1440" in words
    assert "-A lab" in words and "--qos=long" in words and "--exclusive" not in words
    script = (log.parent / "job.sh").read_text()
    assert script.index("export SET=up") < script.index("--in-job")
    assert subprocess.run(["bash", "-n", str(log.parent / "job.sh")], check=False).returncode == 0


@pytest.mark.parametrize("kind", ["pbs", "sge"])
def test_other_systems_have_requests_of_their_own_which_can_be_replaced(kind: str) -> None:
    settings = Settings(kind, request="-l whole_node={nodes}", options=("-g", "group"))
    plan = drive.DrivePlan(["snakemake"], 60)
    found = drive.for_driver(settings, plan)
    assert (found.request, found.options) == (drive.REQUESTS[kind], ("-g", "group"))
    own = drive.for_driver(settings, drive.DrivePlan(["snakemake"], 60, request="-l one=1", options=("-P", "x")))
    assert (own.request, own.options) == ("-l one=1", ("-g", "group", "-P", "x"))


def test_a_refusal_says_whose_request_it_was(site: Path) -> None:
    stand_in(site / "bin", "sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    with pytest.raises(UserError, match=r"did not take the driver's job: .*invalid partition"):
        drive.start(drive.DrivePlan(["snakemake"], 60))


def job_of(site: Path, snakemake: str, minutes: int = 60) -> Path:
    """The folder of a driver's job; `snakemake` is what its stand-in does."""
    command = [str(stand_in(site, "snakemake", snakemake))]
    folder = site / "job"
    folder.mkdir()
    write_json(folder / "drive.json", {**vars(drive.DrivePlan(command, minutes)), "options": ["--partition=x"]})
    return folder


def started(site: Path, snakemake: str) -> subprocess.Popen[str]:
    """A driver's job of an hour, as a process of its own."""
    folder = job_of(site, snakemake)
    code = f"import sys, pathlib; from scalestudy.cluster import drive; sys.exit(drive.in_job(pathlib.Path({str(folder)!r})))"
    environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "1", "SLURM_CONF": "/etc/slurm.conf"}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.fixture
def handlers() -> Iterator[None]:
    """The signal handlers of this process, put back at the end."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


LEAVES = "trap 'echo left >>left; exit 1' TERM; env >seen; touch began; while :; do sleep 0.05; done"


def test_before_its_walltime_the_driver_leaves_and_only_then_is_its_successor_submitted(
    site: Path, handlers: None, capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in(site / "bin", "sbatch", f'cat {site}/left >>{site}/submitted; echo "$*" >>{site}/submitted; echo 42')
    folder = job_of(site, LEAVES, minutes=1)  # it leaves 12 s before its end
    time.sleep(1 - time.time() % 1)
    assert drive.in_job(folder, {**os.environ, "SLURM_JOB_END_TIME": str(int(time.time()) + 13)}) == 0
    first, words = submitted(site)
    assert first == "left"
    assert "--partition=x" in words and "-t 1 " in words
    assert "driver 2 is job 42" in capfd.readouterr().err
    plans = [json.loads(file.read_text()) for file in site.glob(".scalestudy/drive/*/drive.json")]
    assert [(plan["number"], plan["runtime_min"]) for plan in plans] == [(2, 1)]


def test_a_driver_that_has_done_its_work_has_no_successor_and_its_exit_status_is_the_jobs(site: Path) -> None:
    job = started(site, "env >seen; exit 3")
    said, _ = job.communicate(timeout=20)
    assert job.returncode == 3, said
    assert submitted(site) == []
    seen = (site / "seen").read_text()
    assert "SLURM_JOB_ID" not in seen and "SLURM_MEM_PER_NODE" not in seen
    assert "SLURM_CONF=/etc/slurm.conf" in seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGXCPU, signal.SIGHUP])
def test_a_driver_that_is_told_to_end_leaves_its_jobs_and_comes_not_back(site: Path, number: signal.Signals) -> None:
    job = started(site, LEAVES)
    end = time.monotonic() + 20
    while not (site / "began").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    job.send_signal(number)
    said, _ = job.communicate(timeout=20)
    assert job.returncode == 128 + number
    assert (site / "left").exists()
    assert submitted(site) == []
    assert f"{number.name}: the driver has exited; its jobs continue" in said
