"""The families of MPI: told apart by what their launchers say, and started as each understands it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from scalestudy.errors import Skipped
from scalestudy.launch import mpi
from scalestudy.launch.resolve import resolve
from scalestudy.spec.config import Site
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec

VERSIONS = {
    "Open MPI": "mpirun (Open MPI) 4.1.4",
    "MPICH": "HYDRA build details:\n    Version:                                 4.0.2",
    "Intel MPI": "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005 (id: 74c4a23)",
}


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, says: str) -> None:
    (folder / "mpirun").write_text(f"#!/bin/sh\ncat <<'.'\n{says}\n.\n")
    (folder / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("name", "here", "there"),
    [
        (
            "Open MPI",
            "-np 2 --map-by ppr:2:node:oversubscribe --bind-to none",
            "-np 4 --map-by ppr:2:node:oversubscribe --bind-to none --host a:2,b:2",
        ),
        ("MPICH", "-n 2 -ppn 2 -hosts localhost", "-n 4 -ppn 2 -hosts a,b"),
        ("Intel MPI", "-n 2 -ppn 2 -hosts localhost", "-n 4 -ppn 2 -hosts a,b"),
    ],
)
def test_each_family_is_started_in_its_own_words(
    name: str, here: str, there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    installed(monkeypatch, tmp_path, VERSIONS[name])
    family = mpi.family("mpirun")
    assert family is not None and family.name == name
    assert mpi.words("mpirun", 2, 2, ()) == ["mpirun", *here.split()]
    assert mpi.words("mpirun", 4, 2, ("a", "b")) == ["mpirun", *there.split()]


def of(strategy: dict[str, str]) -> RunSpec:
    return RunSpec.model_validate_json(json.dumps({"strategy": strategy, "ranks": 2}))


def test_a_launcher_of_no_known_family_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py")
    installed(monkeypatch, tmp_path, VERSIONS["MPICH"])
    resolve(of({"name": "mpi_allreduce"}), Machine(), Site())
    installed(monkeypatch, tmp_path, "some other launcher 1.0")
    with pytest.raises(Skipped, match=r"needs the mpirun of Open MPI or Intel MPI or MPICH; .* is none of these"):
        resolve(of({"name": "mpi_allreduce"}), Machine(), Site())
