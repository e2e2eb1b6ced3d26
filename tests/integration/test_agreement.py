"""How ranks agree to stop: real processes and messages, steps that only sleep."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from scalestudy.spec.run import RunSpec
from scalestudy.strategies.base import World
from scalestudy.training import control_files
from scalestudy.training.agreement import Agreement
from scalestudy.training.job import Job, Resolved
from tests.integration.forked import on_processes
from tests.integration.processes import wait_until

EPOCH = 20


def rank_main(
    rank: int, folder: Path, synchronous: bool, step_s: tuple[float, float], spec: dict[str, object]
) -> dict[str, Any]:
    """A training that only sleeps, with an evaluation (a barrier) after each epoch: what was done after which step."""
    store = dist.FileStore(str(folder / "rendezvous"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    workers = dist.group.WORLD
    assert workers is not None
    run = RunSpec.model_validate_json(json.dumps({"ranks": 2, "strategy": "allreduce", **spec}))
    job = Job("r", run, Resolved(1, 2, 1, "cpu", 2, None), Path("m"), folder, Path("e"), run_folder=folder)
    agreement = Agreement(job, World(rank, 2, 0, torch.device("cpu"), 2, workers), synchronous, state_bytes=0)
    agreement.begin(0)
    done, log, last = 0, [], int(run.train.epochs) * EPOCH
    while done < last:
        time.sleep(step_s[rank])
        done += 1
        if synchronous:
            dist.barrier()
        evaluation, saving = done % EPOCH == 0, agreement.checkpoint_due(done)
        answer = agreement.after(done, evaluation or (not synchronous and (saving or done == last)), lambda: False, 0.0)
        if answer is not None and answer.stop:
            log.append(("stop", done, answer.stop))
            break
        if evaluation:
            dist.barrier()
            log.append(("evaluation", done, ""))
        if saving or (answer is not None and answer.checkpoint):
            dist.barrier()
            agreement.written(0.0)
            log.append(("checkpoint", done, ""))
    dist.destroy_process_group()
    return {"done": done, "log": log}


def trained(
    folder: Path,
    synchronous: bool,
    step_s: tuple[float, float],
    spec: dict[str, object],
    stop_after_s: float | None = None,
) -> list[dict[str, Any]]:
    """What both ranks did; a wish to stop comes so long after they began."""

    def ask_to_stop() -> None:
        if stop_after_s is not None:
            assert wait_until((folder / "rendezvous").exists, 60)
            time.sleep(stop_after_s)
            (folder / control_files.REQUEST).write_text("SIGUSR1")

    return on_processes(2, folder, rank_main, folder, synchronous, step_s, spec, meanwhile=ask_to_stop)


@pytest.mark.parametrize(
    ("synchronous", "step_s"),
    [(True, (0.02, 0.02)), (False, (0.01, 0.05))],
    ids=["synchronous", "rank 0 faster"],
)
def test_ranks_stop_after_the_same_step(tmp_path: Path, synchronous: bool, step_s: tuple[float, float]) -> None:
    one, other = trained(tmp_path, synchronous, step_s, {"train": {"epochs": 1000}}, stop_after_s=1.0)
    assert one == other
    assert one["log"][-1][::2] == ("stop", "because of signal SIGUSR1")


def test_ranks_at_their_own_pace_meet_for_checkpoints_and_evaluations_and_come_to_the_end(tmp_path: Path) -> None:
    spec = {"train": {"epochs": 6}, "checkpoint": {"every_steps": 30}}
    one, other = trained(tmp_path, False, (0.001, 0.02), spec)
    assert one == other
    assert one["done"] == 120
    assert [entry[:2] for entry in one["log"] if entry[0] == "checkpoint"] == [
        ("checkpoint", step) for step in (30, 60, 90, 120)
    ]
