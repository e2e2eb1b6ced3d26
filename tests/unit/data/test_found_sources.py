"""Sources that are found where they lie: ImageNet, ChestX-ray14, Caltech-256; made for the test in their layouts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from scalestudy.data import tar
from scalestudy.data.index import mapped_index
from scalestudy.data.load.dataset import open_dataset
from scalestudy.data.manifest import index_file, shard_names
from scalestudy.data.sources import chest_xray14, imagenet, listing
from scalestudy.errors import UserError
from tests.foreign import published
from tests.unit.data.conftest import Prepared, photo
from tests.unit.data.test_shards import payloads


def laid(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def test_imagenets_tar_of_tars_is_read_without_unpacking(tmp_path: Path, prepared: Prepared) -> None:
    published.imagenet(tmp_path / "imagenet")
    path, manifest = prepared(source="imagenet", root=str(tmp_path / "imagenet"))
    assert (manifest.train.samples, manifest.test.samples, manifest.classes) == (4, 2, 2)
    assert (manifest.format, manifest.bulk, manifest.train.shards) == ("shards", str(tmp_path / "imagenet"), 1)
    assert shard_names(manifest, "train") == [imagenet.TRAIN_TAR]
    index, held_out = (mapped_index(index_file(path, manifest), split) for split in ("train", "test"))
    assert list(map(index.path, range(4))) == [f"{name}_{n}.JPEG" for name in published.CLASSES for n in range(2)]
    assert payloads(path, manifest) == [published.picture(n) for n in (0, 1, 0, 1)]
    assert payloads(path, manifest, "test") == [published.picture(7)] * 2
    assert (index.labels.tolist(), held_out.labels.tolist()) == ([0, 0, 1, 1], [1, 0])
    assert sorted(file.name for file in path.parent.iterdir()) == [".bulk.lock", "index.npz", "manifest.json"]


def test_what_a_tar_holds_beside_files_is_an_error_or_left_out(tmp_path: Path, prepared: Prepared) -> None:
    first, second = "a.JPEG", "b.JPEG"
    laid(tmp_path, {first: photo(40, 32), second: photo(44, 32)})
    (tmp_path / "hard.JPEG").hardlink_to(tmp_path / first)
    (tmp_path / "soft.JPEG").symlink_to(first)
    subprocess.run(["tar", "-cf", "k.tar", first, second, "hard.JPEG", "soft.JPEG"], cwd=tmp_path, check=True)
    laid(tmp_path, {second: photo(5, 32)})
    subprocess.run(["tar", "-rf", "k.tar", second], cwd=tmp_path, check=True)
    found, unusable = listing.tar_part(tmp_path / "k.tar")
    assert [found.path(n) for n in range(len(found))] == [first, second]
    assert found.bytes[1] == len(photo(5, 32))
    assert dict(unusable) == {"hard.JPEG": listing.NO_FILE, "soft.JPEG": listing.NO_FILE}
    root = tmp_path / "imagenet"
    published.imagenet(root, {published.CLASSES[1]: (tmp_path / "k.tar").read_bytes()})
    with pytest.raises(UserError, match=r"hard\.JPEG: is not a file, .* \(1 more things"):
        prepared("fails", source="imagenet", root=str(root))
    _, manifest = prepared("skips", source="imagenet", root=str(root), on_error="skip")
    assert (manifest.classes, manifest.train.samples, manifest.left_out) == (2, 4, 2)


IN_A_TAR = ["a.jpg", "folder/b.jpg", f"{'c' * 180}.jpg", f"{'d' * 90}/{'e' * 90}.jpg", "überall/図.jpg", "f" * 255]


def members(path: Path) -> dict[str, bytes]:
    whole, found = path.read_bytes(), [member for member in tar.entries(path) if member.is_file]
    return {os.fsdecode(member.name): whole[member.start : member.start + member.size] for member in found}


@pytest.mark.parametrize("dialect", ["gnu", "pax", "v7", "ustar"])
def test_members_of_any_tar_are_found_where_they_lie(dialect: str, tmp_path: Path) -> None:
    names = [name for name in IN_A_TAR if dialect in ("gnu", "pax") or len(name.encode()) < 100]
    contents = {name: os.urandom(300 * number) for number, name in enumerate(names)}
    laid(tmp_path / "in", contents)
    subprocess.run(["tar", f"--format={dialect}", "-cf", "x.tar", "-C", "in", *names], cwd=tmp_path, check=True)
    assert members(tmp_path / "x.tar") == contents


# ---- ChestX-ray14


def test_chest_pictures_have_any_number_of_14_findings_and_the_official_split(
    tmp_path: Path, prepared: Prepared
) -> None:
    published.chest(tmp_path / "chest")
    path, manifest = prepared(source="chest_xray14", root=str(tmp_path / "chest"))
    assert (manifest.train.samples, manifest.test.samples, manifest.classes) == (3, 1, 14)
    assert (manifest.task, manifest.bulk) == ("multilabel", str(tmp_path / "chest"))
    data = open_dataset(path, "train")
    x, y = data.batch(np.arange(3), size=16, augment="none", seed=0, epoch=0)
    names = [[chest_xray14.FINDINGS[n] for n in np.flatnonzero(row)] for row in y.numpy()]
    assert names == [["Mass"], [], ["Mass", "Edema"]]
    assert x.shape == (3, 3, 16, 16) and str(y.dtype) == "torch.float32"
    path, _ = prepared("tar", source="chest_xray14", root=str(tmp_path / "chest"), shard={"format": "tar"})
    assert b"[0,0,0,0,1,0,0,0,0,0,0,0,0,0]" in (path.parent / "bulk/train-000000.tar").read_bytes()


# ---- Caltech-256


def test_every_fifth_picture_of_a_caltech_class_is_held_out(tmp_path: Path, prepared: Prepared) -> None:
    for label, name in enumerate(("001.ak47", "002.american-flag", "257.clutter"), 1):
        files = {f"{label:03d}_{n:04d}.jpg": photo(40 + 4 * n, 32) for n in range(1, 5 + 3 * label)}
        laid(tmp_path / "256_ObjectCategories" / name, {**files, "RENAME2": b"no image", "greg/notes": b"a folder"})
    for root in (tmp_path, tmp_path / "256_ObjectCategories"):
        path, manifest = prepared(root.name, source="caltech256", root=str(root))
        assert (manifest.train.samples, manifest.test.samples, manifest.classes) == (25, 5, 3)
    held_out = mapped_index(index_file(path, manifest), "test")
    assert [held_out.path(n) for n in range(2)] == ["001.ak47/001_0005.jpg", "002.american-flag/002_0005.jpg"]
    assert np.bincount(held_out.labels).tolist() == [1, 2, 2]
