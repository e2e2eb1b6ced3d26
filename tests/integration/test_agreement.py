"""How ranks agree to stop: real processes and messages, steps that only sleep."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from scalestudy.spec.run import RunSpec
from scalestudy.strategies.base import World
from scalestudy.training import stopping
from scalestudy.training.agreement import Agreement
from scalestudy.training.job import Job, Resolved

EPOCH = 20


def rank_main(rank: int, folder: Path, lockstep: bool, step_s: tuple[float, float], spec: dict[str, object]) -> None:
    """A training that only sleeps, with an evaluation (a barrier) after each epoch; leaves behind what was done after which step."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "rendezvous"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    workers = dist.group.WORLD
    assert workers is not None
    run = RunSpec.model_validate_json(json.dumps({"ranks": 2, "strategy": "allreduce", **spec}))
    job = Job("r", run, Resolved(1, 2, 1, "cpu", 2, None), Path("m"), folder, Path("e"), None, beside=folder)
    agreement = Agreement(job, World(rank, 2, 0, torch.device("cpu"), 2, workers), lockstep, state_bytes=0)
    agreement.begin(0)
    done, log, last = 0, [], 6 * EPOCH
    while done < last:
        time.sleep(step_s[rank])
        done += 1
        if lockstep:
            dist.barrier()
        evaluation, saving = done % EPOCH == 0, agreement.checkpoint_due(done)
        answer = agreement.after(done, evaluation or (not lockstep and (saving or done == last)), None, 0.0)
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
    (folder / f"{rank}.json").write_text(json.dumps({"done": done, "log": log}))
    dist.destroy_process_group()


def trained(
    folder: Path,
    lockstep: bool,
    step_s: tuple[float, float],
    spec: dict[str, object] | None = None,
    stop_after_s: float | None = None,
) -> list[dict[str, object]]:
    """What both ranks did; a wish to stop comes so long after they began."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "scalestudy.training.agreement"])
    ranks = [context.Process(target=rank_main, args=(rank, folder, lockstep, step_s, spec or {})) for rank in range(2)]
    for process in ranks:
        process.start()
    if stop_after_s is not None:
        deadline = time.monotonic() + 60
        while not (folder / "rendezvous").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(stop_after_s)
        (folder / stopping.REQUEST).write_text("SIGUSR1")
    for process in ranks:
        process.join(100)
        assert process.exitcode == 0
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(
    ("lockstep", "step_s"),
    [(True, (0.02, 0.02)), (False, (0.01, 0.05)), (False, (0.05, 0.01))],
    ids=["in step", "rank 0 faster", "rank 0 slower"],
)
def test_ranks_stop_after_the_same_step(tmp_path: Path, lockstep: bool, step_s: tuple[float, float]) -> None:
    one, other = trained(tmp_path, lockstep, step_s, stop_after_s=1.0)
    assert one == other
    assert one["log"][-1][::2] == ["stop", "because of signal SIGUSR1"]  # type: ignore[index]
    assert 0 < one["done"] < 6 * EPOCH  # type: ignore[operator]


def test_ranks_at_their_own_pace_meet_for_checkpoints_and_evaluations_and_come_to_the_end(tmp_path: Path) -> None:
    one, other = trained(tmp_path, False, (0.001, 0.02), {"checkpoint": {"every_steps": 30}})
    assert one == other
    assert one["done"] == 120
    assert [entry[:2] for entry in one["log"] if entry[0] == "checkpoint"] == [
        ["checkpoint", step] for step in (30, 60, 90, 120)
    ]  # type: ignore[attr-defined]
