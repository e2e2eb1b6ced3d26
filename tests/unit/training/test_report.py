"""What a rank reports."""

from __future__ import annotations

import json

from scalestudy.training.report import CheckpointCost, Evaluation, Report, Staging


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
