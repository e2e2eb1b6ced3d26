"""What each change makes Snakemake do again: never a finished run."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalestudy.files import read_json, write_json
from tests.integration.project import Project, jobs_in, make_project

FIGURE = "results/local/mini/figures/tiny/time.svg"
DRAWN = {"summarise": 1, "figure": 1, "table": 1, "judge": 1, "report": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose four runs, figures, table and report were really made."""
    project = make_project(tmp_path_factory.mktemp("finished") / "clone", forked=True)
    project.make("all")
    return project


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Iterator[Project]:
    """A copy of the finished project, times of files kept, to change at will."""
    copy = tmp_path / "clone"
    shutil.copytree(finished.folder, copy, copy_function=shutil.copy2, symlinks=True)
    yield Project(copy, forked=True)
    shutil.rmtree(copy, ignore_errors=True)


def test_a_mistyped_target_is_answered_by_one_sentence_with_the_nearest_name(finished: Project) -> None:
    done = finished.snakemake("tinny")
    assert done.returncode == 1
    assert "there is no rule, study or file `tinny`\n    did you mean `tiny`?" in done.stdout
    assert "Exception" not in done.stdout
    done = finished.snakemake("--config", "scale=mini", "all")
    assert done.returncode == 1
    assert "(Unparsable value: 'all')\n    --config takes all words up to the next option" in done.stdout
    assert "Traceback" not in done.stdout


def test_changes_of_the_command_line_are_in_what_is_drawn_and_fix_no_claim(project: Project) -> None:
    done = project.make("tiny", "--config", "set=strategy=allreduce")
    assert len(project.results()) == 4
    assert "tiny: 2 valid of 2 runs" in done
    assert "halving_doubling" not in (project.folder / "results/local/mini/studies/tiny/summary.csv").read_text()
    assert project.planned() == DRAWN
    project.make("claims")
    (claim,) = project.verdicts("tiny")
    assert (claim["verdict"], claim["changed_after_measuring"]) == ("reproduced", False)


def test_a_change_makes_again_what_shows_it_and_neither_it_nor_a_move_of_the_clone_trains_anything(
    project: Project, tmp_path: Path
) -> None:
    code = project.with_own_code().code / "scalestudy"

    def change(module: str) -> None:
        (code / module).write_text((code / module).read_text() + "\n# another line\n")

    change("training/trainer.py")
    project.edit("workflow/rules/train.smk", "scalestudy train --out", "scalestudy  train  --out")
    project.edit("workflow/rules/train.smk", "rule train:", "# a comment\nrule train:")
    project.study.write_text(project.study.read_text() + "# a comment\n")
    assert project.planned() == {}
    project.edit("config/studies/tiny.yaml", "equals: valid", "equals: skipped")
    assert project.planned() == {"judge": 1, "report": 1}
    project.make("claims")
    (claim,) = project.verdicts("tiny")
    assert (claim["verdict"], claim["changed_after_measuring"]) == ("not reproduced", True)
    change("figures/style.py")
    assert project.planned() == {"figure": 1, "table": 1, "judge": 1, "report": 1}
    project.edit("config/studies/tiny.yaml", "label: HD", "label: Halving-doubling")
    assert project.planned() == DRAWN
    moved = Project(project.folder.rename(tmp_path / "elsewhere"), forked=True)
    assert "train" not in moved.planned()


WITHOUT_PROFILE = ("--cores", "1", "--workflow-profile", "none")
HARM = {
    "purged data": ("rm -r results/data", (*WITHOUT_PROFILE, "--rerun-incomplete", "--forcerun", "train")),
    "newer inputs and begun marks": (
        "touch -d '+1 hour' results/data/*/manifest.json; "
        "for spec in results/local/runs/*/spec.json; do sed -i 's/}$/, \"more\":1}/' $spec; touch -d '+1 hour' $spec; done; "
        "cd .snakemake && mkdir -p incomplete && for f in ../results/local/runs/*/result.json; "
        "do touch incomplete/$(printf %s ${f#../} | base64 -w0); done",
        ("--profile", "profiles/local", "--rerun-triggers", "code", "input", "params"),
    ),
    "a lost .snakemake, called from elsewhere": (
        "rm -r .snakemake", ("-s", "clone/workflow/Snakefile", "-d", "clone", "--cores", "1")
    ),
    "only results": ("find results -type f ! -name result.json -delete; rm -r .snakemake", WITHOUT_PROFILE),
}  # fmt: skip
"""What happens to a finished project, and the options of the call that follows."""


@pytest.mark.parametrize("harm", HARM)
def test_no_finished_run_is_planned_again(project: Project, harm: str) -> None:
    command, options = HARM[harm]
    project.must("bash", "-c", command)
    place = Project(project.folder.parent, forked=True) if "-s" in options else project
    done = place.must("snakemake", "tiny", "-n", *options)
    assert not {"train", "dataset"} & set(jobs_in(done))


def test_files_whose_driver_was_killed_while_they_were_written_hide_nothing_that_is_made_from_them(
    project: Project,
) -> None:
    project.results()[0].unlink()
    files = "results/local/mini/studies/tiny/study.json results/data/*/manifest.json"
    mark = f"for file in {files}; do touch .snakemake/incomplete/$(printf %s $file | base64 -w0); done"
    project.must("bash", "-c", f"mkdir -p .snakemake/incomplete; {mark}")
    assert project.planned().items() >= {"train": 1, **DRAWN}.items()


def test_a_job_of_a_run_that_has_its_result_keeps_it(project: Project) -> None:
    """A second driver may have planned it before the first one ended, or its scheduler has started it again."""
    result = project.results()[0]
    before, written_ns = result.read_bytes(), result.stat().st_mtime_ns
    file = str(result.relative_to(project.folder))
    project.must("snakemake", "--force", file, *WITHOUT_PROFILE)
    assert result.stat().st_mtime_ns > written_ns, "the job ran"
    assert result.read_bytes() == before


def test_a_full_disk_leaves_no_part_of_a_spec_that_counts_as_whole(project: Project, tmp_path: Path) -> None:
    lost = project.results()[0].parent
    shutil.rmtree(lost)
    full = tmp_path / "full_disk.sh"
    full.write_text("case $BASH_EXECUTION_STRING in *printf*) trap '' XFSZ; ulimit -f 0 ;; esac\n", encoding="utf-8")
    done = project.snakemake("tiny", BASH_ENV=str(full))
    assert done.returncode == 1
    assert "FAILED spec" in done.stdout
    assert project.planned() == {"spec": 1, "train": 1, **DRAWN}


def test_one_deleted_result_trains_that_run_alone_whose_time_is_known_from_repeats_and_whose_spec_was_not_edited(
    project: Project,
) -> None:
    lost = project.results()[0]
    lost.unlink()
    assert project.planned() == {"train": 1, **DRAWN}
    file = str(lost.relative_to(project.folder))
    project.must("scalestudy", "plan", file, "--json", "plan.json")
    jobs = json.loads((project.folder / "plan.json").read_text())["jobs"]
    assert [job["source"] for job in jobs if job["rule"] == "train"] == ["repeats"]
    project.edit(lost.with_name("spec.json"), '"learning_rate":0.05', '"learning_rate":0.1')
    done = project.run("scalestudy", "train", "--out", file)
    assert done.returncode == 2
    assert "describes another run than its folder names" in done.stdout
    assert not lost.exists()


def test_a_result_from_a_backup_is_in_every_table_though_it_is_older_and_nothing_is_trained(project: Project) -> None:
    result = project.results()[0]
    content = read_json(result)
    content["metrics"]["throughput_samples_per_s"] = 12345.678
    write_json(result, content)
    os.utime(result, (time.time() - 86_400,) * 2)
    assert project.planned() == DRAWN
    summary = "results/local/mini/studies/tiny/summary.csv"
    project.make(summary)
    assert "12345.678" in (project.folder / summary).read_text()
    assert "summarise" not in project.planned()


def test_a_campaign_measures_each_run_once_and_judges_its_own_runs(project: Project) -> None:
    for axis, value in (("[{value: halving_doubling, label: HD}, allreduce]", "[allreduce]"), ("[1, 2]", "[1]")):
        project.edit("config/studies/tiny.yaml", axis, value)
    done = project.make("all", "--config", "campaign=night_2")
    assert "[1/1] tiny: " in done
    assert len(list(project.folder.glob("results/local+night_2/runs/*/result.json"))) == 1
    claims = json.loads((project.folder / "results/local+night_2/mini/claims/tiny.json").read_text())
    assert [claim["verdict"] for claim in claims["claims"]] == ["reproduced"]
    assert len(project.results()) == 4
    assert project.planned("all", "--config", "campaign=night_2") == {}


def test_an_exported_study_is_drawn_where_it_is_unpacked_without_training(project: Project, tmp_path: Path) -> None:
    """By the path of a figure, in an environment that is not activated."""
    project.must("scalestudy", "export", "tiny", "--out", "tiny.zip")
    fresh = Project(tmp_path / "fresh", forked=True)
    shutil.unpack_archive(project.folder / "tiny.zip", fresh.folder)
    assert not {"train", "dataset", "prepare"} & set(fresh.planned())
    snakemake = str(Path(sys.executable).with_name("snakemake"))
    fresh.must(snakemake, "--profile", "profiles/local", FIGURE, PATH="/usr/bin:/bin")
    assert (fresh.folder / FIGURE).read_bytes() == (project.folder / FIGURE).read_bytes()


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
    assert "\nOf 4 jobs, 1 failed and 3 not done. To resume: snakemake --profile profiles/local all" in done.stdout
    assert len(project.results()) == 4


def test_a_skipped_run_holds_up_no_figure_and_is_planned_once_what_its_reason_asks_for_is_there(
    project: Project,
) -> None:
    project.edit("config/studies/tiny.yaml", "scales:", "include: [{data.source: image_folder}]\nscales:")
    done = project.make("all")
    asked = "skipped: no folder of image_folder is configured: set data.root, or data_roots.image_folder in "
    assert asked in done
    assert "image_folder" in done.partition("Left out:")[2]
    assert "1 of 5 runs missing" in (project.folder / FIGURE).with_suffix(".txt").read_text()
    assert project.planned() == {}
    site = project.folder / "profiles/local/site.yaml"
    site.write_text(f"{site.read_text()}\ndata_roots: {{image_folder: {project.folder}}}\n")
    assert project.planned() == {"dataset": 1, "train": 1, **DRAWN}, "it may be there now"
