"""Runs that read their images in different ways, in real processes."""

from __future__ import annotations

from pathlib import Path

from tests.integration.tries import attempt, completed, result, weights

PICTURES = (
    "data={source: synthetic_jpeg, samples: 96, width: 96, height: 64, mean_kib: 3, shard: {format: tar, mib: 0.0625}}",
    "strategy=allreduce",
    "ranks=2",
    "batch={per_rank: 8}",
    "train.epochs=3",
    "optimiser.learning_rate=0.01",
    "keep=weights",
)
LOADER = "augment: crop_flip, size: 32"


def test_weights_do_not_depend_on_how_pictures_are_read(tmp_path: Path) -> None:
    ways = {
        "threads": "workers: 2",
        "processes": "workers: 1, kind: processes",
        "memory": "mode: memory, storage: {latency_ms: 1}",
    }
    for name, way in ways.items():
        done = attempt(tmp_path / name, *PICTURES, f"loader={{{LOADER}, {way}}}")
        assert completed(done), done.stdout
        found = result(tmp_path / name)
        assert found["instrument"]["decoder"].startswith(("kernel", "plain"))
    assert weights(tmp_path / "threads") == weights(tmp_path / "processes") == weights(tmp_path / "memory")
