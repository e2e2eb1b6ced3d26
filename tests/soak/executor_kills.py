"""`python -m tests.soak.executor_kills [COUNT]`, as root: 16 jobs on a private Slurm, and a driver that is ended at COUNT moments.

None may be lost, started twice, or set back. Submissions, starts and results are counted by Slurm too, in its log of completed
jobs, and must be those that the executor counts.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from itertools import pairwise
from typing import ClassVar

from tests.cluster.slurm_box import SlurmBox
from tests.cluster.workflow import ROOT, Shipped, Workflow

COMPLETED_JOBS = "/var/log/slurm_jobs"
COMPLETED_JOB = re.compile(
    r"^JobId=(?P<id>\d+) .* Name=(?P<name>.*) JobState=(?P<state>\w+) .* NodeCnt=(?P<nodes>\d+) ", re.M
)


def kills(box: SlurmBox, count: int) -> bool:
    """End the driver again and again, at moments spread over its life: while it starts, submits, adopts, follows.

    Through profiles/slurm as it is shipped, and the same command after each. Three ends of four are SIGKILL; the fourth is
    Ctrl-C, after which jobs are deleted and go on from what they had saved.
    """
    jobs = 16
    workflow = Shipped(box, "kills", "slurm", {f"run{n:02}": {"steps": 12 + 2 * n, "step_s": 1} for n in range(jobs)})
    moments = random.Random(1)
    for number in range(count):
        driver = workflow.start()
        seconds, end = moments.uniform(1.0, 9.0), signal.SIGINT if number % 4 == 3 else signal.SIGKILL
        time.sleep(seconds)
        if driver.process.poll() is None:
            driver.kill(end)
        driver.wait()
        print(f"{end.name:7} {number + 1:2}: after {seconds:4.1f} s, {counted(workflow)}", flush=True)
    code, output = workflow.drive(timeout=600)
    print(f"at the end: exit {code}, {counted(workflow)}")
    if code:
        print(output[-4000:])
    lines = [line.rsplit(maxsplit=2) for line in (workflow.folder / "starts.log").read_text().splitlines()]
    jobs_started = [job for _, _, job in lines]
    again = [
        f"{run} from {done} after {before}"
        for run in workflow.starts()
        for (_, before, _), (_, done, _) in pairwise([line for line in lines if line[0] == run])
        if int(done) < int(before)
    ]
    print(
        f"{len(jobs_started) - len(set(jobs_started))} jobs started twice; runs set back: {', '.join(again) or 'none'}"
    )
    agreed = agrees(box, workflow)
    return (
        code == 0
        and len(set(jobs_started)) == len(jobs_started)
        and not again
        and workflow.results() == jobs
        and agreed
    )


def agrees(box: SlurmBox, workflow: Workflow) -> bool:
    """Whether Slurm has had the jobs that the executor noted and no others, each once, and no run succeeded twice.

    A submission that its driver has given up is noted by its end alone. It ends at once, and well by Slurm's account, without
    having started its run.
    """
    box.until(["bash", "-c", "squeue -h | wc -l"], "0\n")
    last = re.search(r"NEXT_JOB_ID\s*=\s*(\d+)", box.must(["scontrol", "show", "config"]))
    assert last is not None
    jobs = [match.groupdict() for match in COMPLETED_JOB.finditer(box.must(["cat", COMPLETED_JOBS]))]
    names = {job["name"] for job in jobs}
    on_nodes = {job["name"] for job in jobs if int(job["nodes"])}
    taken = {event["name"]: event["job"] for event in workflow.events("submitted")}
    noted = taken | {event["name"]: event["job"] for event in workflow.events("ended")}
    started = [line.rsplit(maxsplit=1)[1] for line in (workflow.folder / "starts.log").read_text().splitlines()]
    well = [noted.get(job["name"]) for job in jobs if job["state"] == "COMPLETED" and job["name"] in started]
    print(
        f"by Slurm: {int(last[1]) - 1} submissions, {len(on_nodes)} jobs on nodes, {len(well)} of them with a result; noted and "
        f"never there: {len(noted.keys() - names)}; on nodes without a start of their run: {len(on_nodes - set(started))}"
    )
    once = len(names) == len(jobs) == int(last[1]) - 1
    return (
        once
        and taken.keys() <= names <= noted.keys()
        and set(started) <= on_nodes
        and len(set(well)) == len(well) == workflow.results()
    )


def counted(workflow: Workflow) -> str:
    """Submissions, starts and results so far; of a run, more than one start follows a Ctrl-C alone."""
    submitted = len(workflow.events("submitted"))
    starts = workflow.starts()
    return (
        f"{submitted:2} submissions, {sum(starts.values()):2} starts of {len(starts):2} runs, "
        f"{workflow.results():2} results"
    )


class LoggedSlurmBox(SlurmBox):
    """A Slurm that writes down each job at its end."""

    changes: ClassVar[dict[str, str]] = {"JobCompType": "jobcomp/filetxt", "JobCompLoc": COMPLETED_JOBS}


def main() -> int:
    """Run it; exit status 1 if it was not well."""
    box = LoggedSlurmBox(ROOT)
    print(f"{box.must(['sinfo', '--version']).strip()}, four nodes of 16 CPUs on {os.cpu_count()} real cores")
    try:
        well = kills(box, int(sys.argv[1]) if sys.argv[1:] else 20)
    finally:
        box.stop()
    print("well" if well else "NOT WELL")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
