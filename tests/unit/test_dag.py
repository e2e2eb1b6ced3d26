"""What rules get for their wildcards."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake.io import apply_wildcards

from scalestudy.dag import Ask
from scalestudy.dag.project import Project
from scalestudy.errors import UserError
from scalestudy.files import write_json
from scalestudy.results.stored import write_result
from scalestudy.spec.layout import result_file, run_folder
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from tests.conftest import ROOT
from tests.unit.analysis.fake_results import result_of

STUDY = (
    "question: How?\nvary: {{seed: [{seed}]}}\nscales: {{mini: {{}}}}\nfigures: [{{kind: efficiency, name: speed}}]\n"
)


@pytest.fixture
def folder(project: Path) -> Path:
    studies = project / "config/studies"
    (studies / "a.yaml").write_text(STUDY.format(seed=1))
    (studies / "b.yaml").write_text(STUDY.format(seed=2))
    return studies


def wildcards(**more: str) -> SimpleNamespace:
    return SimpleNamespace(machine="local", scale="mini", study="a", **more)


def test_a_run_of_a_study_is_found_though_another_study_is_wrong_at_that_scale(folder: Path) -> None:
    run = read_studies(["a"], "paper", Machine(), folder=folder)[0].runs[0]
    (folder / "b.yaml").write_text("question: How?\nbase: {modle: mlp}\n")
    assert Project({}).run("local", run.id) == run


@pytest.mark.parametrize("edited", [STUDY.format(seed=9), "vary: ["], ids=["another run", "broken"])
def test_a_submitted_job_makes_its_run_though_the_study_was_edited_since(folder: Path, edited: str) -> None:
    (folder / "b.yaml").unlink()
    (folder / "a.yaml").write_text(STUDY.format(seed=1) + "repeats: 2\n")
    run = Project({}).chosen[0].runs[1]
    write_json(run_folder("local", run.id) / "spec.json", run.spec.to_dict())
    (folder / "a.yaml").write_text(edited)
    assert Project({}, is_job=True).run("local", run.id) == run
    with pytest.raises(UserError, match=f"no study has a run `{run.id}x`"):
        Project({}, is_job=True).run("local", f"{run.id}x")


def test_a_run_that_two_studies_share_is_made_for_the_one_that_the_call_names(folder: Path) -> None:
    (folder / "b.yaml").write_text((folder / "a.yaml").read_text())
    run = Project({}).chosen[0].runs[0].id
    names = [Project({}, targets=lambda named=named: named).indexed("local", run).study for named in ("a", "all", "b")]
    assert names == ["a", "a", "b"]


def test_a_wrong_study_ends_what_needs_it_and_nothing_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "b.yaml").write_text("question: 5\n")
    ask = Ask(Project({}))
    assert len(ask.results(wildcards())) == 1
    for question in (ask.everything, ask.report_inputs, ask.study("b")):
        with pytest.raises(SystemExit) as end:
            question(wildcards())
        assert end.value.code == 2
        assert capsys.readouterr().err.startswith("scalestudy: config/studies/b.yaml:1: question: input should be")


def test_a_report_into_a_file_of_its_own_shows_all_jobs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["snakemake", "--report=page.html"])
    assert Ask(Project({})).draws_graph


def test_published_numbers_count_by_their_content(folder: Path) -> None:
    reference = folder.parent / "reference/tsubame_resnet50.csv"
    reference.parent.mkdir()
    shutil.copyfile(ROOT / "config/reference" / reference.name, reference)
    figure = "{kind: time_over_ranks, name: time, reference: tsubame_resnet50}"
    (folder / "a.yaml").write_text(STUDY.format(seed=1).replace("{kind: efficiency, name: speed}", figure))

    def published() -> str:
        return str(Ask(Project({})).published(wildcards(figure="time")))

    before, stat = published(), reference.stat()
    assert published() == before
    reference.write_text(reference.read_text() + "\n")
    os.utime(reference, (stat.st_atime - 99, stat.st_mtime - 99))
    assert published() != before


def test_the_page_is_made_again_for_a_program_that_is_explained_again(folder: Path) -> None:
    Path("train.py").touch()
    program = "base: {program: {command: python train.py, files: [train.py]}}\nexplain: true\nscales: {mini: {}}\n"
    (folder / "a.yaml").write_text(f"question: How?\n{program}")
    project = Project({})
    (run,) = project.chosen[0].explained
    before = Ask(project).explained(wildcards())
    write_result(result_file("local", run.id), result_of(run))
    assert Ask(project).explained(wildcards()) != before


def test_braces_in_a_title_are_no_wildcard_of_snakemakes_report(folder: Path) -> None:
    text = STUDY.format(seed=1).replace("name: speed", "name: speed, title: 'Time of $10^{6}$ steps'")
    (folder / "a.yaml").write_text(f"title: From {{first}} to last\n{text}")
    ask = Ask(Project({}))
    titles = (ask.of_study("title")(wildcards()), ask.labels(wildcards(figure="speed"))["figure"])
    shown = [apply_wildcards(title, {}).replace("\u2060", "") for title in titles]
    assert shown == ["From {first} to last", "Time of $10^{6}$ steps"]


def test_a_study_has_a_target_though_it_is_wrong_and_a_reserved_name_has_none(folder: Path) -> None:
    (folder / "b.yaml").write_text("question: 5\n")
    (folder / "all.yaml").write_text("question: How?\n")
    assert Project({}).names == ["a", "b"]


ORDERED = (
    "question: How?\nbase: {{seed: {seed}}}\nvary: {{batch.per_rank: [1, 2, 3, 4, 5, 6]}}\nrepeats: 3\n"
    "scales: {{mini: {{}}}}\n"
)


def order(folder: Path, seed: int) -> list[tuple[int, int]]:
    """Repeat and batch of each run, in the order of priorities."""
    for name in ("a", "b"):
        (folder / f"{name}.yaml").write_text(ORDERED.format(seed=seed if name == "a" else 99))
    project = Project({})
    runs = sorted(project.chosen[0].runs, key=lambda run: -project.indexed("local", run.id).priority)
    return [(run.spec.repeat, run.spec.rank_batch) for run in runs]


def test_studies_and_rounds_follow_each_other_and_the_seed_draws_the_order_within_each(folder: Path) -> None:
    drawn = order(folder, seed=1)
    rounds = [[batch for repeat, batch in drawn if repeat == number] for number in range(3)]
    assert [repeat for repeat, _ in drawn] == [0] * 6 + [1] * 6 + [2] * 6
    assert all(sorted(each) == [1, 2, 3, 4, 5, 6] for each in rounds)
    assert len({tuple(each) for each in rounds}) == 3
    assert order(folder, seed=1) == drawn != order(folder, seed=2)
    project = Project({})
    first, second = ([project.indexed("local", run.id).priority for run in study.runs] for study in project.chosen)
    assert min(first) > max(second)
