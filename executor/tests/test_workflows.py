"""Snakemake's own tests of executors, and whole workflows: with a stand-in for a batch system, or a real one."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from snakemake.common import tests as of_snakemake

from running import SITE, command, drive, events
from snakemake_executor_plugin_multinode import ExecutorSettings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]
HERE = Path(__file__).parent


class TestConformance(of_snakemake.TestWorkflowsLocalStorageBase):
    """A workflow with files in folders, and one with groups."""

    __test__ = True
    latency_wait = 10

    def get_executor(self) -> str:
        """The name in profiles."""
        return "multinode"

    def get_executor_settings(self) -> Any:
        """A site file that names the batch system, and nothing else."""
        return ExecutorSettings(site=SITE)


def run_over_a_kill(folder: Path, end: signal.Signals = signal.SIGKILL, made: str = ".") -> None:
    """End a driver once its only submission has made a folder; the next one adopts that, and then the jobs may end."""
    log = folder / "second.log"
    first = subprocess.Popen(command(), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    wait_for('"event": "submitted"', folder / ".multinode/jobs.jsonl")
    while not (folder / made).exists():
        time.sleep(0.1)
    first.send_signal(end)
    first.wait()
    with log.open("w") as stream:
        second = subprocess.Popen(command(), cwd=folder, stdout=stream, stderr=subprocess.STDOUT)
    wait_for("adopted as", log)
    (folder / "go").touch()
    assert second.wait(240) == 0, log.read_text()
    assert len(events(folder, "submitted")) == 1


def wait_for(text: str, file: Path) -> None:
    """Wait until a file has a text."""
    end = time.monotonic() + 120
    while not file.exists() or text not in file.read_text():
        assert time.monotonic() < end, f"{file} never had {text!r}"
        time.sleep(0.1)


PIPED = """
rule all:
    input: "piped.txt"
rule produce:
    output: pipe("words.fifo")
    shell: "while [ ! -e go ]; do sleep 0.2; done; echo word | tee -a produced >{output}"
rule consume:
    input: "words.fifo"
    output: "piped.txt"
    shell: "cat {input} >{output}"
"""


def test_a_pipe_whose_driver_was_killed_is_adopted_although_its_group_has_another_id(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(PIPED)
    run_over_a_kill(tmp_path)
    assert (tmp_path / "piped.txt").read_text() == "word\n"
    assert (tmp_path / "produced").read_text() == "word\n"


def test_a_driver_that_is_told_to_exit_leaves_the_empty_folder_that_a_job_has_just_made(tmp_path: Path) -> None:
    waits = "while [ ! -e go ]; do sleep 0.2; done; touch {output}"
    (tmp_path / "Snakefile").write_text(f'rule a:\n    output: "made/a"\n    shell: "{waits}"\n')
    run_over_a_kill(tmp_path, end=signal.SIGTERM, made="made")
    assert (tmp_path / "made/a").exists()


def test_after_a_cancel_the_commands_of_onerror_can_be_interrupted(tmp_path: Path) -> None:
    rule = 'rule a:\n    output: "a"\n    shell: "sleep 60; touch {output}"\n'
    (tmp_path / "Snakefile").write_text(f'{rule}onerror:\n    shell("grep SigIgn /proc/self/status >ignored")\n')
    driver = subprocess.Popen(command(), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    wait_for('"event": "submitted"', tmp_path / ".multinode/jobs.jsonl")
    driver.send_signal(signal.SIGINT)
    assert driver.wait(120) != 0
    assert int((tmp_path / "ignored").read_text().split()[1], 16) & 1 << signal.SIGINT - 1 == 0


GROUP = """
rule all:
    input: "b.1", "b.2", "b.3"
rule a:
    output: "a.{n}"
    group: "both"
    shell: "sleep 0.2; touch {output}"
rule b:
    input: "a.{n}"
    output: "b.{n}"
    group: "both"
    shell: "sleep 0.2; COMMAND"
"""
"""Three pairs of jobs; COMMAND ends the second of each."""
REFUSED = """
rule model:
    output: "model"
    resources: gpu_model="h100"
    shell: "touch {output}"
rule comma:
    output: "comma.{word}"
    shell: "touch {output}"
"""


def test_jobs_that_fail_in_a_group_or_cannot_be_submitted_say_why(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(GROUP.replace("COMMAND", "exit 3") + REFUSED)
    done = drive(tmp_path, "b.1", "model", "comma.a,b", "--keep-going")
    assert done.returncode == 1
    assert "its command failed" in done.stdout
    assert "not submitted: the resource `gpu_model` (h100) has no effect without `gpus`." in done.stdout
    assert "not submitted: the wildcard `word` of rule comma is 'a,b': Snakemake cannot hand on a comma" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_driver_that_cannot_begin_says_why_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(REFUSED)
    done = drive(tmp_path, "comma.a", "--multinode-site", "missing.yaml")
    assert done.returncode == 1
    assert "multinode: missing.yaml: No such file or directory. Fix this" in done.stdout
    assert "Traceback" not in done.stdout


def test_the_example_of_a_chain_is_resumed_in_a_second_job(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(HERE.parent / "examples/chain", tmp_path / "chain"))
    done = drive(folder, "counted/60.json", timeout=280)
    assert done.returncode == 0, done.stdout
    assert json.loads((folder / "counted/60.json").read_text()) == {"counted": 60}
    assert "its time is nearly over (progress " in done.stdout
    first, second = events(folder, "ended")
    assert 30 < float(str(first["progress"])) < 60
    assert len(events(folder, "submitted")) == 2
    assert second["cause"] == "finished"


def test_scripts_groups_retries_and_configuration_work(tmp_path: Path) -> None:
    everyday = Path(shutil.copytree(HERE / "everyday", tmp_path / "every day"))
    (everyday / "many").mkdir()
    for number in range(20):
        (everyday / "many" / f"{number}").touch()
    groups = ("--groups", "text=texts", "count=texts", "--group-components", "texts=2")
    done = drive(everyday, "--config", "word=two words", *groups)
    assert done.returncode == 0, done.stdout
    assert (everyday / "summary.txt").read_text() == "3 words\n" * 2
    assert (everyday / "second.txt").exists()
    # Two groups in one, the summary, and the rule that is tried twice inside.
    assert len(events(everyday, "submitted")) == 3


@pytest.mark.skipif(
    shutil.which("rsync") is None, reason="the storage plugin `fs` copies with rsync, which is not here"
)
def test_files_in_a_storage_are_fetched_and_stored_by_the_job(tmp_path: Path) -> None:
    storage, folder = tmp_path / "storage", tmp_path / "folder"
    storage.mkdir()
    folder.mkdir()
    (storage / "in.txt").write_text("stored\n")
    (folder / "Snakefile").write_text(
        'rule copy:\n    input: "in.txt"\n    output: "out.txt"\n    shell: "cp {input} {output}"\n'
    )
    done = drive(folder, "--default-storage-provider", "fs", "--default-storage-prefix", str(storage), "out.txt")
    assert done.returncode == 0, done.stdout
    assert (storage / "out.txt").read_text() == "stored\n"
