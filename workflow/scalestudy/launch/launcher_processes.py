"""The processes of a launcher (srun, ssh, mpirun, …), which start the agents of a run on its nodes."""

from __future__ import annotations

import os
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import IO

from scalestudy.files import plain_file
from scalestudy.launch import launchers
from scalestudy.launch.failures import Failure, RankFailed, failure_with_log
from scalestudy.processes import die_with
from scalestudy.training.job import Job

TASK_S = 60.0
MIN_GRACE_S = 0.5


class LauncherProcesses:
    """One process for all nodes, or one per node, as the launcher needs. They end with this process."""

    def __init__(self, job: Job, launcher: str) -> None:
        self.job, self.launcher = job, launcher
        self.processes: list[subprocess.Popen[bytes]] = []
        self.log = job.log / "launch.log"

    def start(self, script: Path) -> None:
        """Start the script on every node. Raises RankFailed where the launcher is missing, or a node does not answer."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "wb", opener=plain_file) as output:
            for command in launchers.commands(self.launcher, self.job, script):
                self.processes.append(self._start(command, output))
                if self.launcher == "pbsdsh":
                    self._wait_for_task()

    def first_ended(self) -> tuple[int, int] | None:
        """Number and exit status of the first that has ended, None where all run; pbsdsh ends when it has succeeded."""
        for index, process in enumerate(self.processes):
            status = process.poll()
            if status is not None and not (status == 0 and self.launcher == "pbsdsh"):
                return index, status
        return None

    def failure(self, what: str, kind: str = "failed") -> Failure:
        """Return the launcher's failure, with the last lines that it or its agents wrote."""
        return failure_with_log(kind, f"{self.launcher}: {what}", self.log)

    def end(self, grace_s: float) -> None:
        """Wait for each of them, ask it to end, make it end."""
        for process in self.processes:
            _end(process, max(MIN_GRACE_S, grace_s))
        if self.log.exists() and self.log.stat().st_size == 0:
            self.log.unlink()

    def _start(self, command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=launchers.environment_for(command[0]),
                preexec_fn=partial(die_with, os.getpid(), signal.SIGTERM),  # noqa: PLW1509 (there are no other threads)
                process_group=0,  # not the keeper's: mpirun has to clean up after itself
            )
        except FileNotFoundError:
            raise RankFailed(f"`{command[0]}`, the launcher of this run, is not installed here") from None

    def _wait_for_task(self) -> None:
        """PBS takes one request of a job at a time."""
        try:
            self.processes[-1].wait(TASK_S)
        except subprocess.TimeoutExpired:
            host = self.job.hosts[len(self.processes) - 1]
            raise RankFailed(f"pbsdsh: node {host} has not started its task within {TASK_S:g} s") from None


def _end(process: subprocess.Popen[bytes], wait_s: float) -> None:
    for ask in (process.terminate, process.kill):
        try:
            process.wait(wait_s)
            return
        except subprocess.TimeoutExpired:
            ask()
    process.wait()
