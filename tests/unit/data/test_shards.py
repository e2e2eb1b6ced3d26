"""Shards, files and databases: what is in them, and that it does not depend on who made them."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tarfile
import zlib
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.data.index import Index, mapped_index
from scalestudy.data.manifest import Manifest, Split, bulk_folder, database_key, index_file, shard_names
from scalestudy.data.prepare import datasets as module
from scalestudy.data.prepare.datasets import ensure
from scalestudy.data.prepare.write import bounds
from scalestudy.errors import UserError
from tests.unit.data.conftest import Prepared

JPEG = {"source": "synthetic_jpeg", "samples": 150, "width": 48, "height": 32, "mean_kib": 1.2}
FORMS: dict[str, dict[str, Any]] = {
    "files": {},
    "array": {"preprocess": "raw", "resize": 16},
    "tar": {"shard": {"format": "tar", "mib": 0.125}},
    "raw": {"shard": {"format": "raw", "mib": 0.0625}, "preprocess": "raw", "resize": 16},
    "lmdb": {"shard": {"format": "lmdb"}},
    "pixels_in_lmdb": {"shard": {"format": "lmdb"}, "preprocess": "raw", "resize": 16},
}


def index_of(path: Path, manifest: Manifest, split: Split = "train") -> Index:
    return mapped_index(index_file(path, manifest), split)


def payloads(path: Path, manifest: Manifest, split: Split = "train") -> list[bytes]:
    """All samples of a split, in the order of the index, by its byte ranges or keys."""
    index, bulk = index_of(path, manifest, split), bulk_folder(path, manifest)
    if manifest.format == "database":
        place = str(bulk / f"{split}.lmdb")
        with lmdb.open(place, readonly=True, lock=False) as database, database.begin() as transaction:
            return [transaction.get(database_key(sample)) for sample in range(len(index))]
    shards = [(bulk / name).read_bytes() for name in shard_names(manifest, split)]
    places = zip(index.shard.tolist(), index.start.tolist(), index.bytes.tolist(), strict=True)
    return [shards[number][start : start + size] for number, start, size in places]


def contents(bulk: Path) -> dict[str, bytes]:
    """What the bulk holds, but for what says how long it took."""
    return {
        str(file.relative_to(bulk)): file.read_bytes()
        for file in sorted(bulk.rglob("*"))
        if file.is_file() and file.name != "manifest.json"
    }


def test_tar_shards_hold_each_sample_and_its_class_in_the_order_of_the_index(prepared: Prepared) -> None:
    path, manifest = prepared(**JPEG, shard={"format": "tar", "mib": 0.125})
    index, seen = index_of(path, manifest), []
    for name in shard_names(manifest, "train"):
        file = path.parent / "bulk" / name
        listed = subprocess.run(["tar", "-tf", str(file)], capture_output=True, text=True, check=True)
        assert not listed.stderr and file.stat().st_size <= 2**17
        with tarfile.open(file) as stream:
            members = [(member.name, stream.extractfile(member).read()) for member in stream]
        assert listed.stdout.splitlines() == [name for name, _ in members]
        for (picture, data), (label, text) in zip(members[::2], members[1::2], strict=True):
            sample = len(seen)
            assert (picture, label) == (f"{sample:09d}.jpg", f"{sample:09d}.cls")
            seen.append((data, int(text)))
    assert manifest.train.shards == 4 and len(seen) == 150
    assert [label for _, label in seen] == index.labels.tolist()
    assert [data for data, _ in seen] == payloads(path, manifest)


def test_shards_hold_what_files_hold_shuffled(prepared: Prepared) -> None:
    files, of_files = prepared("files", **JPEG)
    plain = index_of(files, of_files)
    wanted = sorted(
        ((files.parent / "bulk" / plain.path(n)).read_bytes(), int(plain.labels[n])) for n in range(len(plain))
    )
    for form in ("tar", "lmdb"):
        path, manifest = prepared(form, **JPEG, **FORMS[form])
        index = index_of(path, manifest)
        found = payloads(path, manifest)
        assert sorted(zip(found, index.labels.tolist(), strict=True)) == wanted
        assert [zlib.crc32(data) for data in found] == index.checks.tolist()
        assert len(set(index.labels[:20].tolist())) > 5 and index.labels[:40].tolist() != plain.labels[:40].tolist()


@pytest.mark.parametrize("form", ["raw", "pixels_in_lmdb"])
def test_pixels_are_those_of_the_array(form: str, prepared: Prepared) -> None:
    path, manifest = prepared(form, **JPEG, **FORMS[form])
    array, _ = prepared("array", **JPEG, **FORMS["array"])
    found = payloads(path, manifest)
    wanted = np.load(array.parent / "bulk/train.npy")
    assert sorted(found) == sorted(picture.tobytes() for picture in wanted) and wanted.shape == (150, 16, 16, 3)
    assert (manifest.payload, manifest.height) == ("pixels", 16)
    index = index_of(path, manifest)
    assert (index.bytes == 768).all()


@pytest.mark.parametrize("form", FORMS)
def test_the_bytes_are_the_same_by_any_number_of_workers_and_made_again_where_a_file_was_lost(
    form: str, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for workers in (1, 5):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _process, workers=workers: set(range(workers)))
        path, manifest = prepared(f"by_{workers}", **JPEG, **FORMS[form])
        found.append((contents(path.parent / "bulk"), manifest.fingerprint))
    before, _ = found[0]
    assert found[0] == found[1] and len(before) >= 3
    victim = max(before, key=lambda name: (not name.endswith((".json", ".npz")), name))
    (path.parent / "bulk" / victim).unlink()
    assert ensure(path) == manifest and contents(path.parent / "bulk") == before
    monkeypatch.setattr(module, "_made", None)
    assert ensure(path) == manifest
    assert not list(path.parent.glob(".bulk.making*"))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 120))
def test_no_shard_is_larger_than_its_limit_unless_one_sample_is(sizes: list[int], limit: int) -> None:
    edges = bounds(np.array(sizes), limit).tolist()
    assert edges[0] == 0 and edges[-1] == len(sizes)
    shards = [sizes[a:b] for a, b in itertools.pairwise(edges)]
    assert all(shard and (sum(shard) <= limit or len(shard) == 1) for shard in shards)
    assert all(sum(one) + other[0] > limit for one, other in itertools.pairwise(shards))


@pytest.mark.parametrize("form", ["files", "tar", "lmdb"])
def test_a_damaged_picture_stops_with_its_name_and_what_was_done_is_kept(
    form: str, picture_folder: Path, prepared: Prepared, tmp_path: Path
) -> None:
    folder = {"source": "image_folder", "root": str(picture_folder), **FORMS[form], "scale": 3.0}
    victim = picture_folder / "train/dog/4.jpg"
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"train/dog/4.jpg: cannot be read as an image.*\n.*start again, or set"):
        prepared(**folder)
    assert not (tmp_path / "data/bulk").exists() and (tmp_path / "data/.bulk.making-kept").is_dir()
    victim.write_bytes(whole)
    _, manifest = prepared(**folder)
    assert manifest.train.samples == 24
    shutil.rmtree(tmp_path / "data/bulk")
    assert sorted(file.name for file in (tmp_path / "data").iterdir()) == [".bulk.lock", "manifest.json"]
