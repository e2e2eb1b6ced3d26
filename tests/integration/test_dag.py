"""What each change makes Snakemake do again: never a finished run."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalestudy.files import read_sealed, write_sealed
from tests.browser import chromium
from tests.integration.project import Project, jobs_in, make_project

HAS_GPU = Path("/proc/driver/nvidia/gpus").exists()
DRAWN = {"summarise": 1, "figure": 2, "table": 1, "judge": 1, "report": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose four runs, figures, table and report were really made."""
    project = make_project(tmp_path_factory.mktemp("finished") / "clone", forked=True)
    done = project.snakemake("all")
    assert done.returncode == 0, done.stdout
    return project


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Iterator[Project]:
    """A copy of the finished project, times of files kept, to change at will."""
    copy = tmp_path / "clone"
    shutil.copytree(finished.folder, copy, copy_function=shutil.copy2, symlinks=True)
    yield Project(copy, forked=True)
    shutil.rmtree(copy)


def test_the_first_run_makes_four_results_and_everything_drawn_from_them(finished: Project) -> None:
    assert len(finished.results()) == 4
    for file in (
        "figures/tiny/time.svg",
        "figures/tiny/time.pdf",
        "figures/tiny/time.png",
        "tables/tiny/times.tex",
        "report.html",
    ):
        assert (finished.folder / "results/local/mini" / file).stat().st_size > 300


def test_again_does_nothing(project: Project) -> None:
    assert project.planned() == {}
    done = project.snakemake("all")
    assert done.returncode == 0
    assert "Nothing to be done" in done.stdout


def test_a_changed_label_draws_again_and_trains_nothing(project: Project) -> None:
    project.edit("config/studies/tiny.yaml", "label: HD", "label: Halving-doubling")
    assert project.planned() == DRAWN


def test_a_new_title_draws_only_that_figure(project: Project) -> None:
    project.edit("config/studies/tiny.yaml", "name: time}", "name: time, title: Time}")
    assert project.planned() == {"figure": 1, "report": 1}
    done = project.snakemake("results/local/mini/figures/tiny/time.svg")
    assert done.returncode == 0, done.stdout
    assert "Time" in (project.folder / "results/local/mini/figures/tiny/time.txt").read_text()
    assert project.planned() == {"report": 1}


def test_another_answer_writes_the_report_alone(project: Project) -> None:
    answer = "answers: [{say: 'At {rate} samples/s.', numbers: {rate: {column: throughput_samples_per_s, where: {ranks: 1, strategy: allreduce}}}}]"
    project.study.write_text(f"{project.study.read_text()}{answer}\n")
    assert project.planned() == {"report": 1}


def test_a_comment_in_a_study_draws_nothing(project: Project) -> None:
    project.study.write_text(project.study.read_text() + "# a comment\n")
    assert project.planned() == {}


def test_changes_of_the_command_line_are_in_what_is_drawn_and_fix_no_claim(project: Project) -> None:
    done = project.snakemake("tiny", "--config", "set=strategy=ring")
    assert done.returncode == 0, done.stdout
    assert len(project.results()) == 6
    assert "tiny: 2 valid of 2 runs" in done.stdout
    assert "ring" in (project.folder / "results/local/mini/studies/tiny/summary.csv").read_text()
    assert project.planned() == DRAWN
    assert project.snakemake("tiny").returncode == 0
    (claim,) = project.verdicts("tiny")
    assert (claim["verdict"], claim["changed_after_measuring"]) == ("reproduced", False)


def test_a_changed_claim_is_judged_again_marked_and_trains_nothing(project: Project) -> None:
    (claim,) = project.verdicts("tiny")
    assert (claim["verdict"], claim["changed_after_measuring"]) == ("reproduced", False)
    project.edit("config/studies/tiny.yaml", "equals: valid", "equals: skipped")
    assert project.planned() == {"judge": 1, "report": 1}
    done = project.snakemake("claims")
    assert done.returncode == 0, done.stdout
    (claim,) = project.verdicts("tiny")
    assert (claim["verdict"], claim["changed_after_measuring"]) == ("not reproduced", True)


def test_changed_figure_code_draws_again_and_trains_nothing(project: Project) -> None:
    file = project.with_own_code().code / "scalestudy/figures/style.py"
    file.write_text(file.read_text() + "\n# another line\n")
    assert project.planned() == {"figure": 2, "table": 1, "judge": 1, "report": 1}


def test_changed_trainer_code_trains_nothing(project: Project) -> None:
    file = project.with_own_code().code / "scalestudy/training/trainer.py"
    file.write_text(file.read_text() + "\n# another line\n")
    assert project.planned() == {}


def test_a_comment_or_whitespace_in_the_train_rule_trains_nothing(project: Project) -> None:
    project.with_own_code().edit("workflow/rules/train.smk", "scalestudy train --out", "scalestudy  train  --out")
    project.edit("workflow/rules/train.smk", "rule train:", "# a comment\nrule train:")
    assert project.planned() == {}


def test_a_moved_clone_trains_nothing(project: Project, tmp_path: Path) -> None:
    moved = Project(tmp_path / "elsewhere" / "clone", forked=True)
    moved.folder.parent.mkdir()
    project.folder.rename(moved.folder)
    try:
        assert "train" not in moved.planned()
    finally:
        moved.folder.rename(project.folder)


HARM = {
    "nothing": "true",
    "purged data": "rm -r results/data",
    "a newer manifest": "touch -d '+1 hour' results/data/*/manifest.json",
    "newer specs": "touch -d '+1 hour' results/local/runs/*/spec.json",
    "specs written by another version": "sed -i 's/}$/, \"more\":1}/' results/local/runs/*/spec.json",
    "a lost .snakemake": "rm -r .snakemake",
    "a mark of a job that was begun": "cd .snakemake && mkdir -p incomplete && for f in ../results/local/runs/*/result.json; "
    "do touch incomplete/$(printf %s ${f#../} | base64 -w0); done",
    "only results": "find results -type f ! -name result.json -delete; rm -r .snakemake",
}
CALLS = {
    "profile": ("--profile", "profiles/local"),
    "no profile": ("--cores", "1", "--workflow-profile", "none"),
    "forced": ("--cores", "1", "--workflow-profile", "none", "--rerun-incomplete", "--forcerun", "train"),
    "elsewhere": ("-s", "clone/workflow/Snakefile", "-d", "clone", "--cores", "1"),
    **{
        f"trigger {name}": ("--profile", "profiles/local", "--rerun-triggers", name)
        for name in ("code", "input", "mtime", "params", "software-env")
    },
}


@pytest.mark.parametrize(
    ("harm", "call"), [*((harm, "no profile") for harm in HARM), *(("purged data", call) for call in CALLS)]
)
def test_no_finished_run_is_planned_again(project: Project, harm: str, call: str) -> None:
    assert project.run("bash", "-c", HARM[harm]).returncode == 0
    place = Project(project.folder.parent, forked=True) if call == "elsewhere" else project
    done = place.run("snakemake", "tiny", "-n", *CALLS[call])
    assert done.returncode == 0, done.stdout
    assert not {"train", "dataset"} & set(jobs_in(done.stdout))


def test_purged_data_and_one_run_more_trains_one_run(project: Project) -> None:
    shutil.rmtree(project.folder / "results/data")
    project.edit("config/studies/tiny.yaml", "scales:", "include: [{strategy: parameter_server, ranks: 1}]\nscales:")
    assert project.planned() == {"dataset": 1, "spec": 1, "train": 1, **DRAWN}


def test_one_deleted_result_trains_that_run_and_no_other(project: Project) -> None:
    project.results()[0].unlink()
    assert project.planned() == {"train": 1, **DRAWN}


def restore(result: Path, throughput: float) -> None:
    """Put another result of the same run in its place, as a backup does: whole, sealed, and with its old times."""
    content = read_sealed(result, "")
    assert content["machine"] == "local"
    content["metrics"]["throughput_samples_per_s"] = throughput
    write_sealed(result, content)
    long_ago = time.time() - 86_400
    os.utime(result, (long_ago, long_ago))


def test_a_result_from_a_backup_is_in_every_table_though_it_is_older_and_nothing_is_trained(project: Project) -> None:
    restore(project.results()[0], 12345.678)
    assert project.planned() == DRAWN
    summary = "results/local/mini/studies/tiny/summary.csv"
    done = project.snakemake(summary)
    assert done.returncode == 0, done.stdout
    assert "12345.678" in (project.folder / summary).read_text()
    assert "summarise" not in project.planned()


def test_the_summary_names_what_is_older_than_its_runs(project: Project) -> None:
    restore(project.results()[0], 12345.678)
    done = project.run("scalestudy", "summary", "--studies", "tiny")
    assert done.returncode == 0, done.stdout
    for file in ("figures/tiny/time.svg", "tables/tiny/times.md", "report.html"):
        assert f"results/local/mini/{file}  (older than its runs)\n" in done.stdout
    assert project.snakemake("all").returncode == 0
    assert "older than its runs" not in project.run("scalestudy", "summary", "--studies", "tiny").stdout


def test_a_campaign_measures_each_run_once_and_judges_its_own_runs(project: Project) -> None:
    done = project.shell("snakemake all --profile profiles/local --config campaign=night_2")
    assert done.returncode == 0, done.stdout
    assert "[4/4] tiny: " in done.stdout
    assert len(list(project.folder.glob("results/local+night_2/runs/*/result.json"))) == 4
    claims = json.loads((project.folder / "results/local+night_2/mini/claims/tiny.json").read_text())
    assert [claim["verdict"] for claim in claims["claims"]] == ["reproduced"]
    assert project.planned() == {}
    assert project.planned("all", "--config", "campaign=night_2") == {}


def test_a_result_with_new_times_and_the_same_content_changes_nothing(project: Project) -> None:
    for number, result in enumerate(project.results()):
        content = result.read_bytes()
        result.unlink()
        result.write_bytes(content)
        os.utime(result, (10**9 + number, 10**9 + number))
    assert project.planned() == {}


def test_from_results_alone_everything_is_drawn_and_nothing_trained(project: Project) -> None:
    for file in (project.folder / "results").rglob("*"):
        if file.is_file() and file.name != "result.json":
            file.unlink()
    shutil.rmtree(project.folder / ".snakemake")
    assert project.planned() == {"study": 1, **DRAWN}


def test_a_deleted_figure_is_drawn_alone_by_its_path(project: Project) -> None:
    figure = "results/local/mini/figures/tiny/time.svg"
    (project.folder / figure).unlink()
    assert project.planned(figure) == {"figure": 1}
    # Called by its path, in an environment that is not activated.
    snakemake = Path(sys.executable).with_name("snakemake")
    done = project.run(str(snakemake), "--profile", "profiles/local", figure, PATH="/usr/bin:/bin")
    assert done.returncode == 0, done.stdout
    assert (project.folder / figure).is_file()


def test_a_figure_of_another_study_is_asked_for_by_a_clear_message(project: Project) -> None:
    done = project.snakemake("-n", "results/local/mini/figures/tinny/time.svg")
    assert done.returncode == 2
    assert "there is no study `tinny`" in done.stdout
    assert "did you mean `tiny`?" in done.stdout
    assert "Traceback" not in done.stdout


def test_an_exported_study_is_drawn_in_a_fresh_clone_without_training(project: Project, tmp_path: Path) -> None:
    done = project.run("scalestudy", "export", "tiny", "--out", "tiny.zip")
    assert done.returncode == 0, done.stdout
    fresh = make_project(tmp_path / "fresh", forked=True)
    done = fresh.run("scalestudy", "import", str(project.folder / "tiny.zip"))
    assert done.returncode == 0, done.stdout
    assert fresh.planned() == {"study": 1, **DRAWN}
    done = fresh.snakemake("results/local/mini/figures/tiny/time.svg")
    assert done.returncode == 0, done.stdout
    drawn = [(clone.folder / "results/local/mini/figures/tiny/time.svg").read_bytes() for clone in (project, fresh)]
    assert drawn[0] == drawn[1]


def test_forget_asks_and_then_trains_that_run_again(project: Project) -> None:
    run = project.results()[0].parent.name
    kept = project.run("scalestudy", "forget", run)
    assert kept.returncode != 0 and len(project.results()) == 4
    done = project.run("scalestudy", "forget", run, "--yes")
    assert done.returncode == 0, done.stdout
    assert len(project.results()) == 3
    assert project.planned() == {"spec": 1, "train": 1, **DRAWN}


def test_forget_names_the_nearest_run(project: Project) -> None:
    run = project.results()[0].parent.name
    done = project.run("scalestudy", "forget", run[:-1] + "x", "--yes")
    assert done.returncode == 2
    assert f"did you mean `{run}`?" in done.stdout
    assert len(project.results()) == 4


def test_a_crashed_run_is_shown_with_the_end_of_its_log_and_named_at_the_end(project: Project) -> None:
    fault = "include: [{strategy: allreduce, ranks: 2, faults: [{kind: killed_rank, rank: 1, at_step: 3}]}]\nscales:"
    project.edit("config/studies/tiny.yaml", "scales:", fault)
    done = project.snakemake("all")
    assert done.returncode == 1
    assert "FAILED train small_cnn.digits.allreduce.x2.r0-" in done.stdout
    assert "rank 1 was killed by signal 9 (SIGKILL), cause unknown; no result is written" in done.stdout
    assert "whole log: results/local/runs/small_cnn.digits.allreduce.x2.r0-" in done.stdout
    [left_out] = [line for line in done.stdout.splitlines() if "1 × tiny: no result: " in line]
    assert "rank 1 was killed by signal 9 (SIGKILL), cause unknown (log: results/local/runs/" in left_out
    assert "\nOf 5 jobs, 1 failed and 4 not done. To resume: snakemake --profile profiles/local all" in done.stdout
    assert len(project.results()) == 4


@pytest.fixture(scope="module")
def skipping(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, str]:
    """A copy with runs that this machine skips, after everything was asked for; and what that said."""
    project = Project(tmp_path_factory.mktemp("skipping") / "clone", forked=True)
    shutil.copytree(finished.folder, project.folder, copy_function=shutil.copy2, symlinks=True)
    there = "" if HAS_GPU else ", {strategy: allreduce, ranks: 2, device: cuda}"
    more = f"include: [{{data.source: image_folder}}{there}]\nscales:"
    project.edit("config/studies/tiny.yaml", "scales:", more)
    done = project.snakemake("all")
    assert done.returncode == 0, done.stdout
    return project, done.stdout


def test_a_skipped_run_does_not_hold_up_a_figure_that_says_so(skipping: tuple[Project, str]) -> None:
    if HAS_GPU:
        pytest.skip("this machine has a GPU")
    project, said = skipping
    assert "skipped: 2 ranks need as many GPUs; this machine has 0" in said
    caption = (project.folder / "results/local/mini/figures/tiny/time.txt").read_text()
    assert "2 of 6 runs missing" in caption
    assert project.planned() == {}


def test_what_was_skipped_is_looked_for_again_once_it_is_forgotten(skipping: tuple[Project, str]) -> None:
    project, said = skipping
    assert "image_folder" in said.partition("Left out:")[2]
    skipped = 1 if HAS_GPU else 2
    assert len(project.results()) == 4 + skipped
    done = project.run("scalestudy", "forget", "--skipped", "--yes")
    assert done.returncode == 0, done.stdout
    assert len(project.results()) == 4
    assert project.planned() == {"dataset": 1, "spec": skipped, "train": skipped, **DRAWN}


def test_measured_runs_go_study_by_study_and_round_by_round(project: Project) -> None:
    project.edit("config/studies/tiny.yaml", "scales:", "repeats: 2\nscales:")
    project.edit("config/studies/tiny.yaml", "ranks: [1, 2]", "ranks: [1]")
    project.study.with_name("first.yaml").write_text(project.study.read_text().replace("epochs: 4", "epochs: 3"))
    done = project.snakemake(*(f"results/local/mini/studies/{study}/runs.parquet" for study in ("tiny", "first")))
    assert done.returncode == 0, done.stdout
    order = [line.split("]")[1] for line in done.stdout.splitlines() if line.startswith("[") and "samples/s" in line]
    rounds = [(line.split(":")[0].strip(), line.split("repeat ")[1][0]) for line in order]
    assert rounds == [("first", "1")] * 2 + [("first", "2")] * 2 + [("tiny", "2")] * 2


def test_wrong_configuration_ends_before_anything_is_made(project: Project) -> None:
    shutil.rmtree(project.folder / "results")
    project.edit("config/studies/tiny.yaml", "model: small_cnn", "modle: small_cnn")
    done = project.snakemake("all")
    assert done.returncode == 2
    assert "config/studies/tiny.yaml:3: base.modle: unknown key" in done.stdout
    assert "did you mean `model`?" in done.stdout and "Traceback" not in done.stdout
    assert not (project.folder / "results").exists()


def test_a_wrong_study_that_is_not_requested_is_named_and_left_out(project: Project) -> None:
    project.study.with_name("other.yaml").write_text("question: How?\nbase: {modle: mlp}\nscales: {mini: {}}\n")
    (project.folder / "results/local/mini/figures/tiny/time.svg").unlink()
    done = project.snakemake("-n", "tiny")
    assert done.returncode == 0, done.stdout
    assert "warning: a study is left out: config/studies/other.yaml:2: base.modle: unknown key" in done.stdout
    for targets in (("all",), ("other",), ("results/local/mini/report.html",)):
        done = project.snakemake("-n", *targets)
        assert done.returncode == 2, done.stdout
        assert "scalestudy: config/studies/other.yaml:2: base.modle: unknown key" in done.stdout
        assert "warning" not in done.stdout


def test_the_drawn_graph_of_a_finished_study_is_that_of_a_fresh_clone(project: Project, tmp_path: Path) -> None:
    drawn = []
    for clone in (project, make_project(tmp_path / "fresh", forked=True)):
        lines = clone.snakemake("tiny", "--rulegraph").stdout.partition("digraph")[2].splitlines()
        drawn.append(sorted(re.findall(r'label *= *"(\w+)', "\n".join(lines))))
    assert drawn[0] == drawn[1]
    assert {"dataset", "spec", "study", "train"} <= set(drawn[0])


@pytest.mark.parametrize(
    "command",
    ["scalestudy check", "scalestudy claims", "scalestudy plan tiny", "snakemake --profile profiles/local -n tiny"],
)
def test_a_file_that_can_be_no_study_stops_no_command(project: Project, command: str) -> None:
    project.study.with_name("Bad-Name.yaml").write_text("question: How?\n")
    done = project.shell(command)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("width", [500, 1200])
def test_the_report_loads_whole_and_fits_its_window_in_a_browser(finished: Project, tmp_path: Path, width: int) -> None:
    with chromium(tmp_path / "profile") as browser:
        browser.open(finished.folder / "results/local/mini/report.html", width=width)
        assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
        assert browser.ask("[...document.images].map(image => image.naturalWidth > 0)") == [True, True]


def test_a_spec_that_was_edited_is_refused_and_nothing_is_trained(project: Project) -> None:
    result = project.results()[0]
    result.unlink()
    project.edit(
        result.with_name("spec.json").relative_to(project.folder), '"learning_rate":0.05', '"learning_rate":0.1'
    )
    done = project.run("scalestudy", "train", "--out", str(result.relative_to(project.folder)))
    assert done.returncode == 2
    assert "describes another run than its folder names" in done.stdout
    assert not result.exists()
