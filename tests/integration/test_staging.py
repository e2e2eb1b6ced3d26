"""Runs that read their images in different ways, or copy them to the nodes' own disks first, in real processes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.tries import run, weights

PICTURES = (
    "data={source: synthetic_jpeg, samples: 96, width: 96, height: 64, mean_kib: 3, shard: {format: tar, mib: 0.0625}}",
    "strategy=allreduce", "ranks=2", "batch={per_rank: 8}", "train.epochs=3", "optimiser.learning_rate=0.01",
    "keep=weights",
)  # fmt: skip


def site(folder: Path) -> str:
    (folder / "site.yaml").write_text(json.dumps({"scratch": str(folder / "scratch")}))
    return str(folder / "site.yaml")


def test_a_staged_run_trains_to_the_same_weights_and_a_slow_storage_slows_only_the_copying(tmp_path: Path) -> None:
    ways = "workers: 1, kind: processes, mode: memory", "storage: {mib_per_s: 1}"
    read, staged = (f"loader={{augment: crop_flip, size: 32, {way}}}" for way in ways)
    in_place = run(tmp_path / "read", *PICTURES, read)
    found = run(tmp_path / "staged", *PICTURES, staged, "stage.to=scratch", SCALESTUDY_SITE=site(tmp_path))
    assert weights(tmp_path / "read") == weights(tmp_path / "staged")
    assert found["instrument"]["decoder"].startswith(("kernel", "plain"))
    metrics = found["metrics"]
    assert metrics["staged_bytes"] > metrics["dataset_bytes"]  # held-out samples too
    assert metrics["stage_s"] >= 0.9 * metrics["staged_bytes"] / 2**20
    assert metrics["time_to_train_s"] == metrics["training_time_s"] + metrics["stage_s"]
    assert metrics["first_batch_s"] > metrics["stage_s"]
    assert in_place["metrics"]["stage_s"] is None


def test_nodes_with_shards_of_their_own_see_no_others_and_leave_nothing_behind(tmp_path: Path) -> None:
    found = run(
        tmp_path / "run", *PICTURES, "nodes=2", "loader={size: 32, cache: cold, mode: stream}",
        "stage={to: scratch, share: by_shard, reuse: false}", SCALESTUDY_SITE=site(tmp_path),
    )  # fmt: skip
    metrics = found["metrics"]
    assert metrics["dataset_bytes"] < metrics["staged_bytes"] < 2 * metrics["dataset_bytes"]
    assert metrics["expected_read_bytes"] <= metrics["read_bytes"]
    assert metrics["resident_share"] is not None
    assert not [path for path in (tmp_path / "scratch").rglob("*") if path.is_file() and path.suffix != ".lock"]
