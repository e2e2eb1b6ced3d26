"""Stop and resume: real processes, real signals, real kills."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from tests.integration import ssh_nodes
from tests.integration.processes import ranks_of, wait_until
from tests.integration.tries import attempt, begin, own_warnings, run, weights

TINY = ("model={name: mlp, hidden: 256, layers: 2}", "train.epochs=2", "optimiser.learning_rate=0.05", "keep=weights")
MODEL_THAT_DRAWS = """\
from torch import nn


class Draws(nn.Sequential):
    # Dropout draws from torch's generator, and BatchNorm keeps statistics of each rank's own.
    def __init__(self, classes, channels):
        convolution, norm = nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8)
        super().__init__(convolution, norm, nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(8 * 36, classes))
"""
DRAWING = (
    "model.import=draws:Draws", "data={source: synthetic, samples: 64, shape: [3, 8, 8]}", "batch={global: 8}",
    "train={epochs: 3, evaluate_every_epochs: 2}", "optimiser.learning_rate=0.05", "keep=weights",
)  # fmt: skip
# A step takes 0.05 s of sleep: long enough to be stopped in, and nothing for the processor to do.
SLOW = (
    "model={name: mlp, hidden: 8, layers: 2}", "train={epochs: 40, evaluate_every_epochs: 0}", "keep=weights",
    "faults=[{kind: slow_rank, rank: 0, seconds: 0.05}]",
)  # fmt: skip


def state(out: Path) -> dict[str, Any]:
    """What a run left for an executor."""
    return dict(json.loads((out / "state.json").read_text()))


def soon(question: Callable[[], Any]) -> Any:
    """The first true answer, which has to come."""
    answer = wait_until(question, 60, poll_s=0.002)
    assert answer, "waited in vain"
    return answer


def checkpoints(out: Path) -> list[Path]:
    """The periodic checkpoints of a run, oldest first."""
    return sorted((out / "checkpoint").glob("step-*"))


def stop(process: subprocess.Popen[str], out: Path) -> None:
    """Stop a run by a signal once it has a checkpoint."""
    soon(lambda: checkpoints(out))
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output


def test_a_run_whose_rank_is_killed_ends_with_the_weights_of_one_never_stopped_and_the_gap_is_in_no_step(
    tmp_path: Path,
) -> None:
    (tmp_path / "config" / "extensions").mkdir(parents=True)
    (tmp_path / "config" / "extensions" / "draws.py").write_text(MODEL_THAT_DRAWS)
    settings = (*DRAWING, "strategy=allreduce", "ranks=2")
    whole = run(tmp_path / "whole", *settings, cwd=tmp_path)
    killed, out = (
        (*settings, "faults=[{kind: killed_rank, rank: 1, at_step: 17}]", "checkpoint.every_steps=7"),
        tmp_path / "killed",
    )
    ended = attempt(out, *killed, cwd=tmp_path)
    assert ended.returncode == 1 and "rank 1 was killed by signal 9" in ended.stdout
    assert state(out)["state"] == "failed" and "killed by signal 9" in state(out)["cause"]
    assert [path.name for path in checkpoints(out)] == ["step-000000007", "step-000000014"]
    time.sleep(1.5)
    found = run(out, *killed, cwd=tmp_path)
    assert weights(out) == weights(tmp_path / "whole")
    assert found["faults"] == {"killed_rank": 1}
    assert found["samples_seen"] == whole["samples_seen"]
    assert [(each["step"], each["accuracy"], each["loss"]) for each in found["evaluations"]] == [
        (each["step"], each["accuracy"], each["loss"]) for each in whole["evaluations"]
    ]
    steps = pd.read_parquet(out / "steps.parquet")
    assert steps["loss"].tolist() == pd.read_parquet(tmp_path / "whole/steps.parquet")["loss"].tolist()
    first, last = found["links"]
    assert (first["steps"], last["steps"]) == (14, 10)
    assert "rank 1 was killed by signal 9" in first["cause"] and last["cause"] == "the run is complete"
    assert [entry["step"] for entry in found["checkpoints"]] == [7, 14, 21]
    assert all(entry["bytes"] > 10_000 and entry["seconds"] > 0 for entry in found["checkpoints"])
    assert 0 < found["metrics"]["checkpoint_share"] < 1
    steps = steps[steps["rank"] == 0]
    assert steps["step"].tolist() == list(range(24))
    assert steps["begin_s"].is_monotonic_increasing and steps["begin_s"].diff().max() < 1.5
    assert found["metrics"]["training_time_s"] < 1.5 + steps["begin_s"].max()
    # Five steps of warm-up, and after resuming another five.
    assert steps.loc[~steps["in_window"], "step"].tolist() == [0, 1, 2, 3, 4, 14, 15, 16, 17, 18]
    assert not (out / "checkpoint").exists()
    assert state(out) == {"state": "finished", "progress": 24, "cause": "the result is written"}


def test_sigkill_while_a_checkpoint_is_written_loses_nothing_but_that_one(tmp_path: Path) -> None:
    # Large enough that writing takes a while.
    settings = (
        "model={name: mlp, hidden: 1500, layers: 4}", "batch.per_rank=64", "train={epochs: 1, evaluate_every_epochs: 0}",
        "keep=weights", "optimiser.learning_rate=0.01",
    )  # fmt: skip
    run(tmp_path / "whole", *settings)
    out, links = tmp_path / "killed", 0
    while not any((out / "checkpoint").glob(".step-*.partial")):
        assert links < 8, "every kill came too late: nothing was tested"
        links += 1
        process = begin(out, *settings, "checkpoint.every_steps=2")
        ranks = soon(lambda: ranks_of(out))
        soon(lambda: any((out / "checkpoint").glob(".step-*.partial")))
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):  # one of the link before, that was about to end
                rank.kill()
        process.communicate(timeout=60)
        assert process.returncode == 1
    found = run(out, *settings, "checkpoint.every_steps=2")
    assert weights(out) == weights(tmp_path / "whole")
    assert len(found["links"]) == links + 1 and own_warnings(found) == []


def test_a_file_and_a_deadline_stop_a_run_with_a_checkpoint_that_says_why(tmp_path: Path) -> None:
    def stopped(cause: str) -> int:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 75, output
        assert not (tmp_path / "result.json").exists()
        said = state(tmp_path)
        assert said["state"] == "checkpointed" and cause in said["cause"]
        assert f"stopped after step {said['progress']}" in output
        return int(said["progress"])

    settings = (*SLOW, "checkpoint.every_steps=5")
    process = begin(tmp_path, *settings)
    soon(lambda: checkpoints(tmp_path))
    (tmp_path / "stop").touch()
    progress = [stopped("the file `stop`")]
    assert not (tmp_path / "stop").exists()
    # Within the margin of any checkpoint, so that the first step is the last.
    near = {"SCALESTUDY_DEADLINE": f"{time.time() + 4}", "PBS_JOBID": "42.server"}
    process = begin(tmp_path, *settings, **near, SCALESTUDY_WARM="0")
    progress.append(stopped("the job ends at"))
    assert progress == sorted(set(progress))
    links = json.loads((tmp_path / "checkpoint" / "links.json").read_text())["links"]
    assert [link["job"] for link in links] == [None, "42.server"]
    assert sum(link["steps"] for link in links) == progress[-1]
    shutil.rmtree(tmp_path)


def test_ranks_at_their_own_pace_stop_after_the_same_step_and_meet_for_checkpoints(tmp_path: Path) -> None:
    paces = "faults=[{kind: slow_rank, rank: 0, seconds: 0.03}, {kind: slow_rank, rank: 1, seconds: 0.05}]"
    settings = (
        TINY[0], "train={epochs: 5, evaluate_every_epochs: 5}", "optimiser.learning_rate=0.01", "ranks=2", paces,
        "strategy=async_parameter_server", "checkpoint.every_steps=100",
    )  # fmt: skip
    stop(begin(tmp_path, *settings), tmp_path)
    found = run(tmp_path, *settings)
    assert [link["cause"] for link in found["links"]] == ["because of signal SIGUSR1", "the run is complete"]
    assert sum(link["steps"] for link in found["links"]) == 110
    assert 100 in [entry["step"] for entry in found["checkpoints"]]
    assert [entry["step"] for entry in found["evaluations"]] == [110]


def test_a_signal_stops_the_ranks_of_all_nodes_and_the_same_command_resumes(tmp_path: Path) -> None:
    settings = (*TINY, "batch={global: 64}", "ranks=2", "nodes=2", "strategy=halving_doubling")
    run(tmp_path / "whole", *settings)
    slow = ("faults=[{kind: slow_rank, rank: 1, seconds: 0.03}]", "checkpoint.every_steps=10")
    (tmp_path / "site.yaml").write_text("hosts: [alpha, beta]\n")
    path = f"{ssh_nodes.programs(tmp_path)}:{os.environ['PATH']}"
    nodes = {"PATH": path, "SCALESTUDY_SITE": str(tmp_path / "site.yaml")}
    stop(begin(tmp_path / "stopped", *settings, *slow, **nodes), tmp_path / "stopped")
    found = run(tmp_path / "stopped", *settings, *slow, **nodes)
    assert [link["cause"] for link in found["links"]] == ["because of signal SIGUSR1", "the run is complete"]
    assert found["launch"]["hosts"] == ["alpha", "beta"]
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")
