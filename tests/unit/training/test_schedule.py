"""Which steps a run makes, and what they are called."""

from __future__ import annotations

import json

from scalestudy.spec.run import RunSpec
from scalestudy.training.report import CheckpointCost, Evaluation, Report, Staging
from scalestudy.training.schedule import Schedule


def spec(**data: object) -> RunSpec:
    """A run from plain data."""
    return RunSpec.model_validate_json(json.dumps(data))


CUT = {"train": {"epochs": 5}, "measure": {"warmup_steps": 2, "steps": 8}}


def test_a_run_ends_with_its_epochs_or_its_measurement_window() -> None:
    assert Schedule(spec(train={"epochs": 5}), 7).planned_steps == 35
    assert Schedule(spec(**CUT), 7).planned_steps == 10
    assert Schedule(spec(**CUT), 1).planned_steps == 5


def test_evaluations_follow_the_epochs_that_the_spec_names() -> None:
    schedule = Schedule(spec(train={"epochs": 5, "evaluate_every_epochs": 2}), 3)
    assert [done for done in range(16) if schedule.evaluates_after(done)] == [6, 12]
    never = Schedule(spec(train={"epochs": 5, "evaluate_every_epochs": 0}), 3)
    assert [done for done in range(16) if never.evaluates_after(done)] == []


def test_a_report_is_read_as_it_was_written_and_keys_of_other_versions_are_left_out() -> None:
    report = Report(
        3,
        window=(2, 9),
        left_out=[(4, 6)],
        evaluations=[Evaluation(1, 7, 0.5, 0.1, accuracy=0.75)],
        checkpoints=[CheckpointCost(7, 0.5, 100, False, "every 7 steps")],
        stage=Staging(0, 1.5, 10, 20, 2, "/data", "all"),
    )
    plain = json.loads(json.dumps({**report.plain(), "of_another_version": None}))
    assert Report.from_plain(plain) == report
