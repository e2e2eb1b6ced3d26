"""The site's `modules`, tried by the doctor with the real program: Environment Modules, as Debian has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalestudy.errors import UserError
from snakemake_executor_plugin_multinode.site import SchedulerSettings
from tests.unit.cluster.test_doctor import run_probe_job

INIT = Path("/usr/share/modules/init/bash")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules with one that brings an MPI, and no function `module` in the environment."""
    if not INIT.is_file():
        pytest.skip(f"there is no {INIT} here (Debian: environment-modules)")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mpirun").write_text("#!/bin/sh\necho 'mpirun (Open MPI) 9.9.9'\n")
    (tmp_path / "bin/mpirun").chmod(0o755)
    (tmp_path / "modules/mpi").mkdir(parents=True)
    (tmp_path / "modules/mpi/9.9").write_text(f"#%Module1.0\nprepend-path PATH {tmp_path}/bin\n")
    monkeypatch.setenv("MODULEPATH", str(tmp_path / "modules"))
    for name in ("MODULESHOME", "LOADEDMODULES", "_LMFILES_", "BASH_ENV", "BASH_FUNC_module%%"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SCALESTUDY_SITE", str(tmp_path / "site.yaml"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examined(folder: Path, site: str) -> int:
    """The exit status of the doctor's own job script, run by bash; no scheduler takes part."""
    (folder / "site.yaml").write_text(site + "\n")
    return run_probe_job(folder, SchedulerSettings(kind="slurm"))


@pytest.mark.slow
def test_what_a_module_brings_is_what_the_node_is_found_to_have(folder: Path) -> None:
    assert examined(folder, "modules: [mpi/9.9]") == 0, (folder / "job.log").read_text()
    (report,) = [json.loads(file.read_text()) for file in folder.glob("node.*.json")]
    assert report["mpi"] == "mpirun (Open MPI) 9.9.9"


def test_a_module_that_is_not_there_is_named_with_the_programs_own_words(folder: Path) -> None:
    with pytest.raises(UserError) as error:
        examined(folder, "modules: [mpi/9.9, mpi/8.8]")
    assert "`modules` fails on" in error.value.what
    assert "`module load mpi/8.8` ends with exit status 1" in error.value.what
    assert "Unable to locate a modulefile for 'mpi/8.8'" in error.value.what
    assert error.value.where == "site.yaml"
