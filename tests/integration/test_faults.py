"""Steps of the pipeline meet faults of processes and disks, and the same command is given again.

Promised of each: nothing partial is accepted, no command hangs, no process is left, one message names the fault and the next
step, and without the fault the same command ends with the same bytes, times aside. `pytest -m soak` has all cases.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
from PIL import Image

from tests.integration.processes import file_stand_in, stand_in, wait_until
from tests.integration.project import Project, make_project

STUDY = """\
question: Does a fault change what two runs learn?
base:
  model: {name: mlp, hidden: 8, layers: 2}
  data: {source: digits}
  strategy: allreduce
  batch: {per_rank: 32}
  optimiser: {learning_rate: 0.05}
  train: {epochs: 2}
  measure: {whole_program: true}
  checkpoint: {every_steps: 10}
  keep: weights
vary:
  ranks: [1, 2]
scales:
  mini: {}
figures:
  - {kind: lines, name: ends, x: ranks, y: loss}
"""
PICTURES = {"source": "image_folder", "root": "pictures", "shard": {"format": "tar", "mib": 0.015625}}
DRIVER = ("snakemake", "--profile", "profiles/local")
DISK_MIB, LIMIT_S, ORPHANS_S = 96, 60.0, 45.0
MESSAGE = re.compile(
    r"^\s*((scalestudy|multinode): (?!waiting for|warning|notice)|WorkflowError)|\bFAILED ", re.MULTILINE
)
NEXT = re.compile(r"same command|[Tt]o resume|^    \S|(?:give|run) .* again|start again|[Ww]ait for it", re.MULTILINE)
Outcome = dict[str, str]
"""Digests of files that later steps take for done; empty before the step is done."""


# Steps


@dataclass(frozen=True)
class Step:
    """A step of the pipeline, and the files by which faults find it."""

    command: tuple[str, ...]
    target: str
    removed: tuple[str, ...]
    """Patterns of files that a finished project lacks before the step."""
    writes: str
    """Pattern of a file that the step is writing at the moment of a fault."""
    reads: str
    outcome: Callable[[Path], Outcome]
    room_kib: int = 4
    """Room on a full disk: less than the step needs."""


def steps_of(base: Path) -> dict[str, Step]:
    """Steps of copies of this project."""
    [images] = (path.name for path in base.glob("results/data/image_folder-*"))
    [run] = (path.name for path in base.glob("results/local/runs/*.x2.r0-*"))
    manifest, result = f"results/data/{images}/manifest.json", f"results/local/runs/{run}/result.json"
    figure = "results/local/mini/figures/tiny/ends"
    return {
        "prepare": Step(
            ("scalestudy", "prepare", "--spec", json.dumps(PICTURES), "--out", manifest), manifest,
            (f"results/data/{images}",), "*/.bulk.making-*/.train-000002.*.tar", "*/pictures/train/light/007.jpg",
            lambda folder: data_of(folder / f"results/data/{images}"), room_kib=24,
        ),
        "train": Step(
            ("scalestudy", "train", "--out", result), result,
            (result, f"results/local/runs/{run}/*.parquet", f"results/local/runs/{run}/*.safetensors"),
            "*/checkpoint/.step-*.partial/checkpoint.json", "*/data/digits-*/manifest.json",
            lambda folder: trained(folder / f"results/local/runs/{run}"),
        ),
        "figure": Step(
            ("scalestudy", "figure", "--study", "tiny", "--name", "ends"), f"{figure}.svg", (f"{figure}.*",),
            "*/figures/tiny/.ends.*", "*/studies/tiny/runs.parquet",
            lambda folder: digests(folder, [f"{figure}.{suffix}" for suffix in ("svg", "pdf", "png")]),
        ),
    }  # fmt: skip


def digests(folder: Path, names: list[str]) -> Outcome:
    return {name: digest((folder / name).read_bytes()) for name in names if (folder / name).is_file()}


def data_of(place: Path) -> Outcome:
    """Every file of a prepared dataset; of JSON without the time that it took and the place that it was made from."""
    if not (place / "manifest.json").is_file():
        return {}
    found = {}
    for file in [place / "manifest.json", *(path for path in (place / "bulk").rglob("*") if path.is_file())]:
        plain = json.loads(file.read_text()) if file.suffix == ".json" else None
        if isinstance(plain, dict):
            plain = {
                key: value for key, value in plain.items() if key not in ("seconds", "cpu_s", "digest", "source_files")
            }
        content = file.read_bytes() if plain is None else json.dumps(plain, sort_keys=True).encode()
        found[str(file.relative_to(place))] = digest(content)
    return found


def trained(run: Path) -> Outcome:
    """Every step's loss, the scores and the last weights of a run."""
    if not (run / "result.json").is_file():
        return {}
    result = json.loads((run / "result.json").read_text())
    facts = [result.get(key) for key in ("run", "status", "reason", "spec", "steps_done", "samples_seen")]
    scores = [[each.get(key) for key in ("step", "loss", "accuracy")] for each in result["evaluations"]]
    losses = pd.read_parquet(run / "steps.parquet")["loss"].tolist()
    return {"facts": digest(json.dumps([facts, scores, losses]).encode()), **digests(run, ["weights.safetensors"])}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Cases


@dataclass
class Case:
    """A copy of a finished project in which a step meets a fault."""

    folder: Path
    control: Path
    library: Path
    environment: dict[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def mark(self) -> Path:
        return self.control / "mark"

    def start(self, command: tuple[str, ...], **more: str) -> subprocess.Popen[bytes]:
        """Start a command in the folder; standard error goes with standard output."""
        with open(self.control / f"output{len(self.processes)}", "wb") as stream:
            process = subprocess.Popen(
                ["env", "--default-signal=INT", *command],  # a shell's background jobs ignore it
                cwd=self.folder, env={**self.environment, **more}, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def output(self, process: subprocess.Popen[bytes]) -> str:
        return (self.control / f"output{self.processes.index(process)}").read_text(errors="replace")

    def held(self, command: tuple[str, ...], files: str) -> subprocess.Popen[bytes]:
        """A command of which a process is about to write to a file of this pattern, and waits until `release`."""
        process = self.start(command, **stand_in(self.library, "hold", files, "w", self.mark))
        wait_until(lambda: process.poll() is not None or self.mark.exists(), 90)
        assert self.mark.exists(), f"the moment of the fault did not come: {self.output(process)}"
        return process

    def release(self) -> None:
        Path(f"{self.mark}.go").touch()

    def working(self) -> list[psutil.Process]:
        """Processes with the folder as working directory."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                place = str(Path(f"/proc/{process.pid}/cwd").readlink()).removesuffix(" (deleted)")
                if f"{place}/".startswith(f"{self.folder}/") and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def end(self) -> None:
        self.release()
        for process in self.working():
            with suppress(psutil.Error):
                process.kill()
        for started in self.processes:
            started.kill()
            started.wait()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose study and pictures are made."""
    project = make_project(tmp_path_factory.mktemp("faults") / "base", forked=True)
    project.study.write_text(STUDY)
    of_pictures = (
        f"question: How?\nbase: {{data: {json.dumps(PICTURES)}, loader: {{size: 32}}}}\nscales: {{mini: {{}}}}\n"
    )
    project.study.with_name("pictures.yaml").write_text(of_pictures)
    (project.folder / "tmp").mkdir()
    generator = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 6)):
        for number, name in enumerate(("dark", "light")):
            place = project.folder / "pictures" / split / name
            place.mkdir(parents=True)
            for image in range(count):
                pixels = generator.integers(100 * number, 100 * number + 156, (32, 40, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{image:03}.jpg", quality=90)
    from pydantic import TypeAdapter

    from scalestudy.spec.ids import dataset_id
    from scalestudy.spec.run import Data

    name = dataset_id(TypeAdapter(Data).validate_python(PICTURES))
    manifest = f"results/data/{name}/manifest.json"
    for command in ((*DRIVER, "tiny"), ("scalestudy", "prepare", "--spec", json.dumps(PICTURES), "--out", manifest)):
        project.must(*command)
    return project


@contextmanager
def case_of(base: Project, folder: Path, has_own_disk: bool) -> Iterator[Case]:
    """A copy of the finished project, on a small disk of its own where the fault is one of disks."""
    control = folder.with_name("control")
    for place in (folder, control):
        place.mkdir()
    if has_own_disk:
        disk = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=755", "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(disk, capture_output=True, check=False).returncode:
            pytest.skip("a small disk cannot be mounted here")
    library = file_stand_in(control)
    environment = {**base.environment(), "TMPDIR": str(folder / "tmp"), "LD_PRELOAD": str(library),
                   "SCALESTUDY_LOCKS": str(control)}  # fmt: skip
    case = Case(folder, control, library, environment)
    try:
        ignore = shutil.ignore_patterns(".snakemake", ".scalestudy", "tmp")
        shutil.copytree(base.folder, folder, symlinks=True, ignore=ignore, dirs_exist_ok=True)
        (folder / "tmp").mkdir()
        yield case
    finally:
        case.end()
        if has_own_disk:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)


# Faults


def terminated(case: Case, step: Step) -> subprocess.Popen[bytes]:
    command = case.held(step.command, step.writes)
    command.terminate()
    case.release()
    return command


def driver_killed(case: Case, step: Step) -> subprocess.Popen[bytes]:
    driver = case.held((*DRIVER, step.target), step.writes)
    driver.kill()
    case.release()
    return driver


def unreadable(case: Case, step: Step) -> subprocess.Popen[bytes]:
    return case.start(step.command, **stand_in(case.library, f"errno={errno.EIO}", step.reads, "r", case.mark))


def disk_full(case: Case, step: Step) -> subprocess.Popen[bytes]:
    free_kib = shutil.disk_usage(case.folder).free // 1024
    subprocess.run(["fallocate", "-l", f"{free_kib - step.room_kib}K", str(case.folder / "filler")], check=True)
    return case.start(step.command)


def read_only(case: Case, step: Step) -> subprocess.Popen[bytes]:
    subprocess.run(["mount", "-o", "remount,ro", str(case.folder)], check=True)
    return case.start(step.command)


@dataclass(frozen=True)
class Fault:
    """A fault, and words of the message about it."""

    meet: Callable[[Case, Step], subprocess.Popen[bytes]]
    """Brings it about; returns the command that met it."""
    words: str = ""
    is_of_disk: bool = False


FAULTS = {
    "sigterm": Fault(terminated, r"SIGTERM|stopped"),
    "disk full": Fault(disk_full, r"full|[Nn]o space|are free", is_of_disk=True),
    "read-only": Fault(read_only, r"[Rr]ead-only", is_of_disk=True),
    "unreadable": Fault(unreadable, r"Input/output error"),
    "driver killed": Fault(driver_killed),
}
STEPS = ("prepare", "train", "figure")
DAILY = {("prepare", "disk full"), ("prepare", "driver killed"), ("figure", "unreadable"), ("figure", "sigterm")}
"""Of training, test_checkpoint.py has kills; test_driver.py has a second driver."""
CASES = [
    pytest.param(step, fault, marks=[] if (step, fault) in DAILY else [pytest.mark.soak], id=f"{step}-{fault}")
    for step in STEPS
    for fault in FAULTS
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("step", "fault"), CASES)
def test_a_step_keeps_its_promises_when_it_meets_a_fault(step: str, fault: str, base: Project, tmp_path: Path) -> None:
    of, met = steps_of(base.folder)[step], FAULTS[fault]
    wanted = of.outcome(base.folder)
    with case_of(base, tmp_path / "project", met.is_of_disk) as case:
        for pattern in of.removed:
            for path in case.folder.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert not of.outcome(case.folder)
        command = met.meet(case, of)
        command.wait(LIMIT_S)
        assert_told(case.output(command), command.returncode, met)
        assert fault != "unreadable" or case.mark.exists(), "the stand-in saw no such call"
        assert wait_until(lambda: not case.working(), ORPHANS_S), f"processes are left: {case.working()}"
        assert {name: wanted.get(name) for name in of.outcome(case.folder)} == of.outcome(case.folder)
        if met.is_of_disk:
            subprocess.run(["mount", "-o", "remount,rw", str(case.folder)], check=True)
            (case.folder / "filler").unlink(missing_ok=True)
        places = {name: case.environment[name] for name in ("TMPDIR", "SCALESTUDY_LOCKS")}
        again = (*DRIVER, of.target) if fault == "driver killed" else of.command
        Project(case.folder, forked=True).must(*again, **places)
        assert of.outcome(case.folder) == wanted


def assert_told(output: str, status: int, fault: Fault) -> None:
    """Without success there is one message, with the fault and the next step."""
    assert "Traceback (most recent call last)" not in output
    if status not in (0, -signal.SIGKILL):
        assert MESSAGE.search(output), output
        assert re.search(fault.words, output), output
        assert NEXT.search(output), output
