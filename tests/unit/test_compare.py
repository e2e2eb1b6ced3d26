"""`scalestudy compare`: verdicts, files, exit statuses, and what they refuse."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalestudy import cli
from scalestudy.analysis.recorded import read_records
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
def study(project: Path) -> Study:
    (project / "config/studies/exchange.yaml").write_text(STUDY)
    return read_studies(["exchange"], "mini", Machine())[0]


def write(study: Study, folder: str, speed: Speed, **changes: Any) -> None:
    """A result per run whose throughput `speed` gives; None leaves it out."""
    for run in study.runs:
        value = speed(run)
        if value is not None:
            result = result_of(run, throughput_samples_per_s=value, **changes)
            write_result(result_file(folder, run.id), result)


BEFORE = ("local", "local+night_2", "local+night_3")


def write_nights(study: Study, **changes: Any) -> None:
    """Three campaigns of one machine, whose levels differ by half a per cent."""
    for night, name in enumerate(BEFORE):
        write(study, name, lambda run, night=night: steady(run) * (1, 1.005, 0.995)[night], **changes)


def run(*arguments: str) -> int:
    return cli.run_command(list(arguments))


def table(file: str) -> list[dict[str, str]]:
    with Path(file).open() as stream:
        return list(csv.DictReader(stream))


def slower_on_two_ranks(run: Run) -> float:
    return noise(run) * (80.0 if run.spec.ranks == 2 and run.spec.strategy.name == "allreduce" else 100.0)


def test_a_slower_configuration_is_named_and_fails_the_gate(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    write_nights(study)
    write(study, "new", slower_on_two_ranks)
    assert run("compare", *BEFORE, "new") == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "new against local, local+night_2, local+night_3: 1 slower, 3 same, of 4 configurations"
    assert said[1].startswith("  slower    exchange: 2 ranks, ring & all_reduce: speed -19.9 % [-21.")
    assert said[-2].startswith("The interval is that of the next campaign")
    assert said[-1] == "  results/comparisons/local_new.csv"
    rows = table("results/comparisons/local_new.csv")
    assert [row["verdict"] for row in rows] == ["slower", "same", "same", "same"]
    assert float(rows[0]["ratio"]) == pytest.approx(0.801, abs=1e-3)
    assert (rows[0]["before"], rows[0]["after"], rows[0]["unit"]) == ("100", "80.1", "samples/s")


def test_nothing_is_gated_before_three_campaigns_and_reported_speeds_are_marked(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    reported = {"kinds": {"throughput_samples_per_s": "reported"}}
    write_nights(study, **reported)
    write(study, "new", slower_on_two_ranks, **reported)
    assert run("compare", *BEFORE[:2], "new", "--out", "out.csv") == 3
    said = capsys.readouterr().out
    assert said.startswith("new against local, local+night_2: 4 undecided, of 4 configurations\n")
    why = "no gate: 2 of 3 campaigns before, and the interval is that of repeats; reported by the program"
    assert f"speed -20.0 % [-21.2, -19.0] ({why})" in said
    assert {row["reported"] for row in table("out.csv")} == {"True"}


def test_configurations_that_some_nights_lack_and_unreadable_results_are_counted(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    for night, name in enumerate((*BEFORE, "new")):
        write(study, name, lambda run, night=night: steady(run) if night or run.spec.ranks == 1 else None)
    result_file("new", study.runs[-1].id).write_text("{")
    run("compare", *BEFORE, "new")
    said = capsys.readouterr().out
    assert "Not measured in all folders, and not compared: 2 configurations." in said
    assert f"1 results of new could not be read; the first, {study.runs[-1].id}: " in said


def test_a_run_that_is_no_longer_valid_is_undecided_with_its_reason(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    write_nights(study)
    write(study, "other", steady, status="invalid", reason="the loss is not finite")
    assert run("compare", *BEFORE, "other") == 3
    assert "(invalid after: the loss is not finite)" in capsys.readouterr().out
    for folder, repeats in (("first", (0, 1)), ("last", (2, 3))):
        write(study, folder, lambda run, repeats=repeats: 100.0 if run.spec.repeat in repeats else None)
    assert run("compare", "first", "last") == 3
    assert "(no repeat is valid in all of them)" in capsys.readouterr().out


def test_a_folder_that_is_a_link_has_its_own_name(study: Study) -> None:
    write(study, "disk", steady)
    Path("results/local").symlink_to("disk")
    assert read_records("local").name == "local"


def test_runs_of_former_code_that_are_still_there_are_not_compared(study: Study) -> None:
    """Their ids differ and their configuration does not; those of the new folder are the only slow ones.

    A part of the instrument may be the question also where it does not differ.
    """
    write_nights(study, started="2026-01-02T00:00:00+00:00")
    write(study, "new", lambda run: 100.0 * noise(run), started="2026-01-02T00:00:00+00:00")
    for folder in (*BEFORE, "new"):
        for each in study.runs:
            former = f"{each.id.rpartition('-')[0]}-{'f' * 12}"
            rate = 50.0 if folder == "new" else steady(each)
            result = result_of(each, throughput_samples_per_s=rate, started="2026-01-01T00:00:00+00:00")
            write_result(result_file(folder, former), {**result, "run": former})
    assert run("compare", *BEFORE, "new", "--across", "torch") == 0


def test_unlike_instruments_are_refused_unless_that_is_the_question(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    write_nights(study)
    for key, value, word in (("torch", "2.1", "software"), ("cpu", "another CPU", "hardware"), ("code", "b", "code")):
        write(study, "other", lambda run: 100.0 * noise(run), instrument={**INSTRUMENT, key: value})
        assert run("compare", *BEFORE, "other") == 2
        assert capsys.readouterr().err == (
            "scalestudy: the two were not measured with the same instrument:\n"
            f"    {key}: {INSTRUMENT[key]} before, {value} after\n"
            f"    measure both with the same, or say that this difference is the question: --across {word}\n"
        )
        for question in (word, key):
            assert run("compare", *BEFORE, "other", "--across", question) == 0
            said = f"The instruments differ, as asked: {key}: {INSTRUMENT[key]} before, {value} after."
            assert said in capsys.readouterr().out


BAD = [
    ("local locl", "there are no runs in `locl`\n    did you mean `local`?"),
    ("local ./results/local", "two of them are the same folder\n    give each folder once"),
    ("local other --margin nan", "`nan` is not a margin"),
    ("local", "give two folders or more, or one with --nodes"),
    ("local --nodes", "`local` has no runs that 3 nodes made by name"),
    ("local other --column accuracy", "`accuracy` is not a column of rates or times"),
    ("local other --study exchnge", "there is no study `exchnge`\n    did you mean `exchange`?"),
    ("local other --across tourch", "`tourch` is not a part of an instrument"),
    ("local empty", "no run has a result"),
    ("one two", "`one` and `two` have no configuration in common"),
]


def test_bad_input_is_one_message(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    write(study, "local", steady)
    write(study, "other", steady, instrument={**INSTRUMENT, "torch": "2.1"})
    for ranks, folder in enumerate(("one", "two"), start=1):
        write(study, folder, lambda run, ranks=ranks: 100.0 if run.spec.ranks == ranks else None)
    Path("results/empty/runs").mkdir(parents=True)
    for arguments, message in BAD:
        assert run("compare", *arguments.split()) == 2
        assert message in capsys.readouterr().err


PARTS = """
question: Which?
base: {data: {source: digits}, ranks_per_node: 1, strategy: allreduce}
vary: {nodes: each, batch.per_rank: [8, 16]}
repeats: 5
scales: {mini: {}}
"""


def test_nodes_are_compared_by_a_column_that_some_configurations_have(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those with a batch of 16 report no bytes: nothing about them is open, they are not compared."""
    hosts = "n[1-4]"
    Path("config/machines/local.yaml").write_text(f"hosts: ['{hosts}']\ndevices_per_node: 1\n")
    Path("config/studies/parts.yaml").write_text(PARTS)
    machine = Machine(hosts=(hosts,), devices_per_node=1)
    for one in read_studies(["parts"], "mini", machine, machine_name="local")[0].runs:
        speed = (0.8 if one.spec.hosts == ("n3",) else 1.0) * (1e9 + one.spec.repeat)
        reports = {"bytes_per_s": speed} if one.spec.batch.per_rank == 8 else {}
        result = result_of(one, metrics={"throughput_samples_per_s": None, **reports})
        write_result(result_file("local", one.id), result)
    assert run("compare", "local", "--nodes", "--study", "parts", "--column", "bytes_per_s") == 1
    said = capsys.readouterr().out
    assert said.startswith("nodes of local against the other nodes: 1 slower, 3 same, of 4 configurations\n")
    assert "slower    parts: host n3" in said
    assert {row["unit"] for row in table("results/comparisons/local_nodes.csv")} == {"B/s"}
