"""The most storage that a plan needs at one time."""

from __future__ import annotations

from scalestudy.cluster.plan.storage import Peak, Stored, of_run, peak
from scalestudy.spec.base import parse
from scalestudy.spec.run import RunSpec

ONE = Stored(written_bytes=10, files=2, temporary_bytes=100, temporary_files=6, node_bytes=5)


def spec(**more: object) -> RunSpec:
    """ResNet-50 on 1,000 made images of 100 KiB."""
    plain = {
        "model": {"name": "resnet50"}, "strategy": {"name": "allreduce"}, "batch": {"per_rank": 10}, "train": {"epochs": 2, "evaluate_every_epochs": 0}, "ranks": 2,
        "data": {"source": "synthetic_jpeg", "samples": 1000, "mean_kib": 100}, **more,
    }  # fmt: skip
    value, problems = parse(RunSpec, plain)
    assert value is not None, problems
    return value


def test_jobs_that_run_side_by_side_have_their_temporary_files_together() -> None:
    assert peak([(ONE, 0, 10), (ONE, 5, 20), (ONE, 20, 30)]) == Peak(30 + 200, 6 + 12, 5)


def test_jobs_one_after_the_other_never_have_them_together() -> None:
    assert peak([(ONE, 0, 10), (ONE, 10, 20)]) == Peak(20 + 100, 4 + 6, 5)
    assert peak([]) == Peak(0, 0, 0)


def test_a_run_keeps_two_checkpoints_while_it_writes_a_third_and_a_chain_leaves_one() -> None:
    alone, chain = of_run(spec(), 1, 1), of_run(spec(), 1, 3)
    parameters = 25_557_032
    assert alone.temporary_bytes == 3 * 8 * parameters
    assert chain.written_bytes - alone.written_bytes == 8 * parameters
    assert chain.temporary_bytes == 2 * 8 * parameters


def test_copies_on_a_nodes_own_disk_are_counted_once_per_node_and_in_shards_once_in_all() -> None:
    whole = 1000 * 100 * 1024
    assert of_run(spec(), 2, 1).node_bytes == 0
    assert of_run(spec(stage={"to": "scratch"}), 2, 1).node_bytes == whole
    assert of_run(spec(stage={"to": "scratch", "share": "by_shard"}), 2, 1).node_bytes == whole // 2
