"""A handful of the inputs through real processes: the installed command, and Snakemake."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scalestudy.errors import UNSEEN
from tests.hostile import test_configuration, test_exports, test_settings, test_studies
from tests.hostile.harness import Case, changes, digest, raw

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
SET = ("snakemake", "-n", "--cores", "1", "--config")


def case_of(cases: list[Case], name: str) -> Case:
    return next(case for case in cases if case.name == name)


COMMANDS: dict[str, tuple[Case, tuple[str, ...]]] = {
    "check": (case_of(test_studies.CASES, "aliases that multiply"), ("scalestudy", "check")),
    "try": (case_of(test_settings.SETTINGS, "brackets without end"), ("scalestudy", "try", "--out", "made")),
    "import": (case_of(test_exports.CASES, "a path above"), ("scalestudy", *test_exports.IMPORT)),
    "site": (case_of(test_configuration.SITES, "a pipe"), ("scalestudy", *test_configuration.PREPARE)),
}


def real(words: tuple[str, ...], project: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    environment.pop("SCALESTUDY_WARM", None)
    return subprocess.run(words, cwd=project, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_real_process_refuses_as_the_same_command_does_here(
    name: str, project: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    case, words = COMMANDS[name]
    if name == "site":
        monkeypatch.setenv("SCALESTUDY_SITE", str(project / test_configuration.SITE))
    case.make(project)
    before = digest(project.parent)
    done = real((*words, *case.words), project)
    for key, value in (("case", f"{name}: {case.name}"), ("said", done.stderr), ("before", "")):
        record_property(key, value)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and case.says in done.stderr and not UNSEEN.search(done.stderr)
    assert changes(before, digest(project.parent), ["project/made", "project/results"]) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("set=5", "--config set: must be settings of studies, not `5`"),
        ("scale=big", "--config scale: `big` is not valid here"),
        ("machine=../../outside/diary", "--config machine: must be a word"),
    ],
)
def test_snakemake_says_what_is_wrong_with_a_word_of_config_in_one_message(
    word: str, says: str, project: Path, record_property: Callable[[str, object], None]
) -> None:
    raw("Snakefile", (ROOT / "Snakefile").read_bytes())(project)
    for folder in ("workflow", "profiles/default"):
        (project / folder).parent.mkdir(exist_ok=True)
        (project / folder).symlink_to(ROOT / folder)
    done = real((*SET, word), project)
    for key, value in (("case", f"snakemake --config {word}"), ("said", done.stderr[-1000:]), ("before", "")):
        record_property(key, value)
    assert done.returncode != 0
    assert says in done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout
