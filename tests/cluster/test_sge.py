"""The executor on a real Grid Engine with two hosts, driven by an ordinary user."""

from __future__ import annotations

import time

import pytest

from tests.cluster.box import USER
from tests.cluster.sge_box import SgeBox
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

SITE = {"kind": "sge"}
BOTH_HOSTS = {"kind": "sge", "request": "-pe two {ranks} [-l gpu={gpus_per_rank}] [-l h_rt={runtime_s}]"}
FATES = {
    "four gpus": {"ranks_per_node": 4, "gpus_per_node": 4},
    "fails": {"what": "fail"},
    "crashes": {"what": "crash"},
    "long": {"steps": 70, "step_s": 1, "runtime": 1},
    "deaf": {"steps": 1000, "step_s": 1, "runtime": 1, "what": "deaf"},
    "deleted": {"steps": 1000, "step_s": 1},
    "script killed": {"steps": 1000, "step_s": 1},
    "requeued": {"steps": 1000, "step_s": 1, "what": "again"},
}
SWEEP = "sweep_of_mine"


@pytest.fixture(scope="module")
def fates(sge: SgeBox) -> tuple[Workflow, Driver]:
    """Return the second driver of a folder whose name needs quotes; other tests go on while its jobs end in all ways."""
    workflow = Workflow(sge, "a b 'c' \"d\" `e` ü -x;&", SITE, FATES)
    driver = second_driver(workflow, starts=len(FATES))
    sge.stop_master()
    time.sleep(3)
    sge.start_master()
    ids = workflow.ids()
    sge.must(["qdel", ids["deleted"]])
    sge.kill_job_script(ids["script_killed"])
    sge.must(["qalter", "-r", "y", ids["requeued"]])
    sge.must(["qmod", "-rj", ids["requeued"]])
    return workflow, driver


def test_jobs_beyond_the_users_limit_wait_until_others_have_ended(sge: SgeBox) -> None:
    assert_waits_for_room(sge, SITE, sge.limit_jobs_per_user, "qsub: Unable to run job: job rejected: only ")


def test_jobs_land_on_the_nodes_that_they_name_and_one_job_on_two_where_it_names_none(
    sge: SgeBox, fates: tuple[Workflow, Driver]
) -> None:
    assert_on_named_nodes(sge, BOTH_HOSTS, ("sgehead", "sgetail"))


def test_qrsh_starts_the_ranks_of_the_other_host(sge: SgeBox) -> None:
    submit = ["qsub", "-sync", "y", "-pe", "two", "4", "-j", "y", "-S", "/bin/bash"]
    launch = assert_trains_on_two_hosts(sge, submit)
    assert launch["launcher"] == "qrsh"
    assert sorted(launch["hosts"]) == ["sgehead", "sgetail"]  # which comes first is the scheduler's choice


def test_each_fate_of_a_job_is_seen_and_answered_by_drivers_that_come_and_go(fates: tuple[Workflow, Driver]) -> None:
    workflow, driver = fates
    code, output = driver.wait(280)
    assert code == 1
    assert_fates(workflow, output, {"four gpus", "long", "requeued"})
    assert "the walltime of 1 min was reached (failed 37" in message(output, "deaf")
    # Grid Engine records a deletion as any death by signal 9; no other cause is guessed.
    for name in ("deleted", "script killed"):
        assert "killed by signal 9, cause unknown (failed 100 : assumedly after job" in message(output, name)


def test_with_the_profile_as_shipped_a_kill_and_a_ctrl_c_that_reaches_nobody_cost_no_job(sge: SgeBox) -> None:
    sge.must(["qsub", "-h", "-t", "1-3", "-N", SWEEP, "-b", "y", "-o", "/dev/null", "-j", "y", "sleep", "100"], USER)
    assert_a_kill_and_a_ctrl_c_cost_no_job(sge, "sge", sge.stop_master, sge.start_master)
    assert f" {SWEEP[:10]} " in sge.must(["qstat", "-u", USER])
