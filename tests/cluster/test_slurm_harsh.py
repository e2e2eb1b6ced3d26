"""What goes wrong at sites, on a real Slurm, through profiles/slurm as it is shipped.

This Slurm forgets a job two seconds after its end. A node is in maintenance and jobs on all nodes cannot start, a disk is
full for a while, users may have few jobs, and the queue has other jobs of the same user. One driver waits for the end of
the maintenance while the other tests go on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.box import USER, Unavailable
from tests.cluster.slurm_box import HarshSlurmBox
from tests.cluster.workflow import Driver, Shipped, environment_of
from tests.integration.tries import made

SWEEP = "my sweep | of mine"


@pytest.fixture(scope="module")
def mpi(harsh_slurm: HarshSlurmBox) -> Iterator[Callable[[], tuple[int, str, Path]]]:
    """A training that mpirun starts on both nodes of a batch job, while other tests run; a call waits for its end."""
    box, folder = harsh_slurm, harsh_slurm.home / "mpi"
    box.connect_nodes()
    box.must(["mkdir", str(folder)], USER)
    words = "ranks=2 nodes=2 strategy=mpi_allreduce train.epochs=1 --out out"
    (box.folder / "mpi.sh").write_text(f"#!/bin/bash\nexec {Path(sys.executable).parent}/scalestudy try {words}\n")
    submit = ["sbatch", "--wait", "-N", "2", "--ntasks-per-node=1", "--mem=2000", "-o", "said"]
    # The nodes are one host under one name, so that shared memory of one would be taken for that of the other.
    environment = {**environment_of(box), "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp"}
    command = box.command([*submit, str(box.folder / "mpi.sh")], USER, folder, **environment)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        yield lambda: (process.wait(150), (folder / "said").read_text(), folder / "out" / "result.json")
        process.kill()


@pytest.fixture(scope="module")
def maintenance(harsh_slurm: HarshSlurmBox) -> tuple[Shipped, Driver]:
    """A driver whose two jobs want all nodes, of which one is in maintenance."""
    box = harsh_slurm
    sweep = ["--array=0-2", "--begin=now+2hours", "-J", SWEEP, "-o", "/dev/null", "--wrap", "true"]
    box.must(["sbatch", *sweep], USER)
    times = ["starttime=now", "duration=120", "users=root", "flags=maint,ignore_jobs"]
    box.must(["scontrol", "create", "reservation", "reservationname=service", *times, "nodes=node8"])
    box.must(["scontrol", "update", "partitionname=gpu", "maxnodes=7"])
    workflow = Shipped(box, "maintenance", "slurm", {"waits": {"nodes": 8}, "deleted": {"nodes": 8}})
    return workflow, workflow.start("--latency-wait", "10", "--seconds-between-status-checks", "2")


def in_queue(box: HarshSlurmBox, name: str) -> list[str]:
    """States of the user's own jobs of a name."""
    return box.must(["squeue", "-h", "-r", "-n", name, "-o", "%T"]).split()


def test_a_disk_that_is_full_for_a_while_loses_no_job_and_runs_none_twice(
    harsh_slurm: HarshSlurmBox, maintenance: tuple[Shipped, Driver], mpi: object
) -> None:
    """The driver's records lie on a small disk of their own, a stand-in for a quota: full from the first start on."""
    box = harsh_slurm
    workflow = Shipped(box, "full", "slurm", {f"run{n}": {"steps": 6, "step_s": 1} for n in range(3)})
    box.must(["mkdir", str(workflow.records)], USER)
    owner, filler = box.home.stat(), workflow.records / "filler"
    box.must(["mount", "-t", "tmpfs", "-o", f"size=1m,uid={owner.st_uid},mode=755", "tmpfs", str(workflow.records)])
    workflow.records = Path(f"/proc/{box.init}/root{workflow.records}")
    driver = workflow.start("--max-jobs-per-timespan", "1/10s")  # the last one when the disk is full
    workflow.until(workflow.starts, "a start", 60)
    box.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4k"])  # until it is full
    workflow.until(lambda: "trying again" in driver.log.read_text(), "what it says of the disk", 60)
    time.sleep(8)  # jobs end meanwhile
    box.must(["rm", str(filler)])
    code, output = driver.wait()
    assert code == 0, output
    assert "No space left on device" in output
    assert "trying again" in output
    assert workflow.results() == 3
    assert set(workflow.starts().values()) == {1}
    assert len(workflow.ids()) == len(workflow.events("submitted")) == 3


def test_mpirun_finds_its_ranks_in_a_batch_job_of_two_nodes(mpi: Callable[[], tuple[int, str, Path]]) -> None:
    status, said, file = mpi()
    assert made(status, said), said
    result = json.loads(file.read_text())
    assert result["launch"]["launcher"] == "mpirun"
    assert len(set(result["launch"]["hosts"])) == 2
    assert result["samples_seen"] == 11 * 128


def test_jobs_that_cannot_start_now_wait_and_one_that_its_owner_deleted_is_not_submitted_again(
    harsh_slurm: HarshSlurmBox, maintenance: tuple[Shipped, Driver]
) -> None:
    """One is renamed, as a hook of a site does, and the other deleted."""
    box, (workflow, driver) = harsh_slurm, maintenance
    workflow.until(lambda: len(workflow.ids()) == 2, "two submissions", 60)
    ids = workflow.ids()
    box.until(["bash", "-c", f"squeue -h -j {','.join(ids.values())} -o '%T %r' | grep -c 'PENDING Partition'"], "2")
    box.must(["scontrol", "update", f"jobid={ids['waits']}", "jobname=renamed by a hook of the site"], USER)
    box.must(["scancel", ids["deleted"]], USER)
    workflow.until(lambda: "FAILED train" in driver.log.read_text(), "that one was deleted", 60)
    assert harsh_slurm.must(["squeue", "-h", "-j", workflow.ids()["waits"], "-o", "%T %r"]).startswith("PENDING Part")
    harsh_slurm.must(["scontrol", "delete", "reservationname=service"])
    harsh_slurm.must(["scontrol", "update", "partitionname=gpu", "maxnodes=unlimited"])
    code, output = driver.wait()
    assert code == 1
    assert "cannot run as things are" in output
    assert "Traceback" not in output
    assert workflow.starts() == {"waits": 1}
    assert workflow.results() == 1
    submitted = [event["job"] for event in workflow.events("submitted")]
    assert sorted(submitted) == ["train deleted", "train waits"]
    assert in_queue(harsh_slurm, SWEEP) == ["PENDING"] * 3


def test_jobs_beyond_the_limit_of_a_quality_of_service_wait_and_all_run(harsh_slurm: HarshSlurmBox) -> None:
    box = harsh_slurm
    box.must(["scancel", "-n", SWEEP])  # it would count
    try:
        box.start_accounting(jobs_per_user=2)
    except Unavailable as why:
        pytest.skip(str(why))
    workflow = Shipped(box, "limited", "slurm", {f"run{n}": {"steps": 1, "step_s": 1} for n in range(3)})
    code, output = workflow.drive()
    assert code == 0, output
    assert workflow.results() == 3
    assert set(workflow.starts().values()) == {1}
    waits = "the scheduler takes no more jobs for now (sbatch: error: QOSMaxSubmitJobPerUserLimit"
    assert output.count(waits) == 1
