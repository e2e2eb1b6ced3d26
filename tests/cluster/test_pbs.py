"""The executor on a PBS that is already here; where there is none, this is said, and recorded answers are replayed."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.cluster.pbs_here import PbsHere
from tests.cluster.workflow import (
    Workflow,
    assert_begun_once,
    assert_path_refused,
    assert_path_works,
    assert_refused,
    message,
)

# `vscatter` is `scatter` where the virtual nodes of one host stand for nodes.
SITE = {
    "kind": "pbs",
    "request": "-l select={nodes}:ncpus={cpus_per_node}:mpiprocs={ranks_per_node}[:ngpus={gpus_per_node}][:mem={mem_mb}mb]"
    " -l place=vscatter [-l walltime={walltime}]",
}
FATES = {
    "well": {},
    "two nodes": {"nodes": 2, "ranks_per_node": 2, "gpus_per_node": 2},
    "fails": {"what": "fail"},
    "crashes": {"what": "crash"},
    "too many nodes": {"nodes": 99},
    "long": {"steps": 70, "step_s": 1, "runtime": 1},
    "deaf": {"steps": 1000, "step_s": 1, "runtime": 1, "what": "deaf"},
    "deleted": {"steps": 1000, "step_s": 1},
}


def test_each_fate_of_a_job_is_seen_and_answered_by_drivers_that_come_and_go(pbs: PbsHere) -> None:
    workflow = Workflow(pbs, "fates", SITE, FATES)
    driver = workflow.start()
    workflow.until(lambda: len(workflow.starts()) == len(FATES) - 1, "all starts", 90)
    driver.kill()
    driver.wait()
    driver = workflow.start()
    workflow.until(lambda: "long: taken up again" in driver.log.read_text(), "adoption")
    if restart := os.environ.get("SCALESTUDY_PBS_RESTART"):
        subprocess.run(restart, shell=True, check=True, timeout=100)
    ids = {event["name"].split(".")[1]: event["id"] for event in workflow.events("id")}
    pbs.run(["qdel", ids["deleted"]], pbs.user.pw_name)
    code, output = driver.wait(280)

    assert code == 1
    results = {path.parent.name for path in workflow.folder.glob("results/*/result.json")}
    assert results == {"well", "two nodes", "long"}
    assert "the loss is not a number" in message(output, "fails")
    assert "its command failed" in message(output, "crashes")
    assert "the walltime of 1 min was over (Exit_status -29" in message(output, "deaf")
    assert "cancelled by its owner or an administrator (Exit_status 2" in message(output, "deleted")
    assert "the scheduler will never run it (Q Can Never Run: Not enough total nodes" in output
    assert_begun_once(workflow, twice="long", told=("fails", "crashes"))


@pytest.mark.parametrize(
    ("site", "why"),
    [
        ({"kind": "pbs", "queue": "nosuch"}, "qsub: Unknown queue"),
        ({"kind": "pbs", "options": "-l nosuch=1"}, "qsub: Unknown resource"),
    ],
)
def test_a_refused_submission_is_a_failed_job_with_the_schedulers_words(
    pbs: PbsHere, site: dict[str, str], why: str
) -> None:
    assert_refused(pbs, site, why)


def test_a_folder_whose_name_needs_quotes_works(pbs: PbsHere) -> None:
    assert_path_works(pbs, "a b 'c' \"d\" $HOME `e` -x;&", SITE)


@pytest.mark.parametrize("folder", ["a,b", "ü", "line\nbreak"])
def test_a_folder_that_the_scheduler_cannot_name_is_refused(pbs: PbsHere, folder: str) -> None:
    assert_path_refused(pbs, folder, SITE, "PBS cannot take the path")
