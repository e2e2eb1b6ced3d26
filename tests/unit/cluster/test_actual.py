"""What was planned, compared with what was used."""

from __future__ import annotations

from dataclasses import replace

from scalestudy.cluster.ledger.actual import PlannedAndUsed, _plain, _table
from scalestudy.cluster.ledger.used import LedgerAttempt

KNOWN = PlannedAndUsed("s", "a-000000000001", 1, 1, 3600, 360.0, 1080.0, "repeats", 720.0, 1, "result")
UNKNOWN = PlannedAndUsed("s", "b-000000000002", 1, 1, 86400, 0.0, None, "unknown", 7200.0, 1, "job script")


def test_what_was_expected_is_compared_with_what_the_same_runs_used() -> None:
    assert _plain([KNOWN, UNKNOWN])["total"] == {
        "runs": 2,
        "requested": 25.0,
        "low": 0.1,
        "high": 0.3,
        "used": 2.2,
        "runs_expected": 1,
        "used_by_expected": 0.2,
        "expected_over_used": 1.0,
    }


def test_the_table_has_a_column_for_each_thing_and_says_which_runs_are_compared() -> None:
    lines = _table([KNOWN, UNKNOWN]).splitlines()
    assert lines[0].split() == ["study", "requested", "expected", "used", "expected", "from", "used", "from", "run"]
    assert lines[2].split()[-4:] == ["unknown", "job", "script", "b-000000000002"]
    assert lines[3] == (
        "2 runs, in GPU hours: 25.0 requested, 2.2 used. 1 of them had an expected time: 0.1 to 0.3 expected, 0.2 used."
    )


def test_hits_are_counted_by_kind_of_expectation() -> None:
    late = replace(KNOWN, run="c-000000000004", used_s=1081.0)
    flops = replace(KNOWN, run="d-000000000005", kind="flops")
    assert _plain([KNOWN, late, flops, UNKNOWN])["inside_by_kind"] == {
        "repeats": {"runs": 2, "inside": 1},
        "flops": {"runs": 1, "inside": 1},
    }
    assert "Expected from repeats: 1 of 2 runs fell within their P5 to P95 interval" in _table([KNOWN, late])


def test_what_data_and_builds_used_stands_in_a_line_of_its_own() -> None:
    others = [LedgerAttempt("d.1", "digits-000000000003", "7", 4, 1, 900.0, 1, "dataset", 1.0)]
    assert _plain([KNOWN], others)["other_jobs"] == {"jobs": 1, "gpu_hours": 1.0}
    assert _table([KNOWN], others).splitlines()[-1].startswith("1 jobs that train nothing (data, builds) used 1.0 GPU")
