"""What was used by project and period, and what is left of it."""

from __future__ import annotations

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from scalestudy.cluster.ledger.left import left_by_asking, left_by_file
from scalestudy.cluster.ledger.show_spent import spent
from scalestudy.cluster.ledger.spent import lines, read_jobs, span_of
from scalestudy.errors import UserError
from scalestudy.spec.accounting import Accounting
from scalestudy.spec.base import parse
from scalestudy.spec.machine import Machine

TODAY = date(2026, 11, 23)
MACHINE = Machine.model_validate(
    {"prices": {"currency": "points", "charge": "0.5 * used_s + 0.1 * requested_s", "factors": {"fast": 2}}}
)


def job(name: str, day: str, used_s: float | None, **more: Any) -> list[dict[str, Any]]:
    """One node of four GPUs and 16 cores for an hour, charged to lab; None: it has not ended."""
    begun = {
        "event": "submitted", "name": name, "time_s": 0, "job": f"train box {name}", "nodes": 1, "gpus": 4, "cpus": 16,
        "runtime_min": 60, "project": "lab", "queue": "gpu", **more,
    }  # fmt: skip
    time_s = datetime.fromisoformat(f"{day}T12:00:00").timestamp()
    end = {"event": "ended", "name": name, "time_s": time_s, "used_s": used_s}
    return [begun] if used_s is None else [begun, end]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jobs of two projects in two quarters, one that runs, one that was never taken."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCALESTUDY_SITE", raising=False)
    file = tmp_path / ".scalestudy" / "jobs.jsonl"
    file.parent.mkdir()
    events = [
        *job("a", "2026-09-30", 1800), *job("b", "2026-10-01", 900), *job("c", "2026-11-02", 900, queue="fast"),
        *job("d", "2026-11-03", 3600, project="other"), *job("e", "2026-11-23", None), *job("f", "2026-11-03", 0),
        *job("g", "2026-11-04", 3600, project=None),
    ]  # fmt: skip
    file.write_text("".join(json.dumps(event) + "\n" for event in events) + '{"event": "submi')
    return file


@pytest.mark.parametrize(
    ("day", "accounting", "span"),
    [
        ("2026-11-23", {}, ("2026 Q4", "2026-10-01", "2026-12-31")),
        ("2026-02-28", {"period": "month"}, ("2026-02", "2026-02-01", "2026-02-28")),
        ("2026-02-10", {"year_begins": 4}, ("FY2025 Q4", "2026-01-01", "2026-03-31")),
        ("2026-04-01", {"year_begins": 4, "period": "half_year"}, ("FY2026 H1", "2026-04-01", "2026-09-30")),
        ("2026-09-30", {"year_begins": 10, "period": "year"}, ("FY2025", "2025-10-01", "2026-09-30")),
        ("2026-01-15", {"year_begins": 11}, ("FY2025 Q1", "2025-11-01", "2026-01-31")),
    ],
)
def test_a_day_lies_in_a_period_of_the_sites_year(day: str, accounting: dict[str, Any], span: tuple[str, ...]) -> None:
    found = span_of(date.fromisoformat(day), Accounting(**accounting))
    assert (found.name, found.first.isoformat(), found.last.isoformat()) == span


def test_what_ended_is_summed_by_project_and_period(ledger: Path) -> None:
    found = {(line.project, line.span.name): line for line in lines(read_jobs(today=TODAY), Accounting(), MACHINE)}
    assert sorted(found) == [
        ("(not recorded)", "2026 Q4"), ("lab", "2026 Q3"), ("lab", "2026 Q4"), ("other", "2026 Q4"),
    ]  # fmt: skip
    line = found["lab", "2026 Q4"]
    assert line.jobs == 2
    assert line.hours == {"gpu_hours": 2.0, "node_hours": 0.5, "cpu_hours": 8.0, "points": 810.0 + 1620.0}


GRANT = {"project": "lab", "amount": 10, "first_day": "2026-10-01", "last_day": "2026-12-31"}


def test_of_a_grant_in_the_site_file_what_was_used_and_may_still_be_used_is_gone(ledger: Path) -> None:
    accounting, problems = parse(Accounting, {"allocations": [GRANT, {**GRANT, "first_day": "2026-12-01"}]})
    assert accounting is not None, problems
    [one] = left_by_file(accounting, read_jobs(today=TODAY), MACHINE, TODAY)
    assert (one.left, one.granted, one.unit, one.until) == (10 - 2 - 4, 10, "GPU h", "2026-12-31")
    assert one.said() == (
        "lab: 4 of 10 GPU h until 2026-12-31 (site file, less the 6 of this folder's jobs; others may have used more)"
    )


def test_a_grant_in_points_is_used_as_the_machine_charges(ledger: Path) -> None:
    accounting, _ = parse(Accounting, {"allocations": [{**GRANT, "amount": 10_000, "unit": "points"}]})
    assert accounting is not None
    [one] = left_by_file(accounting, read_jobs(today=TODAY), MACHINE, TODAY)
    assert one.left == 10_000 - 2430 - 2160


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"allocations": [{**GRANT, "last_day": "31.12.2026"}]}, "`31.12.2026` is not a date"),
        ({"allocations": [{**GRANT, "last_day": "2026-02-30"}]}, "`2026-02-30` is not a date"),
        ({"allocations": [{**GRANT, "last_day": "2026-09-30"}]}, "it ends on 2026-09-30, before it begins"),
        ({"left": {"command": ["q"], "pattern": "left"}}, "`left` has 0 groups"),
        ({"left": {"command": ["q"], "pattern": "("}}, "`(` is not a valid regular expression"),
        ({"period": "week"}, "`week` is not valid here"),
        ({"year_begins": 13}, "must be at most 12, not `13`"),
    ],
)
def test_a_wrong_account_is_refused_with_a_sentence(given: dict[str, Any], sentence: str) -> None:
    value, problems = parse(Accounting, given)
    assert value is None
    assert sentence in problems[0].what


def told(pattern: str, *words: str) -> Accounting:
    """A site with a command of its own."""
    value, problems = parse(Accounting, {"left": {"command": list(words), "pattern": pattern, "unit": "node_hours"}})
    assert value is not None, problems
    return value


def test_the_sites_own_command_tells_what_is_left() -> None:
    [one], nothing = left_by_asking(told(r"^lab .*?([0-9.,]+)$", "echo", "lab has 1,234.5"), MACHINE)
    assert (one.left, one.unit, one.source, nothing) == (1234.5, "node h", "says echo", [])


@pytest.mark.parametrize(
    ("accounting", "sentence"),
    [
        (told("left: (.*)", "echo", "nothing"), "`left: (.*)` is not in what echo prints: nothing"),
        (told("left: (.*)", "echo", "left: much"), "`much` is not a number, in the output of echo"),
        (told("(.*)", "false"), "false ended with status 1"),
        (told("(.*)", "no-such-command-here"), "no-such-command-here: command not found"),
    ],
)
def test_a_command_that_does_not_tell_is_said_and_ends_nothing(accounting: Accounting, sentence: str) -> None:
    found, [said] = left_by_asking(accounting, MACHINE)
    assert found == []
    assert sentence in said


def test_pbs_tells_nothing_and_what_to_write_instead_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.yaml").write_text("scheduler: {kind: pbs, request: '-l select={nodes}'}\n")
    monkeypatch.setenv("SCALESTUDY_SITE", str(tmp_path / "site.yaml"))
    monkeypatch.chdir(tmp_path)
    found, [said] = left_by_asking(Accounting(), MACHINE)
    assert found == []
    assert said == (
        "not known: pbs keeps no account of granted time: name the site's own command as `accounting.left` in "
        "site.yaml, or the grants as `accounting.allocations`"
    )


def test_without_a_scheduler_nobody_knows_what_is_left(ledger: Path) -> None:
    text, data = spent(MACHINE, TODAY)
    assert "Not ended    1 jobs, which may use 4.0000 GPU h, 1.0000 node h, 16.0000 core h, 2,160.0000 points" in text
    assert "Left         not known: the profile names no scheduler" in text
    assert [entry["gpu_hours"] for entry in data["used"]] == [4.0, 2.0, 2.0, 4.0]
    assert data["not_ended"] == {"jobs": 1, "gpu_hours": 4.0, "node_hours": 1.0, "cpu_hours": 16.0, "points": 2160.0}


def test_a_folder_without_jobs_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCALESTUDY_SITE", raising=False)
    with pytest.raises(UserError, match="no job has been submitted from this folder"):
        spent(MACHINE, TODAY)
