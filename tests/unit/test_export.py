"""`scalestudy export`: a study with its results in an archive, which is a project of its own."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pandas as pd
import pytest

from scalestudy import cli
from scalestudy.analysis.recorded import read_records
from scalestudy.files import write_json
from scalestudy.results.stored import write_result
from scalestudy.spec.layout import figure_file, result_file, run_folder, table_file
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.study import Study
from tests.unit.analysis.fake_results import result_of

STUDY = """
title: Which exchange
question: Which?
base: {data: {source: digits}, strategy: allreduce}
vary: {ranks: [1, 2, 4]}
scales: {mini: {}}
figures: [{kind: throughput_over_ranks, name: rate}]
"""


@pytest.fixture
def study(project: Path) -> Study:
    """A clone in miniature: one valid run, one invalid, one without a result; a figure and a table."""
    code = (
        "Snakefile",
        "workflow/rules/train.smk",
        "workflow/__pycache__/x.pyc",
        "envs/a",
        "profiles/local/config.yaml",
    )
    files = {
        **dict.fromkeys(code, "# code\n"),
        "config/config.yaml": "scale: mini\npaths: {data: /private/scratch}\n",
        "config/studies/exchange.yaml": STUDY,
        "profiles/local/site.yaml": "data_roots: {image_folder: /private/images}\n",
    }
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    study = read_studies(["exchange"], "mini", Machine())[0]
    valid, wrong, _ = study.runs
    write_result(result_file("local", valid.id), result_of(valid))
    write_result(result_file("local", wrong.id), result_of(wrong, status="invalid", reason="the loss is not finite"))
    for run in (valid, wrong):
        write_json(run_folder("local", run.id) / "spec.json", run.spec.to_dict())
    pd.DataFrame({"step": [1, 2]}).to_parquet(run_folder("local", valid.id) / "steps.parquet")
    (run_folder("local", valid.id) / "log").mkdir()
    (run_folder("local", valid.id) / "log/train.log").write_text("secret\n")
    for file in (figure_file("local", "mini", "exchange", "rate"), table_file("local", "mini", "exchange", "times")):
        file.parent.mkdir(parents=True)
        file.write_text("made")
    return study


def export(*arguments: str) -> int:
    return cli.run_command(["export", "exchange", "--out", "out.zip", *arguments])


def test_logs_caches_private_paths_and_tables_that_the_study_has_no_more_stay_here(
    study: Study, tmp_path: Path
) -> None:
    export()
    with zipfile.ZipFile("out.zip") as archive:
        made = f"results/local/runs/{study.runs[0].id}"
        assert {f"{made}/spec.json", f"{made}/result.json", f"{made}/steps.parquet"} < {*archive.namelist()}
        assert not [name for name in archive.namelist() if "log" in name or "pycache" in name or "times" in name]
        assert archive.read("config/config.yaml").decode() == "studies: [exchange]\nscale: mini\nmachine: local\n"
        assert "profiles/local/config.yaml" in archive.namelist()
        assert archive.read("profiles/local/site.yaml") == b"launcher: local\n"
        archive.extractall(tmp_path / "colleague")
    found = read_records(str(tmp_path / "colleague/results/local"))
    assert [run.run for run in found.runs] == sorted(run.id for run in study.runs[:2])


def test_a_campaign_is_that_of_the_project_in_the_archive(study: Study) -> None:
    Path("results/local").rename("results/local+night_2")
    assert export("--machine", "local+night_2") == 0
    with zipfile.ZipFile("out.zip") as archive:
        assert archive.read("config/config.yaml").decode().endswith("machine: local\ncampaign: night_2\n")


def test_the_files_of_a_program_and_its_explained_runs_are_in_the_archive(study: Study) -> None:
    Path("train.py").write_text("print()\n")
    text = STUDY.replace(
        "data: {source: digits}, strategy: allreduce", 'program: {command: "python train.py", files: [train.py]}'
    )
    Path("config/studies/exchange.yaml").write_text(f"{text}explain: true\n")
    study = read_studies(["exchange"], "mini", Machine())[0]
    for run in (study.runs[0], study.explained[0]):
        write_result(result_file("local", run.id), result_of(run))
        write_json(run_folder("local", run.id) / "spec.json", run.spec.to_dict())
    assert export() == 0
    with zipfile.ZipFile("out.zip") as archive:
        assert archive.read("train.py") == b"print()\n"
        assert str(result_file("local", study.explained[0].id)) in archive.namelist()
