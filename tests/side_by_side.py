"""`make check`: linters and all tests, in groups that run side by side: `python -m tests.side_by_side [OPTION OF PYTEST]…`.

Tests of schedulers wait most of the time, and so do those that watch a run from outside; Horovod computes for
minutes. The first group, which is all that no other one has, is divided among several processes, file by file: two more
than there are cores, as many of its tests wait too. They share a warm server; each has a lock for measured runs and
temporary files of its own. The first group's output is shown while it comes, that of the others when they have ended.

What failed is run once more when nothing else runs, and both outputs are shown: a test that fails again fails all. Ten
minutes of eight busy processes on two cores show what a test expects of the machine's speed, and that is said, not counted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from tests.cluster.test_executor_package import TESTS

POLL_S = 0.2
TESTS_FAILED = 1
"""Pytest's exit status."""
MAX_PROCESSES = 8
PROCESSES = min(MAX_PROCESSES, len(os.sched_getaffinity(0)) + 2)
BY_FILE = (f"--numprocesses={PROCESSES}", "--dist=loadfile", "--no-loadscope-reorder")
"""Options of pytest-xdist. In this order: files that wait, in executor/tests, come first, and the long ones of integration/ before unit/."""


@dataclass
class Group:
    """Tests that one pytest runs."""

    name: str
    arguments: Sequence[str]
    divided: Sequence[str] = ()
    """Options that divide it among processes."""
    nice: int = 0
    """How far it stands back for the others: a build takes what they leave."""
    build: str = ""
    """A script that runs first."""
    command: Sequence[str] = ()
    """What runs in place of pytest."""

    def start(self, options: Sequence[str], output: IO[bytes] | None, cache: str) -> subprocess.Popen[bytes]:
        """Start it; `output` None: to this process's own. `cache` is a folder in which pytest notes what failed."""
        words = [*self.arguments, *self.divided, "-o", f"cache_dir={cache}", *options]
        command = self.command or ["nice", "-n", str(self.nice), sys.executable, "-m", "pytest", *words]
        if self.build:
            command = ["sh", "-c", 'nice "$0" && exec "$@"', self.build, *command]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def again(self, options: Sequence[str], cache: str) -> int:
        """Run alone what has failed; its exit status, which is not 0 where pytest noted no failed test either."""
        print(f"\n-- {self.name}: what failed, once more and alone --", flush=True)
        words = [*self.arguments, "-o", f"cache_dir={cache}", "--last-failed", "--last-failed-no-failures=none"]
        command = [sys.executable, "-m", "pytest", "-rfEsp", *words, *options]
        status = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
        print(f"-- {self.name}: {'passed alone' if status == 0 else 'FAILED again'} --", flush=True)
        return status


APART = (
    Group("Slurm", ["tests/cluster/test_slurm.py"]),
    Group("Slurm, harsh", ["tests/cluster/test_slurm_harsh.py"]),
    Group("Grid Engine", ["tests/cluster/test_sge.py"]),
    Group("the executor's own, on real schedulers", ["tests/cluster/test_executor_package.py"]),
    Group("Horovod", ["tests/integration/test_strategies_horovod.py"], nice=5, build="envs/horovod.sh"),
)
# The executor's own run with the stand-in only where there is no real scheduler.
RUN_APART = ["tests/unit/test_words.py", *(path for group in APART for path in group.arguments)]  # `make lint` runs it
if os.geteuid() == 0 and shutil.which("slurmctld"):
    RUN_APART.append(TESTS)
OTHERS = Group("all others", ["executor/tests", "tests", *(f"--ignore={path}" for path in RUN_APART)], BY_FILE)
GROUPS = (OTHERS, *APART, Group("linters", [], command=("make", "--no-print-directory", "lint")))


def run(groups: Sequence[Group], options: Sequence[str]) -> int:
    """Run all groups to their ends, and once more what failed; the first exit status that is not 0, or else 0."""
    begin = time.monotonic()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        caches = [f"{folder}/{number}" for number in range(len(groups))]
        outputs = [None, *(stack.enter_context(tempfile.TemporaryFile()) for _ in groups[1:])]
        processes = [
            group.start(options, output, cache) for group, output, cache in zip(groups, outputs, caches, strict=True)
        ]
        left = list(range(len(groups)))
        try:
            while left:
                for index in [index for index in left if processes[index].poll() is not None]:
                    left.remove(index)
                    _show(groups[index], outputs[index], processes[index].returncode, time.monotonic() - begin)
                time.sleep(POLL_S)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.terminate()
            for process in processes:
                process.wait()
        statuses = [process.returncode for process in processes]
        for number, group in enumerate(groups):
            if statuses[number] == TESTS_FAILED:
                statuses[number] = group.again(options, caches[number])
    return next((status for status in statuses if status), 0)


def _show(group: Group, output: IO[bytes] | None, status: int, seconds: float) -> None:
    """Print a group's whole output, where it was held back, and its end."""
    if output is not None:
        output.seek(0)
        print(f"\n-- {group.name} --", flush=True)
        os.write(sys.stdout.fileno(), output.read())
    ended = "passed" if status == 0 else f"FAILED (exit status {status})"
    print(f"-- {group.name}: {ended} after {seconds / 60:.1f} min --", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(run(GROUPS, sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
