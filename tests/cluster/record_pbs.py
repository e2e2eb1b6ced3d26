"""Records what a real PBS answers to the back end: `python -m tests.cluster.record_pbs FOLDER`, as an ordinary user.

One JSON file per case, with each command, its exit status and its output. The replay is `executor/tests/test_pbs.py`,
which states what each case means. Case `memory` needs a server that enforces memory; its node's daemon polls.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_multinode.schedulers import JobRef, NoAnswer, Refused, Request, State, scheduler_of
from snakemake_executor_plugin_multinode.schedulers.command import CommandAnswer, run_command

# Virtual nodes of one host are not told apart by `scatter`.
SITE = {
    "kind": "pbs",
    "request": "-l select={nodes}:ncpus={cpus_per_node}[:mem={mem_mb}mb] -l place=vscatter [-l walltime={walltime}]",
}


class Recorder:
    """Runs commands and keeps what they answered, for one case after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[dict[str, Any]] = []
        self.scheduler = scheduler_of(SITE, self.run)
        self.work = Path.home() / "record"
        self.work.mkdir(exist_ok=True)

    def run(self, argv: Sequence[str], limit_s: float) -> CommandAnswer:
        """Run and keep."""
        answer = run_command(argv, limit_s)
        self.calls.append({"argv": list(argv), "code": answer.code, "out": answer.out, "err": answer.err})
        return answer

    def submit(self, name: str, script: str, **more: Any) -> str:
        """Submit one job."""
        file = self.work / f"{name}.sh"
        file.write_text(f"{script}\n")
        asked = {"nodes": 1, "mem_mb": None, "runtime_min": 5, "queue": None, **more}
        request = Request(
            name, file, self.work / f"{name}.log", ranks_per_node=1, gpus_per_node=0, cpus_per_rank=1, **asked
        )
        return self.scheduler.submit(request)

    def state(self, name: str, job_id: str | None, wanted: State | None, limit_s: float = 150) -> None:
        """Ask until the job is in a state; keep the last question and answer alone."""
        end = time.monotonic() + limit_s
        while True:
            self.calls.clear()
            found = self.scheduler.statuses([JobRef(name, job_id)]).get(name)
            if (found.state if found else None) is wanted:
                return
            if time.monotonic() > end:
                raise SystemExit(f"{name}: never {wanted}, but {found}")
            time.sleep(1)

    def keep(self, case: str) -> None:
        """Write the calls of a case down."""
        (self.folder / f"{case}.json").write_text(json.dumps(self.calls, indent=1, ensure_ascii=False) + "\n")
        self.calls.clear()


def main() -> None:
    """All cases, the quick ones first."""
    folder = Path(sys.argv[1])
    version = subprocess.run(["qsub", "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    folder = folder / f"openpbs-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(folder)
    walltime = recorder.submit("walltime", "exec sleep 300", runtime_min=1)
    recorder.calls.clear()

    well = recorder.submit("well", "sleep 4")
    recorder.keep("submitted")
    recorder.state("well", well, State.RUNNING)
    recorder.keep("running")
    recorder.state("well", None, State.RUNNING)
    recorder.keep("running_by_name")
    recorder.state("nosuch", None, None)
    recorder.keep("no_such_name")
    recorder.state("nosuch", "99999", None)
    recorder.keep("no_such_id")
    recorder.state("well", well, State.ENDED)
    recorder.keep("finished")
    recorder.scheduler.statuses([JobRef("well", well), JobRef("nosuch", "99999")])
    recorder.keep("one_of_two_ids")

    _queued(recorder)
    _ended(recorder)
    _refused(recorder)
    memory = "exec /usr/bin/python3 -c 'import time; x = bytearray(400 << 20); time.sleep(60)'"
    recorder.state("memory", recorder.submit("memory", memory, mem_mb=100), State.ENDED)
    recorder.keep("memory")
    recorder.state("walltime", walltime, State.ENDED)
    recorder.keep("walltime")


def _queued(recorder: Recorder) -> None:
    """What waits, is held, and is deleted before it ran."""
    full = [recorder.submit(f"full{n}", "sleep 60", nodes=4) for n in range(18)]
    recorder.state("full17", full[17], State.QUEUED)
    recorder.keep("queued")
    subprocess.run(["qhold", full[17]], check=True)
    recorder.state("full17", full[17], State.HELD)
    recorder.keep("held")
    recorder.scheduler.cancel([JobRef("full17", full[17])])
    recorder.keep("cancel")
    recorder.state("full17", full[17], State.ENDED)
    recorder.keep("cancelled_while_queued")
    recorder.scheduler.cancel([JobRef("x", job) for job in full[:17]])


def _ended(recorder: Recorder) -> None:
    """Ends of several kinds."""
    for case, script in {"exit3": "exit 3", "killed": "kill -9 $$"}.items():
        recorder.state(case, recorder.submit(case, script), State.ENDED)
        recorder.keep(case)
    running = recorder.submit("deleted", "exec sleep 100")
    recorder.state("deleted", running, State.RUNNING)
    recorder.scheduler.cancel([JobRef("deleted", running)])
    recorder.state("deleted", running, State.ENDED)
    recorder.keep("cancelled_while_running")
    recorder.state("never", recorder.submit("never", "true", nodes=9), State.NEVER)
    recorder.keep("never")


def _refused(recorder: Recorder) -> None:
    """What the server does not take."""
    for case, more in {"unknown_queue": {"queue": "nosuch"}, "over_the_limit": {"runtime_min": 10**7}}.items():
        recorder.calls.clear()
        try:
            recorder.submit(case, "true", **more)
        except (Refused, NoAnswer):
            pass
        recorder.keep(case)


if __name__ == "__main__":
    main()
