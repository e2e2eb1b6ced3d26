"""`campaign: NAME`: the same runs again, beside those that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.cluster.plan.expected import Expectation
from scalestudy.dag.project import Project
from scalestudy.errors import UserError
from scalestudy.results.stored import append_history, write_result
from scalestudy.spec.config import read_config, read_machine
from scalestudy.spec.layout import result_file
from tests.unit.analysis.fake_results import result_of

STUDY = """\
question: How?
base: {data: {source: digits}}
repeats: 2
scales: {mini: {}}
claims:
  - {id: works, statement: It works., source: nobody, place: nowhere, kind: exact, checks: [{column: status, equals: valid}]}
"""


@pytest.fixture
def folder(project: Path) -> Path:
    (project / "config/studies/small.yaml").write_text(STUDY)
    return project


@pytest.mark.parametrize("name", ["Night", "a b", "../a", ""])
def test_a_name_that_cannot_be_a_folders_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(UserError, match="campaign"):
        read_config("config/config.yaml", {"campaign": name})
    with pytest.raises(UserError, match="cannot be the name of a campaign"):
        read_machine(f"local+{name}")


def test_the_plan_learns_from_all_campaigns_of_a_machine(folder: Path) -> None:
    run = Project({}).chosen[0].runs[0]
    result = {**result_of(run), "started": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:00:10+00:00"}
    file = result_file("local+first", run.id)
    write_result(file, result)
    unknown = {**result, "metrics": {**result["metrics"], "throughput_samples_per_s": float("nan")}}
    append_history(file, unknown)
    append_history(file, result)
    for name in ("local", "local+first", "local+second"):
        assert Expectation(name, read_machine(name)).of(run).kind == "repeats"
    (folder / "config/machines/local2.yaml").write_text("description: There\n")
    assert Expectation("local2", read_machine("local2")).of(run).kind != "repeats"
