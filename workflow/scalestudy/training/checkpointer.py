"""Writes the checkpoints of a run, and puts a rank into the state of one; checkpoint.py has their format."""

from __future__ import annotations

import time

import torch

from scalestudy.measure.instrument import code_digest
from scalestudy.spec.layout import CHECKPOINTS
from scalestudy.training import checkpoint, control_files
from scalestudy.training.agreement import Agreement
from scalestudy.training.faults import Faults
from scalestudy.training.recorder import Recorder
from scalestudy.training.replica import Replica
from scalestudy.training.report import CheckpointCost, Report
from scalestudy.training.world import barrier


class Checkpointer:
    """The checkpoints of one rank."""

    def __init__(self, replica: Replica, recorder: Recorder, agreement: Agreement) -> None:
        self.job, self.spec, self.world = replica.job, replica.spec, replica.world
        self.replica, self.recorder, self.agreement = replica, recorder, agreement

    def resume(self, faults: Faults) -> None:
        """Bring replica and recorder to where they were after the last step that the checkpoint holds, if there is one."""
        path = self.job.resume
        if path is None:
            return
        facts = checkpoint.read_facts(path)
        self.replica.strategy.load_state(checkpoint.read_state(path))
        if self.world.is_server:
            self.recorder.report.steps_done = facts["step"]
        else:
            own, earlier = checkpoint.read_rank(path, self.world.rank), facts["reports"][self.world.rank]
            checkpoint.set_random_states(own)
            if (scaler := self.replica.strategy.scaler) is not None:
                scale, tracker = own["loss_scale"].tolist()
                scaler.load_state_dict({**scaler.state_dict(), "scale": scale, "_growth_tracker": int(tracker)})
            faults.fired = self.recorder.restore(Report.from_plain(earlier), own, checkpoint.read_cost(path))

    def save(self, done: int, cause: str, stop: bool = False) -> None:
        """Write a checkpoint after `done` steps, all ranks together, with the report as it is; record its cost."""
        begin, folder = time.perf_counter(), self.job.run_folder / CHECKPOINTS
        marks, losses = self.recorder.timer.seconds().copy(), self.recorder.all_losses()
        tensors = {"marks": torch.from_numpy(marks), "losses": torch.from_numpy(losses), **checkpoint.random_states()}
        strategy, report = self.replica.strategy, self.recorder.report.to_dict()
        if (scaler := strategy.scaler) is not None:
            scale = scaler.state_dict()
            tensors["loss_scale"] = torch.tensor([scale["scale"], scale["_growth_tracker"]], dtype=torch.float64)
        facts = {"run": self.job.run, "code": code_digest()}
        state, rank = strategy.state(), self.world.rank
        size = checkpoint.write(folder, done, rank, tensors, state, report, facts, strategy.gather)
        barrier(self.world)
        cost = CheckpointCost(done, time.perf_counter() - begin, size, stop, cause)
        self.recorder.report.checkpoints.append(cost)
        self.recorder.report.pauses.append(done)
        if self.world.rank == 0:
            checkpoint.write_cost(folder, cost)
            control_files.write_state(self.job.run_folder, "running", done, f"saved after step {done}, {cause}")
        self.agreement.written(cost.seconds)

    def time_a_checkpoint(self) -> None:
        """Write one to time it, where a run that is cut short has checkpoints to extrapolate and none was due yet."""
        has_checkpoints = self.spec.checkpoint.every_steps is not None
        if has_checkpoints and not self.spec.runs_full_training and not self.recorder.report.checkpoints:
            self.save(self.recorder.report.steps_done, "to time it")
