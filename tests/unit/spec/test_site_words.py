"""The site file: keys of the executor and of the project in one model, words as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.dag.project import Project
from scalestudy.errors import UserError
from scalestudy.spec.config import read_site
from snakemake_executor_plugin_multinode.site import Site as SiteOfJobs
from snakemake_executor_plugin_multinode.site import read_site as read_by_executor


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCALESTUDY_SITE", str(tmp_path / "site.yaml"))
    return tmp_path / "site.yaml"


def test_both_packages_read_the_same_scheduler_and_software(file: Path) -> None:
    file.write_text(
        "scheduler: {kind: slurm, account: 00123, options: [--time, 1:30:00, 1e3]}\n"
        "modules: [cuda/12.0]\ncontainer: {image: 007, bind: [/data]}\nstaged_gib: 20\nprepare: driver\n"
    )  # fmt: skip
    site, of_jobs = read_site(), read_by_executor(file)
    assert {name: getattr(site, name) for name in SiteOfJobs.model_fields} == dict(of_jobs)
    assert (site.scheduler.account, site.scheduler.options) == ("00123", ("--time", "1:30:00", "1e3"))
    assert (site.container.image, site.staged_gib, site.prepare) == ("007", 20, "driver")


def test_the_workflow_reads_the_site_of_its_profile_as_jobs_do(project: Path) -> None:
    (project / "config/studies/a.yaml").write_text("question: How?\nscales: {mini: {}}\n")
    site = project / "site of lab.yaml"
    with pytest.raises(UserError, match=r"site of lab\.yaml: cannot be read: No such file"):
        Project({"site": str(site)})
    site.write_text("scheduler: {kind: slurm, account: 12345, options: [-A, 7]}\nprepare: driver\n")
    assert Project({"site": str(site)}).prepares_data


def test_a_run_by_hand_finds_the_data_of_the_local_profile_and_a_job_does_not(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SCALESTUDY_SITE", "MULTINODE_JOB", "SLURM_JOB_ID", "PBS_JOBID", "JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    file = here / "profiles/local/site.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("launcher: local\ndata_roots: {image_folder: ~/images}\n")
    assert (read_site().data_roots, read_site().launcher) == ({"image_folder": "~/images"}, "auto")
    file.write_text("data_root: {image_folder: ~/images}\n")
    with pytest.raises(UserError, match=r"site\.yaml:1: data_root: unknown key\n    did you mean `data_roots`"):
        read_site()
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert read_site().data_roots == {}
