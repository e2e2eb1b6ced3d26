"""Where jobs of a test run, the driver that submits them, and what it notes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_multinode.schedulers import CommandAnswer, Scheduler, scheduler_of

STANDIN = Path(__file__).parent / "standin"
REAL = os.environ.get("MULTINODE_TEST_SCHEDULER")
SITE = Path(__file__).parent / "sites" / f"{REAL or 'slurm'}.yaml"
"""Names the batch system: a host may have the commands of several."""

OPTIONS = (
    "--executor", "multinode", "--jobs", "10", "--nolock", "--rerun-incomplete", "--latency-wait", "10",
    "--seconds-between-status-checks", "1",
)  # fmt: skip


def command(*arguments: str) -> list[str]:
    """A driver with this executor."""
    return [sys.executable, "-m", "snakemake", *OPTIONS, "--multinode-site", str(SITE), *arguments]


def drive(folder: Path, *arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run a driver to its end; standard error comes with standard output."""
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )


def events(folder: Path, event: str) -> list[dict[str, object]]:
    """Lines of the ledger."""
    lines = [json.loads(line) for line in (folder / ".multinode/jobs.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


class Replies:
    """Commands of a scheduler that answer by the beginning of their line: text, an answer, or an error. `calls` has all lines."""

    def __init__(self, **answers: str | tuple[int, str, str] | Exception) -> None:
        self.answers, self.calls = answers, list[str]()

    def __call__(self, argv: Sequence[str], _limit_s: float) -> CommandAnswer:
        self.calls.append(" ".join(argv))
        known = [key for key in self.answers if self.calls[-1].startswith(key)]
        answer = self.answers[max(known, key=len)] if known else ""
        if isinstance(answer, Exception):
            raise answer
        return CommandAnswer(0, answer, "") if isinstance(answer, str) else CommandAnswer(*answer)

    def scheduler(self, kind: str, **site: Any) -> Scheduler:
        """A scheduler of these commands."""
        return scheduler_of({"kind": kind, **site}, self)
