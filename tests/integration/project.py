"""A small copy of the project, with a four-run study of its own, that tests can change and break."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration import fork_server

ROOT = Path(__file__).resolve().parents[2]

STUDY = """\
question: Does the frame hold?
base:
  model: small_cnn
  data: {source: digits}
  batch: {per_rank: 32}
  optimiser: {learning_rate: 0.05}
  train: {epochs: 4}
vary:
  strategy: [{value: halving_doubling, label: HD}, allreduce]
  ranks: [1, 2]
scales:
  mini: {}
figures:
  - {kind: time_over_ranks, name: time}
tables:
  - {name: times, values: [throughput_samples_per_s, accuracy]}
claims:
  - id: learns
    statement: The network learns.
    source: nobody
    place: nowhere
    kind: exact
    checks: [{column: status, equals: valid}]
"""


@dataclass
class Project:
    """A folder that looks like a clone."""

    folder: Path
    forked: bool = False
    """Whether `scalestudy` and `snakemake` are processes of the fork server: where no test is about processes."""

    @property
    def study(self) -> Path:
        """The study file."""
        return self.folder / "config" / "studies" / "tiny.yaml"

    @property
    def code(self) -> Path:
        """The package and the rules: a link to those of this repository until `with_own_code`."""
        return self.folder / "workflow"

    def with_own_code(self) -> Project:
        """The same project with a copy of the code, to be changed."""
        if self.code.is_symlink():
            self.code.unlink()
            ignore = shutil.ignore_patterns("*.pyc.*", "*.egg-info")  # what is compiled is as good there
            shutil.copytree(ROOT / "workflow", self.code, ignore=ignore)
        return self

    def environment(self) -> dict[str, str]:
        """Commands find the copy's own package, and the tests' interpreter."""
        has_own = (self.code / "scalestudy").exists() and not self.code.is_symlink()
        own = {"PYTHONPATH": str(self.code)} if has_own else {}
        return {**os.environ, **own, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def shell(self, line: str, timeout: float = 240, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a line of bash."""
        return self.run("bash", "-c", line, timeout=timeout, **more)

    def run(self, *command: str, timeout: float = 240, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder; standard error comes with standard output."""
        environment = self.environment()
        if self.forked:
            environment["PATH"] = f"{fork_server.commands()}{os.pathsep}{environment['PATH']}"
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**environment, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )

    def must(self, *command: str, **more: str) -> str:
        """Run a command, assert its success, and return its output."""
        done = self.run(*command, **more)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def make(self, *targets: str) -> str:
        """Run `snakemake --profile profiles/local …`, assert its success, and return its output."""
        return self.must("snakemake", "--profile", "profiles/local", *targets)

    def snakemake(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """`snakemake --profile profiles/local …`."""
        return self.run("snakemake", "--profile", "profiles/local", *arguments, **more)

    def planned(self, *arguments: str) -> dict[str, int]:
        """The jobs that a dry run announces, by rule; `total` and `all` left out."""
        return jobs_in(self.make("-n", *arguments))

    def verdicts(self, study: str) -> list[dict[str, Any]]:
        """The verdicts on a study's claims."""
        file = self.folder / f"results/local/mini/claims/{study}.json"
        claims: list[dict[str, Any]] = json.loads(file.read_text())["claims"]
        return claims

    def results(self) -> list[Path]:
        """The results of all runs."""
        return sorted(self.folder.glob("results/local/runs/*/result.json"))

    def edit(self, file: Path | str, old: str, new: str) -> None:
        """Replace text that must be there."""
        path = self.folder / file
        text = path.read_text()
        assert old in text, f"{old!r} is not in {file}"
        path.write_text(text.replace(old, new))


def jobs_in(output: str) -> dict[str, int]:
    """The jobs that a dry run counts, by rule; `total` and `all` left out."""
    stats = output.rpartition("Job stats:")[2].partition("\n\n")[0]
    jobs = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", stats, re.MULTILINE)}
    return {name: count for name, count in jobs.items() if name not in ("total", "all")}


def make_project(folder: Path, forked: bool = False) -> Project:
    """What a clone has, with the tiny study alone; the code is a link to this repository's."""
    folder.mkdir(parents=True)
    for name in ("profiles", "envs", "config"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("studies"))
    shutil.copy(ROOT / "Snakefile", folder / "Snakefile")
    project = Project(folder, forked)
    project.code.symlink_to(ROOT / "workflow")
    project.study.parent.mkdir()
    project.study.write_text(STUDY)
    return project
