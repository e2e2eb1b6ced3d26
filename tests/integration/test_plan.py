"""The plan is the real dry run's, adds up, and needs neither scheduler nor torch."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
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


def announced(output: str) -> dict[str, dict[str, str]]:
    """The jobs of a dry run's own output: resources by first output file."""
    jobs = {}
    for block in re.split(r"\n(?=\[|rule |localrule )", output):
        rule = re.search(r"^rule (\w+):", block, re.MULTILINE)
        made = re.search(r"^ {4}output: ([^,\n]+)", block, re.MULTILINE)
        asked = re.search(r"^ {4}resources: (.+)$", block, re.MULTILINE)
        if rule and made and asked:
            pairs = dict(pair.split("=", 1) for pair in asked[1].split(", ") if "=" in pair)
            jobs[f"{rule[1]} {made[1]}"] = pairs
    return jobs


def test_the_plan_has_the_jobs_and_resources_of_a_real_dry_run_and_the_table_stands_under_it(
    project: Project, planned: dict[str, Any]
) -> None:
    done = project.run("snakemake", *PBS, *PAPER, "-n", "-p")
    assert done.returncode == 0, done.stdout
    real = announced(done.stdout)
    runs = {job["name"]: job["resources"] for job in planned["jobs"] if job["rule"] == "train"}
    assert len(runs) == 4
    for key, asked in real.items():
        if key.startswith("train "):
            mine = runs.pop(Path(key.split()[1]).parent.name)
            names = ("nodes", "ranks_per_node", "gpus_per_node", "cpus_per_rank", "mem_mb", "runtime")
            assert {name: asked.get(name) for name in names} == {
                name: None if mine[name] is None else str(mine[name]) for name in names
            }
    assert runs == {}
    counts = {job["rule"]: 0 for job in planned["jobs"]}
    for job in planned["jobs"]:
        counts[job["rule"]] += 1
    said = done.stdout.partition("Job stats:")[2].partition("\n\n")[0]
    stats = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", said, re.MULTILINE)}
    assert counts == {name: count for name, count in stats.items() if name != "total"}
    assert "Plan for machine flow_type2, scale paper" in done.stdout
    assert re.search(r"^tiny +4 ", done.stdout, re.MULTILINE)


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
