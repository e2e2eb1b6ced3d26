"""The site file: keys of the executor and of the project in one model, words as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.errors import UserError
from scalestudy.spec.config import Site, read_site
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
    assert site.scheduler is not None and site.container is not None
    assert (site.scheduler.account, site.scheduler.options) == ("00123", ("--time", "1:30:00", "1e3"))
    assert (site.container.image, site.staged_gib, site.prepare) == ("007", 20, "driver")


@pytest.mark.parametrize(
    ("text", "where", "remedy"),
    [
        ("scratch: /tmp\nscheduler:\n  que: x\n", ":3: scheduler.que", "did you mean `queue`?"),
        ("schedular: {kind: pbs}\n", ":1: schedular", "did you mean `scheduler`?"),
        ("container:\n  image: a\n  binds: [x]\n", ":3: container.binds", "did you mean `bind`?"),
    ],
)
def test_an_unknown_key_is_named_with_its_line_and_the_nearest(file: Path, text: str, where: str, remedy: str) -> None:
    file.write_text(text)
    with pytest.raises(UserError) as error:
        read_site()
    assert error.value.where == f"{file}{where}"
    assert error.value.remedy == remedy


def test_a_site_without_a_file_submits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALESTUDY_SITE", raising=False)
    assert read_site() == Site()
    assert read_site().scheduler is None
