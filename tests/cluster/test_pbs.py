"""The executor on a real OpenPBS with two hosts, where one is installed; elsewhere recorded answers are replayed."""

from __future__ import annotations

import time

import pytest

from tests.cluster.box import USER
from tests.cluster.pbs_box import PbsBox
from tests.cluster.workflow import (
    Driver,
    Workflow,
    assert_a_kill_and_a_ctrl_c_cost_no_job,
    assert_fates,
    assert_on_named_nodes,
    assert_trains_on_two_hosts,
    assert_waits_for_room,
    message,
    second_driver,
)

SITE = {"kind": "pbs"}
FATES = {
    "well": {},
    "two nodes": {"nodes": 2, "ranks_per_node": 2, "gpus_per_node": 2},
    "fails": {"what": "fail"},
    "crashes": {"what": "crash"},
    "too many nodes": {"nodes": 99},
    "long": {"steps": 70, "step_s": 1, "runtime": 1},
    "deaf": {"steps": 1000, "step_s": 1, "runtime": 1, "what": "deaf"},
    "deleted": {"steps": 1000, "step_s": 1},
    "requeued": {"steps": 1000, "step_s": 1, "what": "again"},
}


@pytest.fixture(scope="module")
def fates(pbs: PbsBox) -> tuple[Workflow, Driver]:
    """Return the second driver of a folder whose name needs quotes; other tests go on while its jobs end in all ways."""
    workflow = Workflow(pbs, "a b 'c' \"d\" $HOME `e` -x;&", SITE, FATES)
    driver = second_driver(workflow, starts=len(FATES) - 1)
    pbs.stop_server()
    time.sleep(3)
    pbs.start_server()
    pbs.until(["bash", "-c", "pbsnodes -a | grep -c -e down -e unknown"], "0\n")  # until then it deletes nothing
    ids = workflow.ids()
    pbs.must(["qdel", ids["deleted"]])
    pbs.must(["qalter", "-r", "y", ids["requeued"]])
    pbs.must(["qrerun", ids["requeued"]])
    return workflow, driver


def test_jobs_beyond_the_users_limit_wait_until_others_have_ended(pbs: PbsBox) -> None:
    assert_waits_for_room(pbs, SITE, pbs.limit_queued_jobs_per_user, "qsub: would exceed ")


def test_jobs_land_on_the_nodes_that_they_name(pbs: PbsBox, fates: tuple[Workflow, Driver]) -> None:
    assert_on_named_nodes(pbs, SITE, pbs.hosts)


def test_pbsdsh_starts_the_ranks_of_the_other_host(pbs: PbsBox) -> None:
    submit = ["qsub", "-W", "block=true", "-l", "select=2:ncpus=2:mpiprocs=2", "-l", "place=scatter", "-j", "oe"]
    launch = assert_trains_on_two_hosts(pbs, submit)
    assert (launch["launcher"], launch["hosts"]) == ("pbsdsh", list(pbs.hosts))


def test_each_fate_of_a_job_is_seen_and_answered_by_drivers_that_come_and_go(
    pbs: PbsBox, fates: tuple[Workflow, Driver]
) -> None:
    workflow, driver = fates
    workflow.until(lambda: "cannot run as things are" in driver.log.read_text(), "that a job cannot run", 60)
    ids = workflow.ids()
    pbs.must(["qdel", ids["too_many_nodes"]], USER)
    code, output = driver.wait(280)
    assert code == 1
    assert_fates(workflow, output, {"well", "two nodes", "long", "requeued"})
    assert "the walltime of 1 min was reached (Exit_status -29" in message(output, "deaf")
    assert "cancelled by its owner or an administrator (Exit_status 2" in message(output, "deleted")
    assert "says the scheduler: Q Can Never Run: Not enough total nodes" in output
    assert "cancelled by its owner or an administrator (deleted before it ran" in message(output, "too many nodes")


def test_with_the_profile_as_shipped_a_kill_and_a_ctrl_c_that_reaches_nobody_cost_no_job(pbs: PbsBox) -> None:
    assert_a_kill_and_a_ctrl_c_cost_no_job(pbs, "pbs", pbs.stop_server, pbs.start_server)


def test_a_server_that_keeps_no_history_as_it_is_installed_loses_no_job_and_runs_none_twice(pbs: PbsBox) -> None:
    runs = {name: FATES[name] for name in ("well", "two nodes", "fails", "crashes", "long", "deleted")}
    workflow = Workflow(pbs, "forgetful", SITE, runs)
    pbs.qmgr("set server job_history_enable = False")
    try:
        driver = second_driver(workflow, starts=len(runs))
        pbs.must(["qdel", workflow.ids()["deleted"]])
        code, output = driver.wait(280)
    finally:
        pbs.qmgr("set server job_history_enable = True")
    assert code == 1
    assert_fates(workflow, output, {"well", "two nodes", "long"})
    assert "deleted by somebody, or preempted; it has saved, and the same command resumes it" in message(
        output, "deleted"
    )
