"""Runs that share the nodes of one job: each has its own, and gives them back however it ends."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from scalestudy.errors import UserError
from scalestudy.launch.allocation import Allocation, where_to_run
from scalestudy.launch.leases import Lease, leased
from scalestudy.spec.config import Site
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec

FOUR = Site(hosts=("a", "b", "c", "d"), pilot=True)
NODES = Machine(devices_per_node=1, device="cpu")


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The locks of these tests alone."""
    monkeypatch.setenv("SCALESTUDY_LOCKS", str(tmp_path))
    for name in ("SLURM_JOB_NODELIST", "PBS_NODEFILE", "PE_HOSTFILE", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(nodes: int = 1, **data: object) -> RunSpec:
    """A run of a rank on each of its nodes."""
    return RunSpec.model_validate_json(json.dumps({"strategy": "allreduce", "ranks": nodes, **data}))


def take(held: ExitStack, spec: RunSpec, site: Site = FOUR, environment: Mapping[str, str] | None = None) -> Lease:
    return held.enter_context(leased("run r", spec, NODES, site, {} if environment is None else environment))


def test_without_a_pilot_a_run_has_all_that_its_job_has() -> None:
    with ExitStack() as held:
        assert [take(held, run(), Site(hosts=("a", "b"))) for _ in range(2)] == [Lease(), Lease()]


def test_runs_get_nodes_of_their_own_and_the_drivers_node_is_not_among_them() -> None:
    with ExitStack() as held:
        assert take(held, run()) == Lease(("b",), here=False)
        assert take(held, run(2)) == Lease(("c", "d"), here=False)


def test_a_run_that_needs_all_nodes_gets_the_drivers_too() -> None:
    with ExitStack() as held:
        lease = take(held, run(4))
    assert (set(lease.hosts or ()), lease.here) == ({"a", "b", "c", "d"}, True)


def test_a_run_that_names_its_nodes_gets_these() -> None:
    with ExitStack() as held:
        assert take(held, run(2, hosts=["a", "c"])) == Lease(("a", "c"), here=True)
        assert take(held, run()) == Lease(("b",), here=False)
        assert take(held, run(hosts="d.site.org")) == Lease(("d",), here=False)


def test_what_can_only_be_on_this_machine_is_on_the_drivers_node() -> None:
    for spec in (run(2, network={"mib_per_s": 10}), run(hosts="localhost"), run(launch={"launcher": "local"})):
        with ExitStack() as held:
            lease = take(held, spec)
            assert lease == Lease(("a",), here=True)
        assert where_to_run(spec, 1, FOUR, {}, leased=lease.hosts) == Allocation((platform.node(),), "local")


def test_a_run_for_which_no_node_is_free_waits_until_one_is() -> None:
    got: list[Lease] = []

    def wait() -> None:
        with ExitStack() as held:
            got.append(take(held, run()))

    with ExitStack() as held:
        take(held, run(2))
        with ExitStack() as soon:
            take(soon, run())
            waiting = threading.Thread(target=wait)
            waiting.start()
            waiting.join(0.7)
            assert waiting.is_alive() and got == []
        waiting.join(10)
    assert got == [Lease(("d",), here=False)]


def test_nodes_of_a_process_that_was_killed_are_free() -> None:
    holder = (
        "import time\n"
        "from tests.unit.launch.test_leases import ExitStack, run, take\n"
        "with ExitStack() as held:\n"
        "    take(held, run(4)); print('held', flush=True); time.sleep(60)\n"
    )
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdout=subprocess.PIPE, cwd=root, env=dict(os.environ)
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    with ExitStack() as held:
        assert len(take(held, run(4)).hosts or ()) == 4


def test_a_run_with_too_few_nodes_holds_the_drivers_node_until_that_is_said() -> None:
    with ExitStack() as held:
        lease = take(held, run(5))
    assert lease == Lease(None, here=True)
    with pytest.raises(UserError, match="the run needs 5 nodes, the job has 4: a, b, c, d"):
        where_to_run(run(5), 5, FOUR, {}, leased=lease.hosts)


def take_and_give_back(site: Site) -> None:
    with ExitStack() as held:
        take(held, run(), site)


def test_on_one_node_one_run_goes_on_at_a_time() -> None:
    alone = Site(pilot=True)
    with ExitStack() as held:
        assert take(held, run(), alone) == Lease(None, here=True)
        waiting = threading.Thread(target=take_and_give_back, args=(alone,))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
    waiting.join(10)
    assert not waiting.is_alive()


def test_two_jobs_on_one_machine_have_locks_of_their_own(locks: Path) -> None:
    with ExitStack() as held:
        for job in ("7", "8.server/x"):
            take(held, run(3), FOUR, {"PBS_JOBID": job})
    names = {path.name for path in locks.iterdir()}
    assert names == {f"scalestudy-{os.getuid()}-nodes-7", f"scalestudy-{os.getuid()}-nodes-8.server_x"}


def test_leased_nodes_are_reached_by_the_jobs_launcher() -> None:
    assert where_to_run(run(2), 2, FOUR, {}, leased=("d", "b")) == Allocation(("b", "d"), "ssh", away=True)
    assert where_to_run(run(), 1, FOUR, {}, leased=("a",)) == Allocation((platform.node(),), "local")
