"""Runs that read their images in different ways, in real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

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
        assert found["metrics"]["batch_readiness"] is not None
        assert found["instrument"]["decoder"].startswith(("kernel", "plain"))
        assert (found["emulated_storage"] is not None) == (name == "memory")
    assert weights(tmp_path / "threads") == weights(tmp_path / "processes") == weights(tmp_path / "memory")


def test_a_streamed_run_sees_every_sample_and_says_how_ready_its_stream_was(tmp_path: Path) -> None:
    done = attempt(tmp_path, *PICTURES, f"loader={{{LOADER}, mode: stream, shuffle_buffer: 20, last_batch: pad}}")
    assert completed(done), done.stdout
    found = result(tmp_path)
    assert found["samples_seen"] == 288
    assert 0 < found["metrics"]["stream_readiness"] <= 1


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ("mode: database", "`database` cannot read `synthetic_jpeg` in this form"),
        ("mode: stream, kind: processes", "threads of the rank read a stream"),
        ("storage: {}", "neither a rate nor a latency"),
    ],
)
def test_what_cannot_be_read_is_reported_before_the_run(tmp_path: Path, loader: str, said: str) -> None:
    done = attempt(tmp_path, *PICTURES, f"loader={{{loader}}}")
    assert done.returncode != 0 and said in done.stdout
    assert not (tmp_path / "result.json").exists()
