"""What a driver lacks is said before Snakemake begins, in one message."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalestudy import dag
from scalestudy.dag.dryrun import plan_of
from scalestudy.errors import UserError
from snakemake_executor_plugin_multinode import ExecutorSettings, preflight


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project on a disk whose last bytes are taken: what is written comes to its end with ENOSPC."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Snakefile").touch()
    (tmp_path / "profiles/local").mkdir(parents=True)
    (tmp_path / "profiles/local/config.yaml").touch()

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)


SAID = ".snakemake: No space left on device: Snakemake keeps its records there, also of a dry run\n    free some space there"


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    assert preflight.unwritable(tmp_path / "new") is None
    assert list((tmp_path / "new").iterdir()) == []


def test_what_is_in_the_way_of_the_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    why = preflight.unwritable(tmp_path / "file/below")
    assert why is not None
    assert why.startswith(f"{tmp_path}/file/below: Not a directory: ")
    assert why.endswith("then run the same command again")


@pytest.mark.usefixtures("full")
def test_an_executor_that_is_chosen_refuses_at_once() -> None:
    with pytest.raises(SystemExit) as end:
        ExecutorSettings()
    assert str(end.value.code).startswith(f"multinode: {SAID}")
    assert list(Path(".snakemake").iterdir()) == []


@pytest.mark.usefixtures("full")
def test_the_snakefile_ends_with_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        dag.read_project({}, SimpleNamespace(is_main_process=True))
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"scalestudy: {SAID}")


@pytest.mark.usefixtures("full")
def test_a_plan_ends_with_the_message() -> None:
    with pytest.raises(UserError) as caught:
        plan_of([], "profiles/local")
    assert str(caught.value).startswith(SAID)


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [
        (resource.RLIMIT_NOFILE, 24, "Too many open files: the limit is 24, and a driver needs 64\n    ulimit -n 4096"),
        (resource.RLIMIT_AS, 64 << 20, "memory runs out: of an address space of 64 MiB Snakemake alone takes "),
    ],
)
def test_a_limit_that_is_too_low_is_said(
    limit: int, value: int, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    of_system = resource.getrlimit
    monkeypatch.setattr(resource, "getrlimit", lambda which: (value, value) if which == limit else of_system(which))
    why = preflight.refusal()
    assert why is not None
    assert why.startswith(said)
    assert why.endswith("then run the same command again")


def test_nothing_is_said_where_nothing_is_in_the_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert preflight.refusal() is None
