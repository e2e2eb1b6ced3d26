"""A study's results by their content: what was restored counts as new, and what is unchanged is not read again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from scalestudy.analysis.summarise import summarise
from scalestudy.results import freshness
from scalestudy.results.stored import write_result
from scalestudy.spec.layout import result_file
from scalestudy.spec.study import Study
from tests.unit.analysis.fake_results import MACHINE, result_of, write_results

LONG_AGO = 10**9


def current(study: Study) -> str:
    return freshness.digest(freshness.of_study(study, MACHINE))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The results that are read whole, from now on."""
    found: list[Path] = []
    digest = freshness.sha256_file

    def counted(file: Path) -> str:
        found.append(file)
        return digest(file)

    monkeypatch.setattr(freshness, "sha256_file", counted)
    return found


def test_a_result_with_an_older_time_of_change_and_other_content_counts_as_new(study: Study) -> None:
    write_results(study)
    summarise(study, MACHINE)
    before, run = current(study), study.runs[1]
    write_result(result_file(MACHINE, run.id), result_of(run, throughput_samples_per_s=77.0))
    os.utime(result_file(MACHINE, run.id), (LONG_AGO, LONG_AGO))
    assert current(study) != before


def test_even_a_result_of_the_same_size_and_time_counts_as_new(study: Study) -> None:
    write_results(study)
    summarise(study, MACHINE)
    before, file = current(study), result_file(MACHINE, study.runs[0].id)
    stat = file.stat()
    file.write_bytes(file.read_bytes().replace(b'"valid"', b'"VALID"'))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert current(study) != before


def test_a_result_that_is_gone_counts_as_a_change(study: Study) -> None:
    write_results(study)
    summarise(study, MACHINE)
    before = current(study)
    result_file(MACHINE, study.runs[0].id).unlink()
    assert current(study) != before


def test_of_results_that_did_not_change_none_is_read_and_of_those_touched_only_they(
    study: Study, reads: list[Path]
) -> None:
    write_results(study)
    summarise(study, MACHINE)
    assert len(reads) == len(study.runs)
    reads.clear()
    before = current(study)
    assert reads == []
    touched = result_file(MACHINE, study.runs[2].id)
    os.utime(touched)
    assert (current(study), reads) == (before, [touched])


@pytest.mark.parametrize("content", [None, "", "[]", "[1, 2]", '{"a": 7}', '{"a": []}', '{"a": ["x"]}', "\x00"])
def test_what_is_kept_is_only_a_cache(study: Study, content: str | None, reads: list[Path]) -> None:
    write_results(study)
    before = current(study)
    summarise(study, MACHINE)
    (kept,) = freshness.FOLDER.rglob("*.json")
    if content is None:
        kept.unlink()
    else:
        kept.write_text(content)
    assert freshness.is_current(study, MACHINE)
    reads.clear()
    assert current(study) == before
    assert len(reads) == len(study.runs)


def test_a_copied_project_has_the_same_content(
    study: Study, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_results(study)
    files = summarise(study, MACHINE)
    before, tables = current(study), [file.read_bytes() for file in files]
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(tmp_path, elsewhere, copy_function=shutil.copyfile)
    monkeypatch.chdir(elsewhere)
    assert current(study) == before
    assert [file.read_bytes() for file in summarise(study, MACHINE)] == tables
