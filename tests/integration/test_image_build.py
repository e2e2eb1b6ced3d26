"""An image is built from envs/ and a run is made in it, where a builder works and it is asked for: gigabytes, minutes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASKED_BY = "SCALESTUDY_BUILD_IMAGES"
BUILD_S, RUN_S, ASK_S = 3600, 300, 30
RUN = ("scalestudy", "try", "ranks=2", "train.epochs=1", "--out", "/tmp/out")


@dataclass(frozen=True)
class Builder:
    """A program that builds images: a question that it answers where it works, and its words; `{image}` is a name or file."""

    program: str
    works: tuple[str, ...]
    build: tuple[str, ...]
    run: tuple[str, ...]
    remove: tuple[str, ...] = ()


OF_DOCKERFILE = ("-f", "envs/Dockerfile", "-t", "{image}", ".")
BUILDERS = (
    Builder("docker", ("info",), ("build", *OF_DOCKERFILE), ("run", "--rm", "--shm-size=1g", "{image}"), ("rmi", "{image}")),
    Builder("podman", ("info",), ("build", *OF_DOCKERFILE), ("run", "--rm", "--shm-size=1g", "{image}"), ("rmi", "{image}")),
    Builder("apptainer", ("--version",), ("build", "{image}", "envs/scalestudy.def"), ("exec", "--cleanenv", "{image}")),
    Builder("singularity", ("--version",), ("build", "{image}", "envs/scalestudy.def"), ("exec", "--cleanenv", "{image}")),
)  # fmt: skip


def builder(builders: tuple[Builder, ...] = BUILDERS) -> Builder | None:
    """The first that works here: a client of Docker without its daemon does not."""
    return next((one for one in builders if shutil.which(one.program) and _said(one, one.works, ASK_S)[0] == 0), None)


def _said(one: Builder, words: tuple[str, ...], limit_s: float, image: str = "") -> tuple[int, str]:
    command = [one.program, *(word.format(image=image) for word in words)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, f"{' '.join(command)} took more than {limit_s:g} s"
    return done.returncode, done.stdout


@pytest.fixture
def image(tmp_path: Path) -> Iterator[tuple[Builder, str]]:
    """An image that was built from envs/, gone after the test; skipped with the reason where none is to be built."""
    if os.environ.get(ASKED_BY) != "1":
        pytest.skip(f"building an image takes minutes and gigabytes: set {ASKED_BY}=1 to have it built")
    one = builder()
    if one is None:
        pytest.skip(f"none of {', '.join(one.program for one in BUILDERS)} works here")
    name = str(tmp_path / "scalestudy.sif") if not one.remove else f"scalestudy-test:{os.getpid()}"
    status, said = _said(one, one.build, BUILD_S, name)
    assert status == 0, said[-5000:]
    yield one, name
    if one.remove:
        _said(one, one.remove, ASK_S, name)


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S + RUN_S)
def test_the_image_of_envs_is_built_and_a_run_is_made_in_it(image: tuple[Builder, str]) -> None:
    one, name = image
    status, said = _said(one, (*one.run, *RUN), RUN_S, name)
    assert status == 0, said[-5000:]
    assert "Training loss" in said


def test_a_client_without_its_daemon_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program, status in (("docker", 1), ("podman", 0)):
        (tmp_path / program).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = builder()
    assert found is not None and found.program == "podman"
    assert builder(BUILDERS[:1]) is None
