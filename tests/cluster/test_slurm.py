"""The executor on a real Slurm, driven by an ordinary user."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Callable

import pytest

from tests.cluster.box import USER
from tests.cluster.slurm_box import SlurmBox
from tests.cluster.study import QUICK, THROUGH, Studies, ranks, studies
from tests.cluster.workflow import Driver, Workflow, assert_on_named_nodes, message

Shown = Callable[[], tuple[Studies, str]]
SITE = {"kind": "slurm"}
FATES = {
    "two nodes": {"nodes": 2, "ranks_per_node": 2, "gpus_per_node": 2},
    "fails": {"what": "fail"},
    "crashes": {"what": "crash"},
    "too many gpus": {"gpus_per_node": 9},
    "too many nodes": {"nodes": 9},
    "without progress": {"what": "stuck"},
    "long": {"steps": 70, "step_s": 1, "runtime": 1},
    "deaf": {"steps": 1000, "step_s": 1, "runtime": 1, "what": "deaf"},
    "memory": {"steps": 100, "step_s": 0.1, "what": "memory"},
    "cancelled": {"steps": 1000, "step_s": 1},
    "script killed": {"steps": 25, "step_s": 1},
    "held": {"nodes": 4, "gpus_per_node": 4},
    "requeued": {"steps": 1000, "step_s": 1, "what": "again"},
}


@pytest.fixture(scope="module")
def fates(slurm: SlurmBox) -> tuple[Workflow, Driver]:
    """A driver and its jobs, one for each kind of end, while other tests go on beside it.

    The scheduler is stopped and started again when some have ended, some run, and some wait.
    """
    workflow = Workflow(slurm, "fates", SITE, FATES)
    driver = workflow.start()
    killed = {"cancelled", "script killed", "requeued"}
    workflow.until(lambda: killed <= workflow.starts().keys(), "the start of these runs", 90)
    slurm.stop_controller()
    silent = "no answer from the scheduler, which changes nothing for the jobs"
    workflow.until(lambda: silent in driver.log.read_text(), "what it says of that", 100)
    slurm.start_controller()
    ids = workflow.ids()
    slurm.must(["scancel", ids["cancelled"]])
    slurm.kill_job_script(ids["script_killed"])
    slurm.must(["scontrol", "update", f"jobid={ids['requeued']}", "requeue=1"])
    slurm.must(["scontrol", "requeue", ids["requeued"]])
    said = f"job {ids['requeued']} was requeued; it runs again"
    workflow.until(lambda: said in driver.log.read_text(), "what it says of the requeue")
    # Slurm itself lets it wait for two minutes.
    slurm.must(["scontrol", "update", f"jobid={ids['requeued']}", "starttime=now"])
    return workflow, driver


@pytest.fixture(scope="module")
def study(slurm: SlurmBox) -> Shown:
    """A study and one of a user's script through profiles/slurm, while other tests run; a call waits for their end.

    Their first driver is killed; the second is a job, by the script of the profile as it is shipped.
    """
    made = studies(slurm, THROUGH.replace("ranks: [1, 2, 4]", "ranks: [1, 4]"))
    words = ("through", "program", "--config", "machine=box", "scale=mini", *QUICK)
    made.start_killed(slurm.folder / "studies.log", "snakemake", "--profile", "profiles/slurm", *words)
    submit = ("sbatch", "--parsable", "--time=30", "--mem=2G", "profiles/slurm/driver.sh", *words)
    job = made.must(*submit).split()[-1]

    def ended() -> tuple[Studies, str]:
        slurm.until(["scontrol", "-o", "show", "job", job], "JobState=COMPLETED", 500)
        return made, (made.clone / f"slurm-{job}.out").read_text()

    return ended


def test_a_driver_ended_three_times_submits_nothing_twice_and_loses_nothing_whatever_names_and_paths_are(
    slurm: SlurmBox, fates: tuple[Workflow, Driver], study: Shown
) -> None:
    names = ("-dash", "it's two words ü", 'quo"te $HOME `e` semi;colon')
    runs = {name: {"steps": 50 + 10 * number, "step_s": 0.5} for number, name in enumerate(names)}
    workflow = Workflow(slurm, "-a b 'c' \"d\" $HOME `e` %j ü -x;&", SITE, runs)
    # The first driver submits slowly, so that some of its jobs are left to the second one.
    driver = workflow.start("--max-jobs-per-timespan", "1/2s")
    workflow.until(lambda: len(workflow.events("submitted")) >= 2, "that it is in the middle of its submissions", 100)
    driver.kill()
    assert driver.wait()[0] != 0
    driver = workflow.start()
    workflow.until(lambda: driver.log.read_text().count("adopted as") >= 2, "that some are adopted", 100)
    driver.kill(signal.SIGTERM)
    code, output = driver.wait(20)
    assert code == 1
    assert re.search("TERM: this driver exits and leaves . jobs with the scheduler", output), output
    driver = workflow.start()
    workflow.until(lambda: "adopted as" in driver.log.read_text() and workflow.results(), "that a run has ended", 100)
    driver.kill()
    assert driver.wait()[0] != 0
    code, output = workflow.drive()
    assert code == 0, output
    assert workflow.results() == 3
    assert workflow.starts() == dict.fromkeys(names, 1)
    # Slurm itself knows what it was sent.
    submitted = ",".join(event["name"] for event in workflow.events("submitted"))
    assert slurm.must(["squeue", "-h", "-t", "all", "-n", submitted, "-o", "%T"]).split() == ["COMPLETED"] * 3
    assert "is gone; what it submitted is adopted" in output


def test_ctrl_c_also_pressed_thrice_deletes_what_this_driver_submitted_and_nothing_else(slurm: SlurmBox) -> None:
    workflow = Workflow(slurm, "interrupted", SITE, {f"run{n}": {"steps": 1000, "step_s": 1} for n in range(2)})
    slurm.must(["sbatch", "--wrap", "sleep 1000", "-J", "foreign", "-o", "/dev/null"], USER)

    def cancelled(count: int) -> None:
        names = ",".join(event["name"] for event in workflow.events("submitted"))
        slurm.until(["squeue", "-h", "-t", "all", "-n", names, "-o", "%T;"], "\n".join(["CANCELLED;"] * count))

    driver = workflow.start()
    workflow.until(lambda: len(workflow.starts()) == 2, "two starts")
    driver.kill(signal.SIGINT)
    assert driver.wait()[0] == 1
    cancelled(2)
    # Started again, the runs resume from the checkpoint that the signal made them write.
    slow = workflow.folder / "bin" / "scancel"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/bash\nsleep 3\nexec {shutil.which("scancel")} "$@"\n')
    slow.chmod(0o755)
    driver = workflow.start(first_in_path=slow.parent)
    workflow.until(lambda: workflow.starts() == {"run0": 2, "run1": 2}, "two starts again")
    progress = [int(line.split()[1]) for line in (workflow.folder / "starts.log").read_text().splitlines()]
    assert sorted(done > 0 for done in progress) == [False, False, True, True]
    for _ in range(3):
        driver.kill(signal.SIGINT)
        time.sleep(0.7)
    code, output = driver.wait()
    assert code == 1
    assert "cancelling 2 jobs; this may take a while" in output
    assert "did not delete" not in output
    cancelled(4)
    assert "RUNNING" in slurm.must(["squeue", "-h", "-n", "foreign", "-o", "%T"])
    slurm.must(["scancel", "-n", "foreign"])


def test_jobs_land_on_the_nodes_that_they_name(slurm: SlurmBox, fates: tuple[Workflow, Driver]) -> None:
    assert_on_named_nodes(slurm, SITE, ("node2", "node4"))


def test_each_fate_of_a_job_is_seen_and_answered(slurm: SlurmBox, fates: tuple[Workflow, Driver]) -> None:
    workflow, driver = fates
    workflow.until(lambda: "cannot run as things are" in driver.log.read_text(), "that a job cannot run", 60)
    ids = workflow.ids()
    slurm.must(["scancel", ids["too_many_nodes"]], USER)
    code, output = driver.wait(200)
    starts = workflow.starts()
    assert code == 1
    assert {path.parent.name for path in workflow.folder.glob("results/*/result.json")} == {
        "two nodes", "long", "held", "script killed", "requeued",
    }  # fmt: skip

    assert "the loss is not a number" in message(output, "fails")
    assert "its command failed" in message(output, "crashes")
    assert "the scheduler refused it: sbatch: error: Batch job submission failed" in message(output, "too many gpus")
    blocked = f"too many nodes: job {ids['too_many_nodes']} cannot run as things are, says the scheduler: PENDING"
    assert blocked in output
    assert "cancelled by its owner or an administrator (CANCELLED" in message(output, "too many nodes")
    assert "2 attempts in a row made no progress" in message(output, "without progress")
    assert "cancelled by its owner or an administrator" in message(output, "cancelled")
    # Slurm calls the end of a script that was killed alone a failed launch.
    assert re.search(
        r"script killed: job \d+: the node node\d or its software failed .* continues in a new job", output
    )
    assert "the walltime of 1 min was reached (TIMEOUT TimeLimit)" in message(output, "deaf")
    assert "raise the resource `runtime`" in message(output, "deaf")
    if slurm.limits_memory:
        assert "out of memory (OUT_OF_MEMORY OutOfMemory): raise the resource `mem_mb`, now 200 MiB" in message(
            output, "memory"
        )

    once = ("fails", "crashes", "cancelled", "deaf", "memory")
    assert [starts[name] for name in once] == [1] * len(once)
    assert starts["script killed"] == starts["requeued"] == 2
    lines = (workflow.folder / "starts.log").read_text().splitlines()
    assert [line.split()[1] == "0" for line in lines if line.startswith("requeued ")] == [True, False]
    links = [json.loads(line) for line in (workflow.folder / "results/long/state.json").read_text().splitlines()]
    assert links[0]["progress"] == 70
    assert starts["long"] == 2
    ended = {event["name"]: event for event in workflow.events("ended")}
    first = next(
        event for event in ended.values() if event["name"].startswith("train.long") and event["progress"] != 70
    )
    assert first["cause"].startswith("the deadline is near")


def test_a_mini_study_goes_from_its_file_to_its_figure_by_a_driver_that_is_a_job_itself(study: Shown) -> None:
    made, output = study()
    assert "is gone; what it submitted is adopted" in output
    results = made.results()
    assert [len(made.job_ids(result["run"])) for result in results] == [1, 1], f"{output}\n{made.left()}"
    assert [(result["status"], ranks(result)) for result in results] == [("valid", 1), ("valid", 4)]
    launch = results[-1]["launch"]
    assert launch["launcher"] == "srun"
    assert len(set(launch["hosts"])) == 2 and set(launch["hosts"]) <= {f"node{number}" for number in range(1, 5)}
    assert {"time.svg", "time.png", "time.pdf", "times.csv"} <= set(made.drawn())


def test_a_users_script_runs_on_two_nodes_and_is_reported(study: Shown) -> None:
    made, _ = study()
    [two] = made.results("program")
    assert two["status"] == "valid"
    text = (made.clone / "results/box/mini/tables/program/speed.md").read_text()
    assert re.search(r"\| \\\*[\d,.]+†? \|", text), "the throughput is marked as reported"
    assert two["launch"]["launcher"] == "srun" and len(set(two["launch"]["hosts"])) == 2
    assert two["metrics"]["throughput_samples_per_s"] * two["metrics"]["step_time_s"] == pytest.approx(4 * 8)


def test_short_runs_of_one_node_share_a_job_that_requests_the_sum_of_their_walltimes(
    slurm: SlurmBox, study: Shown
) -> None:
    made, _ = study()
    bundled = THROUGH.replace("ranks: [1, 2, 4]", "ranks: [1, 2]").replace("epochs: 4", "epochs: 3")
    (made.clone / "config/studies/bundled.yaml").write_text(bundled)
    words = ("results/box/mini/studies/bundled/summary.csv", "--profile", "profiles/slurm", "--config", "machine=box",
             "scale=mini", "--groups", "train=bundle", "--group-components", "bundle=2", "--set-resources",
             "train:runtime=3")  # fmt: skip
    made.must("snakemake", *words, timeout=500)
    assert [(result["reason"], ranks(result)) for result in made.results("bundled")] == [(None, 1), (None, 2)]
    bundle = made.events("submitted")[-1]["name"]
    assert slurm.must(["squeue", "-h", "-t", "all", "-n", bundle, "-o", "%l"]) == "6:00\n"
