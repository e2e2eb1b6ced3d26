"""The executor on a real OpenPBS with two hosts, where one is installed; elsewhere recorded answers are replayed."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.box import USER
from tests.cluster.pbs_box import PbsBox
from tests.cluster.workflow import (
    Driver,
    Shipped,
    Workflow,
    assert_begun_once,
    assert_on_named_nodes,
    assert_requeued_runs_again,
    environment_of,
    message,
)
from tests.integration.tries import made

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
}


@pytest.fixture(scope="module")
def fates(pbs: PbsBox) -> tuple[Workflow, Driver]:
    """A driver, the second of its folder, whose jobs meet all kinds of fates while other tests go on beside it."""
    workflow = Workflow(pbs, "fates", SITE, FATES)
    driver = workflow.start()
    workflow.until(lambda: len(workflow.starts()) == len(FATES) - 1, "all starts", 90)
    driver.kill()
    driver.wait()
    driver = workflow.start()
    workflow.until(lambda: "long: adopted" in driver.log.read_text(), "adoption")
    pbs.stop_server()
    time.sleep(3)
    pbs.start_server()
    pbs.until(["bash", "-c", "pbsnodes -a | grep -c -e down -e unknown"], "0\n")  # until then it deletes nothing
    pbs.must(["qdel", workflow.ids()["deleted"]])
    return workflow, driver


def test_jobs_land_on_the_nodes_that_they_name(pbs: PbsBox, fates: tuple[Workflow, Driver]) -> None:
    assert_on_named_nodes(pbs, SITE, pbs.hosts)


def test_pbsdsh_starts_the_ranks_of_the_other_host(pbs: PbsBox) -> None:
    folder = pbs.home / "launch"
    pbs.must(["mkdir", str(folder)], USER)
    environment = environment_of(pbs)
    program = Path(sys.executable).parent / "scalestudy"
    exports = "".join(f"export {name}={value}\n" for name, value in environment.items())
    script = f"{exports}cd {folder}\n{program} try ranks=4 nodes=2 strategy=allreduce train.epochs=2 --out out\n"
    (pbs.folder / "job.sh").write_text(script)
    submit = ["qsub", "-W", "block=true", "-l", "select=2:ncpus=2:mpiprocs=2", "-l", "place=scatter", "-j", "oe"]
    done = pbs.run([*submit, "-o", "said", str(pbs.folder / "job.sh")], USER, folder, **environment)
    said = pbs.until(["cat", str(folder / "said")], "samples/s")  # PBS brings the output back a little later
    assert made(done.returncode, said), done.stdout + said
    result = json.loads((folder / "out" / "result.json").read_text())
    assert result["launch"]["launcher"] == "pbsdsh"
    assert result["launch"]["hosts"] == list(pbs.hosts)
    assert result["samples_seen"] == 2 * 11 * 128


def test_a_job_that_an_administrator_requeues_runs_again_once_and_succeeds(
    pbs: PbsBox, fates: tuple[Workflow, Driver]
) -> None:
    def requeue(job: str) -> None:
        pbs.must(["qalter", "-r", "y", job])
        pbs.must(["qrerun", job])

    assert_requeued_runs_again(pbs, SITE, requeue)


def test_each_fate_of_a_job_is_seen_and_answered_by_drivers_that_come_and_go(
    pbs: PbsBox, fates: tuple[Workflow, Driver]
) -> None:
    workflow, driver = fates
    workflow.until(lambda: "not been able to run" in driver.log.read_text(), "that a job cannot run", 60)
    ids = workflow.ids()
    pbs.must(["qdel", ids["too_many_nodes"]], USER)  # as the driver's message has it
    code, output = driver.wait(280)
    assert code == 1
    results = {path.parent.name for path in workflow.folder.glob("results/*/result.json")}
    assert results == {"well", "two nodes", "long"}
    assert "the loss is not a number" in message(output, "fails")
    assert "its command failed" in message(output, "crashes")
    assert "the walltime of 1 min was reached (Exit_status -29" in message(output, "deaf")
    assert "cancelled by its owner or an administrator (Exit_status 2" in message(output, "deleted")
    assert "says the scheduler: Q Can Never Run: Not enough total nodes" in output
    assert f"and delete it: qdel {ids['too_many_nodes']}\n" in output
    assert "cancelled by its owner or an administrator (deleted before it ran" in message(output, "too many nodes")
    assert_begun_once(workflow, twice="long", told=("fails", "crashes"))


def test_with_the_profile_as_shipped_a_kill_and_a_ctrl_c_that_reaches_nobody_cost_no_job(pbs: PbsBox) -> None:
    workflow = Shipped(pbs, "shipped", "pbs", {f"run{n}": {"steps": 60, "step_s": 1} for n in range(2)})
    driver = workflow.start()
    workflow.until(lambda: len(workflow.starts()) == 2, "two starts", 90)
    driver.kill()
    assert driver.wait()[0] != 0
    driver = workflow.start()
    workflow.until(lambda: driver.log.read_text().count("adopted as") == 2, "both taken up again")
    pbs.stop_server()
    driver.kill(signal.SIGINT)
    code, output = driver.wait()
    pbs.start_server()
    assert code == 1
    assert "the scheduler did not delete 2 jobs (qdel: " in output
    code, output = workflow.drive()
    assert code == 0, output
    assert workflow.results() == 2
    assert workflow.starts() == {"run0": 1, "run1": 1}
