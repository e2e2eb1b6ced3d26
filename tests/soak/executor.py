"""`python -m tests.soak.executor [kills|status|jobs|faults] [COUNT]`, as root: the executor on a private Slurm, for long.

kills: 16 jobs, and a driver killed or interrupted at 20 moments; none may be lost, started twice, or set back. Submissions,
starts and results are counted by Slurm too, in its log of completed jobs, and must be those that the executor counts.
status: 1,000 jobs in the queue: the rate of submissions, and the driver's share of a core while they wait.
jobs: 1,000 short jobs without an error, with the driver's memory and CPU time.
faults: hold, preemption, a node that goes down, an administrator's cancel, and a controller killed while it takes jobs.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from tests.cluster.box import USER
from tests.cluster.slurm_box import SlurmBox, version
from tests.cluster.workflow import ROOT, Driver, Shipped, Workflow

SITE = {"kind": "slurm"}
COMPLETED_JOBS = "/var/log/slurm_jobs"
COMPLETED_JOB = re.compile(
    r"^JobId=(?P<id>\d+) .* Name=(?P<name>.*) JobState=(?P<state>\w+) .* NodeCnt=(?P<nodes>\d+) ", re.M
)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


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
        print(failures(output))
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

    A driver may be killed after it has noted a submission and before Slurm has it. A job that its driver has given up ends
    at once, and well by Slurm's account, without having started its run.
    """
    box.until(["bash", "-c", "squeue -h | wc -l"], "0\n")
    last = re.search(r"NEXT_JOB_ID\s*=\s*(\d+)", box.must(["scontrol", "show", "config"]))
    assert last is not None
    jobs = [match.groupdict() for match in COMPLETED_JOB.finditer(box.must(["cat", COMPLETED_JOBS]))]
    names = {job["name"] for job in jobs}
    on_nodes = {job["name"] for job in jobs if int(job["nodes"])}
    noted = {event["name"]: event["job"] for event in workflow.events("submitted")}
    with_id = {event["name"] for event in workflow.events("id")}
    started = [line.rsplit(maxsplit=1)[1] for line in (workflow.folder / "starts.log").read_text().splitlines()]
    well = [noted.get(job["name"]) for job in jobs if job["state"] == "COMPLETED" and job["name"] in started]
    print(
        f"by Slurm: {int(last[1]) - 1} submissions, {len(on_nodes)} jobs on nodes, {len(well)} of them with a result; noted and "
        f"never there: {len(noted.keys() - names)}; on nodes without a start of their run: {len(on_nodes - set(started))}"
    )
    once = len(names) == len(jobs) == int(last[1]) - 1
    return (
        once
        and with_id <= names <= noted.keys()
        and set(started) <= on_nodes
        and len(set(well)) == len(well) == workflow.results()
    )


def counted(workflow: Workflow) -> str:
    """Submissions, starts and results so far; of a run, more than one start follows a Ctrl-C alone."""
    asked, arrived = len(workflow.events("submitted")), len(workflow.events("id"))
    starts = workflow.starts()
    return (
        f"{asked:2} submissions, {arrived:2} of them with an id, {sum(starts.values()):2} starts of {len(starts):2} runs, "
        f"{workflow.results():2} results"
    )


def jobs(box: SlurmBox, count: int) -> bool:
    """Many short jobs under one driver."""
    workflow = Workflow(box, "many", SITE, {f"run{number:04}": {} for number in range(count)})
    driver = workflow.start()
    begin = time.monotonic()
    print("   time  results  memory MiB  threads  CPU s")
    while driver.process.poll() is None:
        time.sleep(20)
        print(usage(driver, time.monotonic() - begin, workflow.results()), flush=True)
    code, output = driver.wait()
    starts = workflow.starts()
    print(
        f"exit {code}; {workflow.results()} results, {sum(starts.values())} starts, {len(workflow.events('submitted'))} submissions"
    )
    if code:
        print(failures(output))
    return code == 0 and set(starts.values()) == {1} and workflow.results() == count


def status(box: SlurmBox, count: int) -> bool:
    """So many jobs that wait in the queue: how fast they are submitted, and what it costs to follow them for a minute."""
    box.must(["scontrol", "update", "nodename=node[1-4]", "state=drain", "reason=soak"])
    workflow = Shipped(box, "status", "slurm", {f"run{number:04}": {} for number in range(count)})
    driver = workflow.start("--jobs", str(count))
    while not workflow.events("id"):
        time.sleep(0.5)
    begin = time.monotonic()
    while len(workflow.events("id")) < count:
        assert driver.process.poll() is None, driver.log.read_text()
        time.sleep(2)
    submitting_s = time.monotonic() - begin
    time.sleep(10)
    before_s, begin = cpu_s(driver), time.monotonic()
    time.sleep(60)
    share = (cpu_s(driver) - before_s) / (time.monotonic() - begin)
    print(f"{count} jobs submitted in {submitting_s:.0f} s, {count / submitting_s:.1f} per second")
    print(f"all of them followed, polled every 10 s: {share:.1%} of a core; {usage(driver, 0, workflow.results())}")
    driver.kill(signal.SIGTERM)
    code, _ = driver.wait()
    box.must(["scancel", "-u", USER])
    box.must(["scontrol", "update", "nodename=node[1-4]", "state=resume"])
    return code == 1 and share <= 0.05


def faults(box: SlurmBox) -> bool:
    """What may happen to a job: how long after it the driver says so, and in which words."""
    alone = {"steps": 40, "step_s": 1, "mem_mb": 2500}
    runs = {"preempted": alone, "node": {**alone, "what": "deaf"}, "cancelled": alone, "waits": {"nodes": 4}}
    workflow = Workflow(box, "faults", SITE, runs)
    box.must(["scontrol", "update", "nodename=node4", "state=drain", "reason=soak"])  # so `waits` waits
    driver = workflow.start("--seconds-between-status-checks", "10")
    workflow.until(
        lambda: len(workflow.starts()) == 3 and len(workflow.events("id")) == 4, "starts and a job that waits"
    )
    ids = {event["name"].split(".")[1]: event["id"] for event in workflow.events("id")}
    nodes = {run: box.must(["squeue", "-h", "-j", ids[run], "-o", "%N"]).strip() for run in ("preempted", "node")}
    urgent = ["sbatch", "-p", "urgent", "-w", nodes["preempted"], "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2"]
    provoked = [
        (["scontrol", "hold", ids["waits"]], f"waits: job {ids['waits']} is held"),
        (["scontrol", "release", ids["waits"]], f"waits: job {ids['waits']} is queued again"),
        (["scancel", ids["cancelled"]], f"job {ids['cancelled']}: cancelled by its owner or an administrator"),
        (urgent, f"preempted: job {ids['preempted']}: preempted"),
        (
            ["scontrol", "update", f"nodename={nodes['node']}", "state=down", "reason=soak"],
            f"node: job {ids['node']}: the node",
        ),
    ]
    for command, words in provoked:
        box.must(command)
        begin = time.monotonic()
        workflow.until(lambda words=words: words in driver.log.read_text(), words, 120)
        said = next(line for line in driver.log.read_text().splitlines() if words in line)
        print(f"{' '.join(command[:4])}: after {time.monotonic() - begin:.0f} s: {said.strip()}", flush=True)
    for node in (nodes["node"], "node4"):  # the first may have come back on its own
        box.run(["scontrol", "update", f"nodename={node}", "state=resume"])
    code, _ = driver.wait(300)
    finished = sorted(path.parent.name for path in workflow.folder.glob("results/*/result.json"))
    print(f"exit {code}; results of {', '.join(finished)}; starts {dict(workflow.starts())}")
    return code == 1 and finished == ["node", "preempted", "waits"] and restarted(box)


def restarted(box: SlurmBox) -> bool:
    """A controller killed while it takes jobs forgets its last seconds: every run must have its result all the same."""
    jobs = 60
    workflow = Workflow(box, "restarted", SITE, {f"run{number:02}": {} for number in range(jobs)})
    driver = workflow.start()
    workflow.until(lambda: len(workflow.events("id")) >= jobs // 2, "half of the submissions")
    box.stop_controller(crash=True)
    time.sleep(3)
    box.start_controller()
    box.run(["scontrol", "update", "nodename=node[1-4]", "state=resume"])  # it drains a node that ran what it forgot
    code, output = driver.wait(600)
    causes = [event["cause"] for event in workflow.events("ended") if event["cause"] != "finished"]
    print(f"controller killed at {jobs // 2} of {jobs} submissions: exit {code}, {workflow.results()} results, "
          f"{sum(workflow.starts().values())} starts")  # fmt: skip
    print("".join(f"  {cause}\n" for cause in causes), end="")
    if code:
        print(failures(output))
    return code == 0 and workflow.results() == jobs


def failures(output: str) -> str:
    """What a driver said about each job that failed."""
    return "\n".join(
        line.strip() for line in output.splitlines() if line.startswith(("    message:", "WorkflowError", "Missing"))
    )


def cpu_s(driver: Driver) -> float:
    """CPU time of a driver so far, without its children."""
    fields = Path(f"/proc/{driver.pid()}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def usage(driver: Driver, seconds: float, results: int) -> str:
    """Memory, threads and CPU time of a driver so far."""
    try:
        process = Path(f"/proc/{driver.pid()}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line)
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except (OSError, IndexError, AssertionError):
        return f"{seconds:5.0f} s  {results:7}  (ended)"
    memory, cpu = int(status["VmRSS"].split()[0]) / 1024, (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return f"{seconds:5.0f} s  {results:7}  {memory:10.0f}  {int(status['Threads']):7}  {cpu:5.1f}"


class LoggedSlurmBox(SlurmBox):
    """A Slurm that writes down each job at its end."""

    changes: ClassVar[dict[str, str]] = {"JobCompType": "jobcomp/filetxt", "JobCompLoc": COMPLETED_JOBS}


def main() -> int:
    """Run one soak or all; exit status 1 if one of them failed."""
    which = sys.argv[1:2] or ["kills", "status", "jobs", "faults"]
    print(f"Slurm {version()}, four nodes of 16 CPUs on {os.cpu_count()} real cores")
    box = LoggedSlurmBox(ROOT)
    try:
        well = True
        if "kills" in which:
            well &= kills(box, int(sys.argv[2]) if sys.argv[2:] else 20)
        if "status" in which:
            well &= status(box, int(sys.argv[2]) if sys.argv[2:] else 1000)
        if "jobs" in which:
            well &= jobs(box, int(sys.argv[2]) if sys.argv[2:] else 1000)
        if "faults" in which:
            well &= faults(box)
    finally:
        box.stop()
    print("well" if well else "NOT WELL")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
