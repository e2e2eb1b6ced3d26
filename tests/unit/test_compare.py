"""`scalestudy compare` and `scalestudy trend`: verdicts, files, exit statuses, and what they refuse."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalestudy import cli
from scalestudy.results.stored import write_result
from scalestudy.spec.layout import result_file
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.fake_results import INSTRUMENT, result_of

STUDY = """
title: Which <exchange>
question: Which?
base: {data: {source: digits}}
vary:
  ranks: [1, 2]
  strategy: [{value: allreduce, label: "ring & all_reduce"}, parameter_server]
repeats: 4
scales: {mini: {}}
"""
Speed = Callable[[Run], float | None]


def noise(run: Run) -> float:
    """One per cent up and down, differently in each folder."""
    return (1.01, 0.99, 1.0, 1.005)[run.spec.repeat]


def steady(run: Run) -> float:
    return 100.0


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    (tmp_path / "config/studies").mkdir(parents=True)
    (tmp_path / "config/machines").mkdir()
    (tmp_path / "config/machines/local.yaml").write_text("description: Here\n")
    (tmp_path / "config/config.yaml").write_text("scale: mini\n")
    (tmp_path / "config/studies/exchange.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    return read_studies(["exchange"], "mini", Machine())[0]


def write(study: Study, folder: str, speed: Speed, **changes: Any) -> None:
    """A result per run whose throughput `speed` gives; None leaves it out."""
    for run in study.runs:
        value = speed(run)
        if value is not None:
            result = result_of(run, throughput_samples_per_s=value, **changes)
            write_result(result_file(folder, run.id), result)


def run(*arguments: str) -> int:
    return cli.run_command(list(arguments))


def table(file: str) -> list[dict[str, str]]:
    with Path(file).open() as stream:
        return list(csv.DictReader(stream))


def slower_on_two_ranks(run: Run) -> float:
    return noise(run) * (80.0 if run.spec.ranks == 2 and run.spec.strategy.name == "allreduce" else 100.0)


def test_a_slower_configuration_is_named_and_fails_the_gate(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    write(study, "local", steady)
    write(study, "local+night_2", slower_on_two_ranks)
    assert run("compare", "local", "local+night_2") == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "local+night_2 against local: 1 slower, 3 same, of 4 configurations"
    assert said[1].startswith("  slower    exchange: 2 ranks, ring & all_reduce: speed -19.9 % [-21.")
    assert said[-4:] == [
        f"  results/comparisons/local_local+night_2/comparison.{suffix}" for suffix in ("html", "csv", "md", "xml")
    ]


def test_equal_folders_pass_the_gate(study: Study) -> None:
    write(study, "local", steady)
    write(study, "local+night_2", lambda run: 100.0 * noise(run))
    assert run("compare", "local", "local+night_2") == 0


def test_a_wide_interval_is_undecided_and_says_how_many_repeats_it_needs(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    write(study, "local", steady)
    write(study, "local+night_2", lambda run: 100.0 * (1 + 5 * (noise(run) - 1)))
    assert run("compare", "local", "local+night_2") == 3
    assert "repeats would decide it if mean and spread stay" in capsys.readouterr().out


def test_a_wider_margin_makes_it_the_same(study: Study) -> None:
    write(study, "local", steady)
    write(study, "local+night_2", slower_on_two_ranks)
    assert run("compare", "local", "local+night_2", "--margin", "40%") == 0


def test_times_are_faster_where_they_are_less(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    write(study, "local", steady)
    write(study, "other", lambda run: 50.0 * noise(run))
    assert run("compare", "local", "other", "--column", "training_time_s") == 1
    assert "slower    exchange: 1 rank, ring & all_reduce: speed -49.9 %" in capsys.readouterr().out


def test_a_run_that_is_no_longer_valid_is_undecided_with_its_reason(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    write(study, "local", steady)
    write(study, "other", steady, status="invalid", reason="the loss is not finite")
    assert run("compare", "local", "other") == 3
    assert "(invalid after: the loss is not finite)" in capsys.readouterr().out


def test_what_only_one_has_is_told_and_does_not_count(study: Study) -> None:
    write(study, "local", steady)
    write(study, "other", lambda run: 100.0 * noise(run) if run.spec.ranks == 1 else None)
    assert run("compare", "local", "other", "--out", "out") == 0
    assert "2 configurations were measured only before" in Path("out/comparison.md").read_text()


@pytest.mark.parametrize(
    ("change", "word"),
    [({"torch": "2.1"}, "software"), ({"cpu": "another CPU"}, "hardware"), ({"code": "beef"}, "code")],
)
def test_unlike_instruments_are_refused_unless_that_is_the_question(
    study: Study, capsys: pytest.CaptureFixture[str], change: dict[str, str], word: str
) -> None:
    write(study, "local", steady)
    write(study, "other", lambda run: 100.0 * noise(run), instrument={**INSTRUMENT, **change})
    assert run("compare", "local", "other") == 2
    ((key, value),) = change.items()
    assert capsys.readouterr().err == (
        "scalestudy: the two were not measured with the same instrument:\n"
        f"    {key}: {INSTRUMENT[key]} before, {value} after\n"
        f"    measure both with the same, or say that this difference is the question: --across {word}\n"
    )
    assert run("compare", "local", "other", "--across", word) == 0
    assert run("compare", "local", "other", "--across", key) == 0
    assert (
        f"{key}: {INSTRUMENT[key]} before, {value} after"
        in Path("results/comparisons/local_other/comparison.md").read_text()
    )


def test_runs_of_another_version_of_the_trainer_are_found_and_refused(
    study: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(study, "local", steady)
    monkeypatch.setattr("scalestudy.spec.ids.TRAINER_VERSION", 1000)
    write(read_studies(["exchange"], "mini", Machine())[0], "other", lambda run: 100.0 * noise(run))
    assert run("compare", "local", "other") == 2
    assert "the ids of the runs differ (TRAINER_VERSION" in capsys.readouterr().err
    assert run("compare", "local", "other", "--across", "code") == 0


def test_the_memory_of_the_machine_is_no_difference(study: Study) -> None:
    write(study, "local", steady)
    write(study, "other", lambda run: 100.0 * noise(run), instrument={**INSTRUMENT, "memory_gib": 9.0})
    assert run("compare", "local", "other") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["local", "locl"], "there are no runs in `locl`\n    did you mean `local`?"),
        (["local", "./results/local"], "both are the same folder\n    give two folders"),
        (
            ["local", "other", "--margin", "3x"],
            "`3x` is not a margin: give a fraction of the speed, such as 3% or 0.03",
        ),
        (["local", "other", "--margin", "-1%"], "`-1%` is not a margin"),
        (["local", "other", "--margin", "nan"], "`nan` is not a margin"),
        (["local", "other", "--column", "accuracy"], "`accuracy` is not a column of rates or times"),
        (["local", "other", "--study", "exchnge"], "there is no study `exchnge`\n    did you mean `exchange`?"),
        (
            ["local", "other", "--across", "tourch"],
            "`tourch` is not a part of an instrument\n    did you mean `torch`?",
        ),
        (["local", "empty"], "no run has a result"),
    ],
)
def test_bad_input_is_one_message(
    study: Study, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    write(study, "local", steady)
    write(study, "other", steady, instrument={**INSTRUMENT, "torch": "2.1"})
    Path("results/empty/runs").mkdir(parents=True)
    assert run("compare", *arguments) == 2
    assert message in capsys.readouterr().err


def test_folders_without_a_common_configuration_are_refused(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    write(study, "local", lambda run: 100.0 if run.spec.ranks == 1 else None)
    write(study, "other", lambda run: 100.0 if run.spec.ranks == 2 else None)
    assert run("compare", "local", "other") == 2
    assert "`local` and `other` have no configuration in common" in capsys.readouterr().err


def test_a_damaged_result_is_told_and_the_rest_compared(study: Study) -> None:
    write(study, "local", steady)
    write(study, "other", lambda run: 100.0 * noise(run))
    result_file("other", study.runs[0].id).write_text("{")
    assert run("compare", "local", "other", "--out", "out") == 0
    assert "1 results after could not be read; the first," in Path("out/comparison.md").read_text()


def test_the_table_has_a_line_per_configuration(study: Study) -> None:
    write(study, "local", steady)
    write(study, "other", slower_on_two_ranks)
    run("compare", "local", "other", "--out", "out")
    rows = table("out/comparison.csv")
    assert [(row["verdict"], row["configuration"]) for row in rows] == [
        ("slower", "2 ranks, ring & all_reduce"),
        ("same", "1 rank, ring & all_reduce"),
        ("same", "1 rank, parameter server"),
        ("same", "2 ranks, parameter server"),
    ]
    assert float(rows[0]["ratio"]) == pytest.approx(0.801, abs=1e-3)
    assert (rows[0]["before"], rows[0]["after"], rows[0]["unit"]) == ("100", "80.1", "samples/s")


def test_junit_has_a_failure_where_it_is_slower_and_a_skip_where_undecided(study: Study) -> None:
    write(study, "local", steady)
    write(
        study,
        "other",
        lambda run: slower_on_two_ranks(run) if run.spec.strategy.name == "allreduce" or run.spec.repeat < 2 else None,
    )
    assert run("compare", "local", "other", "--out", "out") == 1
    (suite,) = ET.parse("out/comparison.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "1", "2")
    outcomes = {case.get("name"): [child.tag for child in case] for case in suite}
    assert outcomes == {
        "2 ranks, ring & all_reduce": ["failure"],
        "1 rank, ring & all_reduce": ["system-out"],
        "1 rank, parameter server": ["skipped"],
        "2 ranks, parameter server": ["skipped"],
    }


def test_the_page_stands_alone_and_escapes_what_it_shows(study: Study) -> None:
    write(study, "local", steady)
    write(study, "other", slower_on_two_ranks)
    run("compare", "local", "other", "--out", "out")
    page = Path("out/comparison.html").read_text()
    assert "ring &amp; all_reduce" in page
    assert "other against local: 1 slower, 3 same, of 4 configurations" in page
    assert 'src="' not in page
    assert "http" not in page
    assert page.count("<tr>") == 5


def test_results_of_others_are_compared_without_their_studies(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(study, "local", steady)
    write(study, "other", slower_on_two_ranks)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert run("compare", "../results/local", "../results/other", "--out", "out") == 1
    assert "slower    other: small_cnn.digits.allreduce.x2 (" in capsys.readouterr().out


def campaigns(study: Study, *levels: float) -> None:
    """Campaigns in this order, each at a level and a little off it."""
    for index, level in enumerate(levels):
        name = "local" if index == 0 else f"local+c{index}"
        off = (0.0, 0.4, -0.3, 0.2, -0.1, 0.3)[index % 6]
        write(
            study,
            name,
            lambda run, level=level + off: level * noise(run),
            started=f"2026-01-{index + 10}T00:00:00+00:00",
        )  # type: ignore[misc]


def test_a_trend_says_where_the_speed_changed(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    campaigns(study, 100.0, 100.0, 100.0, 90.0, 90.0, 90.0)
    assert run("trend") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "6 campaigns: local, c1, c2, c3, c4, c5"
    assert said[1].startswith("  exchange: 1 rank, ring & all_reduce: -9.9 % from c3 on (p = ")
    assert "  results/local/trend/exchange.svg" in said
    rows = table("results/local/trend/exchange.csv")
    assert len(rows) == 24
    assert [row["change"] for row in rows[:6]] == ["", "", "", "0.901035", "", ""]


def test_few_campaigns_are_drawn_and_have_no_change_point(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    campaigns(study, 100.0, 90.0)
    assert run("trend", "--study", "exchange") == 0
    said = capsys.readouterr().out
    assert "no change found (2 campaigns are too few to find one); last against first -9.6 %" in said
    assert Path("results/local/trend/exchange.png").stat().st_size > 10_000


def test_campaigns_are_in_the_order_of_time_or_of_names(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    write(study, "local", steady, started="2026-01-03T00:00:00+00:00")
    write(study, "local+b", steady, started="2026-01-02T00:00:00+00:00")
    write(study, "local+a", steady, started="2026-01-04T00:00:00+00:00")
    run("trend")
    assert capsys.readouterr().out.startswith("3 campaigns: b, local, a\n")
    run("trend", "--order", "name")
    assert capsys.readouterr().out.startswith("3 campaigns: a, b, local\n")


def test_a_change_of_the_instrument_is_told_with_its_campaign(study: Study) -> None:
    write(study, "local", steady, started="2026-01-01")
    write(study, "local+new", steady, started="2026-01-02", instrument={**INSTRUMENT, "torch": "2.1"})
    run("trend")
    assert (
        "From new on the instrument differs: torch: 2.0 before, 2.1 after"
        in Path("results/local/trend/exchange.md").read_text()
    )


def test_one_campaign_is_no_trend(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    write(study, "local", steady)
    assert run("trend") == 2
    assert "machine `local` has 1 campaign with results, and a trend needs two" in capsys.readouterr().err
