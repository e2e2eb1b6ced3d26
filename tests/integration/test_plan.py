"""The plan is the real dry run's, adds up, and needs neither scheduler nor torch."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import pytest

from tests.integration.project import Project, make_project

PBS = ("--profile", "profiles/pbs")
PAPER = ("--config", "scale=paper")
HOURS = ("gpu_hours_reserved", "node_hours_reserved")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose study asks for GPUs at scale `paper`, with nothing run yet."""
    made = make_project(tmp_path_factory.mktemp("planned") / "clone")
    made.forked = True
    made.edit(made.study, "model: small_cnn", "model: resnet50")
    made.edit(made.study, "{source: digits}", "{source: image_folder}")
    made.edit(made.study, "ranks: [1, 2]", "ranks: [1, 8]")
    return made


@pytest.fixture(scope="module")
def planned(project: Project) -> dict[str, Any]:
    """The plan of everything on profiles/pbs as JSON."""
    return plan(project, *PBS, *PAPER)


def plan(project: Project, *arguments: str) -> dict[str, Any]:
    done = project.run("scalestudy", "plan", *arguments, "--json", "plan.json")
    assert done.returncode == 0, done.stdout
    found: dict[str, Any] = json.loads((project.folder / "plan.json").read_text())
    return found


def test_rows_and_jobs_add_up_to_the_total_to_the_last_digit(planned: dict[str, Any]) -> None:
    for parts in (planned["rows"], [job for job in planned["jobs"] if job["submitted"]]):
        for name in HOURS:
            assert sum(Decimal(str(part[name])) for part in parts) == Decimal(str(planned["total"][name]))
    assert planned["total"]["gpu_hours_reserved"] > 0


def test_over_budget_is_an_error_that_shows_the_plan(project: Project) -> None:
    done = project.run("scalestudy", "plan", *PBS, *PAPER, "--budget", "1")
    assert done.returncode == 3
    assert re.search(r"over budget: [\d,]+ GPU hours to request, 1 allowed", done.stdout)
    assert re.findall(r"^(data|tiny) +\d", done.stdout, re.MULTILINE) == ["data", "tiny"]
