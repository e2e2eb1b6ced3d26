"""What jobs would download: said before anything is submitted, and fetched beforehand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalestudy.dag import downloads
from scalestudy.dag.project import Project
from scalestudy.data.catalogue import FashionMNIST
from scalestudy.data.sources import fashion_mnist
from scalestudy.errors import Skipped
from scalestudy.spec.config import Site
from scalestudy.spec.run import RunSpec
from scalestudy.strategies import horovod_build

FASHION = FashionMNIST(source="fashion_mnist")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the user, and no network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SCALESTUDY_OFFLINE", "1")
    monkeypatch.setattr(fashion_mnist, "PACKAGED", tmp_path / "package")
    return tmp_path / "cache" / "scalestudy"


def fill(folder: Path, suffix: str = "") -> None:
    folder.mkdir(parents=True)
    for name in fashion_mnist.FILES:
        (folder / f"{name}{suffix}").write_bytes(b"x")


def test_data_in_a_named_folder_or_in_the_cache_is_not_downloaded_and_a_package_of_this_host_is_no_help_to_nodes(
    cache: Path, tmp_path: Path
) -> None:
    fill(tmp_path / "package", ".gz")
    assert not fashion_mnist.is_fetched(FASHION, Site())
    assert fashion_mnist.is_fetched(FashionMNIST(source="fashion_mnist", root="/data"), Site())
    assert fashion_mnist.is_fetched(FASHION, Site(data_roots={"fashion_mnist": "/data"}))
    fill(cache / "fashion_mnist")
    assert fashion_mnist.is_fetched(FASHION, Site())


def test_a_package_of_this_host_is_copied_to_where_jobs_look(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "package", ".gz")
    monkeypatch.setattr(fashion_mnist, "_read", lambda folder: None)  # its contents are another test's
    assert fashion_mnist.fetch_for_jobs() == cache / "fashion_mnist"
    assert sorted(path.name for path in (cache / "fashion_mnist").iterdir()) == sorted(
        f"{name}.gz" for name in fashion_mnist.FILES
    )
    assert fashion_mnist.is_fetched(FASHION, Site())


def test_without_network_and_package_the_reason_is_said() -> None:
    with pytest.raises(Skipped, match="SCALESTUDY_OFFLINE=1 forbids fetching it"):
        fashion_mnist.fetch_for_jobs()


def test_a_build_takes_what_was_fetched_and_asks_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    assert horovod_build._fetched() == []
    folder = horovod_build.downloads()
    folder.mkdir(parents=True)
    (folder / horovod_build.ARCHIVE).write_bytes(b"")
    assert horovod_build.are_fetched()
    assert horovod_build._fetched() == ["--no-index", "--find-links", str(folder)]


class OfStudies:
    """As much of a project as is asked for: one dataset, and a study's name."""

    chosen = (SimpleNamespace(name="clothes"),)
    config = SimpleNamespace(studies=("clothes",), scale="paper")

    def __init__(self, site: Path | None) -> None:
        self.site = site
        self.runs = SimpleNamespace(run_with=self._run_with)

    @staticmethod
    def _run_with(dataset: str) -> Any:
        return SimpleNamespace(spec=RunSpec.model_validate({"data": {"source": dataset}}))


def about_to_submit(local: bool = False) -> Any:
    """As much of Snakemake's workflow as is asked for: a job that prepares data, and one that builds Horovod."""
    jobs = [("dataset", "fashion_mnist"), ("dataset", "digits"), ("horovod", ""), ("train", "")]
    made = [
        SimpleNamespace(rule=SimpleNamespace(name=rule), wildcards=SimpleNamespace(dataset=dataset))
        for rule, dataset in jobs
    ]
    return SimpleNamespace(local_exec=local, dag=SimpleNamespace(needrun_jobs=lambda: made))


def test_what_jobs_would_download_is_said_before_they_are_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    downloads.say_downloads(about_to_submit(), OfStudies(None))  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "jobs will download Fashion-MNIST (31 MB), and the sources of Horovod" in said
    assert "scalestudy fetch clothes --config scale=paper" in said
    downloads.say_downloads(about_to_submit(local=True), OfStudies(None))  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""


def test_where_nodes_have_no_internet_nothing_is_submitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("internet: false\n")
    with pytest.raises(SystemExit) as stopped:
        downloads.say_downloads(about_to_submit(), OfStudies(site))  # type: ignore[arg-type]
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert f"{site}: jobs would download Fashion-MNIST" in said
    assert f"scalestudy fetch clothes --profile {tmp_path}" in said
    site.write_text("internet: false\ndata_roots: {fashion_mnist: /data}\n")
    folder = horovod_build.downloads()
    folder.mkdir(parents=True)
    (folder / horovod_build.ARCHIVE).write_bytes(b"")
    downloads.say_downloads(about_to_submit(), OfStudies(site))  # type: ignore[arg-type]


def test_of_shipped_studies_only_what_is_not_finished_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    project = Project({"studies": "gpu_scaling", "machine": "gpu_cluster", "scale": "paper"})
    runs = [run for study in project.chosen for run in study.runs]
    assert any(run.spec.strategy.needs_build for run in runs)
    wanted = downloads.of_runs(runs, "gpu_cluster", Site())
    assert [each.what.partition(" ")[0] for each in wanted] == ["the"]
    monkeypatch.setattr(downloads, "result_file", lambda machine, run: tmp_path)
    assert downloads.of_runs(runs, "gpu_cluster", Site()) == []
