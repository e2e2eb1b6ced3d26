from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from scalestudy.cli import run_command
from scalestudy.data import progress
from scalestudy.data.load.dataset import open_dataset
from scalestudy.data.manifest import bulk_folder, read_manifest, write_manifest
from scalestudy.data.prepare import datasets as module
from scalestudy.data.prepare import write
from scalestudy.data.prepare.datasets import ensure, prepare
from scalestudy.data.scale import stratified_order, wanted_samples
from scalestudy.data.verify import is_whole
from scalestudy.errors import UserError
from scalestudy.spec.config import Site
from tests.unit.data.conftest import Prepared, dataset_spec, photo, small_disk

JPEG = {"source": "synthetic_jpeg", "samples": 30, "width": 64, "height": 48, "mean_kib": 2.0}


def test_a_bulk_elsewhere_is_named_by_its_absolute_path_and_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, scratch = dataset_spec(source="digits"), tmp_path / "scratch"
    first = prepare(spec, tmp_path / "a/manifest.json", scratch, Site())
    monkeypatch.setattr(module, "_made", None)
    lock = scratch / f".{first.id}.lock"
    lock.unlink()
    lock.mkdir()  # as another user's: it cannot be opened
    second = prepare(spec, tmp_path / "b/manifest.json", scratch, Site())
    assert first == second and first.bulk == str(scratch / first.id)
    assert open_dataset(tmp_path / "b/manifest.json", "train").samples == 1437


def test_on_a_disk_without_locks_data_is_made_all_the_same(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.lockf", no_locks)
    path, _ = prepared(source="digits")
    assert sorted(file.name for file in path.parent.iterdir()) == [".bulk.lock", "bulk", "manifest.json"]


def test_preparing_that_takes_a_while_prints_how_far_it_is(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "FIRST_S", 0)
    prepared(**JPEG, shard={"format": "lmdb"})
    assert "preparing train: 30 of 30, " in capsys.readouterr().err


def test_data_that_was_removed_and_differs_when_it_is_made_again_is_an_error(prepared: Prepared) -> None:
    path, manifest = prepared(source="digits")
    shutil.rmtree(path.parent / "bulk")
    write_manifest(path, dataclasses.replace(manifest, fingerprint="another"))
    with pytest.raises(UserError, match="made again, it differs from what the manifest describes"):
        ensure(path)


def test_a_hidden_file_in_a_bulk_does_not_make_it_another(prepared: Prepared) -> None:
    path, manifest = prepared(**JPEG)
    bulk = bulk_folder(path, manifest)
    (bulk / ".DS_Store").write_text("a desktop was here")
    assert is_whole(bulk, manifest)
    (bulk / "more.jpg").write_text("no image")
    assert not is_whole(bulk, manifest)


def test_data_that_does_not_fit_on_the_disk_is_an_error_before_it_is_made(prepared: Prepared) -> None:
    with pytest.raises(UserError, match=r"the data takes about .* GB, and .* GB are free"):
        prepared(source="digits", scale="900 TB")


LARGE = [{"source": "digits", "scale": 20.0}, {**JPEG, "samples": 1000, "shard": {"format": "lmdb"}}]


@pytest.mark.parametrize("spec", LARGE, ids=["arrays", "lmdb"])
def test_data_that_meets_a_quota_is_reported(
    spec: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "_require_room", lambda *_: None)  # a quota is in no answer about free space
    with small_disk(tmp_path / "disk", "512k") as disk, pytest.raises(UserError, match=f"{disk}.*the disk is full: "):
        prepare(dataset_spec(**spec), disk / "manifest.json", None, Site())


def test_an_error_of_the_disk_is_not_taken_for_a_full_one(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    monkeypatch.setattr(write, "database_key", failing)
    with pytest.raises(OSError, match="Input/output error") as raised:
        prepared(**JPEG, shard={"format": "lmdb"})
    assert raised.value.errno == errno.EIO


def test_size_and_stored_form_belong_together(prepared: Prepared) -> None:
    _, raw = prepared("raw", **JPEG, preprocess="raw", scale="2 MB")
    assert raw.train.samples == 10 and raw.train.bytes == 10 * 196608
    _, files = prepared("files", **JPEG, scale="100 KB")
    assert 80_000 < files.train.bytes < 120_000
    path, resized = prepared("resized", **JPEG, preprocess="resized", scale="200 KB")
    assert 160_000 < resized.train.bytes < 240_000
    assert Image.open(open_dataset(path, "train").files[0]).size == (341, 256)


@pytest.mark.parametrize("record", [None, "{}", "of another dataset"])
def test_a_folder_that_is_not_this_dataset_s_is_never_replaced(
    record: str | None, tmp_path: Path, prepared: Prepared
) -> None:
    _, manifest = prepared(source="digits")
    other, _ = prepared("other", **JPEG)
    scratch = tmp_path / "scratch" / manifest.id
    scratch.mkdir(parents=True)
    (scratch / "thesis.tex").write_text("years of work")
    if record is not None:
        (scratch / "manifest.json").write_text(other.read_text() if record.startswith("of") else record)
    with pytest.raises(UserError, match="it is left as it is"):
        prepare(dataset_spec(source="digits"), tmp_path / "third/manifest.json", scratch.parent, Site())
    assert (scratch / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize(
    ("scale", "samples"), [(0.25, 250), (3.0, 3000), (1e-9, 1), ("1 MB", 1000), ("64 MiB", 67109), ("0.5 KB", 1)]
)
def test_scale_is_a_factor_or_a_size_of_the_data_as_stored(scale: float | str, samples: int) -> None:
    assert wanted_samples(scale, 1000, 1000.0) == samples


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80))
def test_every_prefix_holds_the_classes_in_proportion(labels: list[int]) -> None:
    array = np.array(labels)
    order = stratified_order(array)
    assert sorted(order) == list(range(len(labels)))
    share = np.bincount(array, minlength=5) / len(labels)
    for count in range(1, len(labels) + 1):
        held = np.bincount(array[order[:count]], minlength=5)
        assert (np.abs(held - share * count) <= 3).all()


# The files that data is made from


def another_picture(root: Path) -> None:
    (root / "train/cat/9.jpg").write_bytes(photo(96, 64))


def other_pictures_of_the_same_size(root: Path) -> None:
    file = root / "train/cat/0.jpg"
    file.write_bytes(bytes(reversed(file.read_bytes())))
    os.utime(file, (1_900_000_000, 1_900_000_000))


@pytest.mark.parametrize("change", [another_picture, other_pictures_of_the_same_size])
def test_a_changed_source_is_named_with_the_command_that_uses_it_as_it_is(
    prepared: Prepared, picture_folder: Path, change: Callable[[Path], None]
) -> None:
    path, _ = prepared(source="image_folder", root=str(picture_folder))
    ensure(path)
    change(picture_folder)
    with pytest.raises(UserError, match="files were added, removed or changed") as error:
        ensure(path)
    assert f"scalestudy prepare --again --out {path}" in str(error.value)


def test_data_that_is_made_again_has_another_fingerprint(prepared: Prepared, picture_folder: Path) -> None:
    """Runs record it, so that those of before and after do not pass for repeats of one measurement."""
    path, before = prepared(source="image_folder", root=str(picture_folder), on_error="skip")
    other_pictures_of_the_same_size(picture_folder)
    assert run_command(["prepare", "--again", "--out", str(path)]) == 0
    ensure(path)
    assert read_manifest(path).fingerprint != before.fingerprint
