"""Real schedulers for the tests: one box per scheduler and session, ended whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest

from tests.cluster.box import Box, Unavailable
from tests.cluster.pbs_box import PbsBox
from tests.cluster.sge_box import SgeBox
from tests.cluster.slurm_box import HarshSlurmBox, SlurmBox
from tests.cluster.workflow import ROOT

B = TypeVar("B", bound=Box)


def _box(kind: type[B]) -> Iterator[B]:
    try:
        box = kind(ROOT)  # type: ignore[call-arg]
    except Unavailable as why:
        pytest.skip(f"no real scheduler: {why}")
    try:
        yield box
    finally:
        box.stop()


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmBox]:
    """A private Slurm of four nodes."""
    yield from _box(SlurmBox)


@pytest.fixture(scope="session")
def harsh_slurm() -> Iterator[HarshSlurmBox]:
    """A private Slurm that keeps no accounts and forgets at once."""
    yield from _box(HarshSlurmBox)


@pytest.fixture(scope="session")
def sge() -> Iterator[SgeBox]:
    """A private Grid Engine of two hosts."""
    yield from _box(SgeBox)


@pytest.fixture(scope="session")
def pbs() -> Iterator[PbsBox]:
    """A private OpenPBS of two hosts."""
    yield from _box(PbsBox)
