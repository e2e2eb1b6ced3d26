"""What the terminal says of claims: a line each, decided ones first, and of how many it is said."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from scalestudy.analysis.summarise import summarise
from scalestudy.claims.outcome import Verdict
from scalestudy.cli import run_command
from scalestudy.commands.results import denominator, verdicts_of
from scalestudy.results.stored import write_result
from scalestudy.spec.columns import METRICS
from scalestudy.spec.config import read_machine
from scalestudy.spec.layout import result_file
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.study import MACHINE_STUDIES, Study
from tests.conftest import ROOT
from tests.unit.analysis.fake_results import result_of
from tests.unit.claims.made_claims import DIRECTION, study_with
from tests.unit.claims.test_judge import rates

ELSEWHERE = (
    "kind: exact\n    scales: [mini]\n    not_testable: needs a network\n    checks: [{column: status, equals: valid}]"
)
UNDECIDED = DIRECTION.replace("below: 0.95", "below: 0.8")


@pytest.fixture
def study(project: Path) -> Study:
    """Three claims: one that cannot be tested, one that is undecided, one that is reproduced."""
    study = study_with(project / "config/studies", ELSEWHERE, UNDECIDED, DIRECTION)
    numbers = rates(80.0)
    for run in study.runs:
        write_result(result_file("local", run.id), result_of(run, **numbers(run)))
    summarise(study, "local")
    return study


def test_decisions_that_would_not_stand_in_one_family_are_counted() -> None:
    def verdict(p: float, p_holm: float) -> Verdict:
        text = dict.fromkeys(("id", "statement", "source", "place", "kind", "digest"), "")
        return Verdict(**text, origin="document", basis="measured", verdict="reproduced", p=p, p_holm=p_holm)

    alone = [verdict(0.03, 0.03), verdict(0.001, 0.001)]
    assert len(denominator(alone)) == 2
    several = [*alone, verdict(0.04, 0.04)]
    assert denominator(several)[-1].startswith("Of 3 decisions 2 would not stand")


def test_what_make_run_ends_with_fits_on_a_screen(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree("config")
    shutil.copytree(ROOT / "config", "config")
    noise = np.random.default_rng(0)
    for study in read_studies(MACHINE_STUDIES, "mini", read_machine("local"), machine_name="local"):
        for run in study.runs:
            metrics = {name: 1234.5 * noise.lognormal(0, 0.1) for name in METRICS if name != "throughput_samples_per_s"}
            parts = {"exchange_s": 0.31 * metrics["step_time_s"], "data_stall": noise.uniform(0.7, 0.8)}
            rate = 5432.1 * noise.lognormal(0, 0.1)
            made = result_of(run, throughput_samples_per_s=rate, metrics={**metrics, **parts})
            processor = {"cpu": "Intel(R) Xeon(R) Processor (family 6, model 207)", "memory_gib": 23.5}
            marks = {
                "warnings": ["the window was not steady"],
                "disturbed": study.name == "noise" and run == study.runs[0],
            }
            instrument = {**made["instrument"], **processor}
            write_result(result_file("local", run.id), {**made, **marks, "instrument": instrument})
        summarise(study, "local")
    studies = ",".join(MACHINE_STUDIES)
    assert run_command(["summary", "--studies", studies]) == 0
    printed = capsys.readouterr().out
    assert printed.index(" runs;") < printed.index("\nThis machine: ")
    lines = printed[printed.index("\nThis machine: ") + 1 :].splitlines()
    assert sum(line.startswith("- ") for line in lines) == 7
    assert "By basis:" in " ".join(lines) and len(lines) + 1 <= 20, "\n".join(lines)  # and the report's


def test_a_claim_by_its_name_shows_the_runs_of_each_round(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    claim = study.claims[2]
    for run in study.runs:
        rate = 80.0 if run.spec.strategy.name == "parameter_server" else 100.0
        write_result(result_file("local", run.id), result_of(run, throughput_samples_per_s=rate))
    summarise(study, "local")
    assert run_command(["claims", claim.id, "--scale", "paper"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"s: {claim.statement}"
    assert lines[4] == "    round 1: 80 / 100 = 0.8"
    assert lines[5].startswith("      results/local/runs/") and Path(lines[5].strip(), "result.json").is_file()
    assert run_command(["claims", "nothing", "--scale", "paper"]) == 2
    (file,) = Path("config/studies").glob("*.yaml")
    file.with_name("other.yaml").write_text(file.read_text())
    assert run_command(["claims", claim.id, "--scale", "paper"]) == 0
    assert f"other: {claim.statement}" in capsys.readouterr().out.splitlines()


def test_decided_claims_come_first_with_mark_number_and_reason_by_the_results_that_are_there_now(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["claims", "--scale", "paper"]) == 0
    marks = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip().startswith(("✓", "?", "–"))]
    assert [mark.partition("  ")[0] for mark in marks] == ["✓ reproduced", "? inconclusive", "– not testable here"]
    assert [re.split(" {2,}", mark)[1] for mark in marks] == ["measured", "measured", "elsewhere"]
    assert "0.8000 [0.792" in marks[0] and "would decide it" in marks[1] and marks[2].endswith("(needs a network)")
    result_file("local", next(run.id for run in study.runs if run.spec.train.epochs == 1)).unlink()
    assert verdicts_of(study, "local")[2].reason == "1 of 10 runs have no result"
