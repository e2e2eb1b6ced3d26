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

CLASSES = ["n01440764", "n01443537", "n02105855"]
Made = dict[str, bytes]


def laid(root: Path, files: Made) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def training() -> dict[str, Made]:
    return {
        wnid: {f"{wnid}_{n}.JPEG": photo(40 + 4 * n + 8 * label, 32) for n in range(label + 2)}
        for label, wnid in enumerate(CLASSES)
    }


HELD_OUT = {f"ILSVRC2012_val_{n:08d}.JPEG": photo(100 + 4 * n, 32) for n in range(1, 5)}
ANSWERS = [CLASSES[2], CLASSES[0], CLASSES[1], CLASSES[2]]


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """The original archives, made by `tar`: a tar of a tar per class, and a flat one."""
    root = tmp_path / "imagenet"
    for wnid, files in training().items():
        laid(tmp_path / "in" / wnid, files)
        subprocess.run(["tar", "-cf", f"../{wnid}.tar", *files], cwd=tmp_path / "in" / wnid, check=True)
    laid(tmp_path / "held_out", HELD_OUT)
    root.mkdir()
    companion = "._companion.tar"  # as macOS puts beside a file
    laid(tmp_path / "in", {companion: b"Mac OS X"})
    inner = [companion, *(f"{wnid}.tar" for wnid in reversed(CLASSES))]
    subprocess.run(["tar", "-cf", str(root / imagenet.TRAIN_TAR), *inner], cwd=tmp_path / "in", check=True)
    names = ["-C", str(tmp_path / "held_out"), *HELD_OUT]
    subprocess.run(["tar", "-cf", str(root / imagenet.HELD_OUT_TAR), *names], check=True)
    rows = [f"{Path(name).stem},{wnid} 85 1 499 272" for name, wnid in zip(HELD_OUT, ANSWERS, strict=True)]
    (root / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "\n".join(reversed(rows)) + "\n")
    return root


def test_imagenets_tar_of_tars_is_read_without_unpacking(tars: Path, prepared: Prepared) -> None:
    path, manifest = prepared(source="imagenet", root=str(tars))
    assert (manifest.train.samples, manifest.test.samples, manifest.classes) == (9, 4, 3)
    assert (manifest.format, manifest.bulk, manifest.train.shards) == ("shards", str(tars), 1)
    assert shard_names(manifest, "train") == [imagenet.TRAIN_TAR]
    index = mapped_index(index_file(path, manifest), "train")
    found = dict(zip(map(index.path, range(9)), payloads(path, manifest), strict=True))
    assert found == {name: data for files in training().values() for name, data in files.items()}
    assert [CLASSES[label] for label in index.labels] == [index.path(n).partition("_")[0] for n in range(9)]
    held_out = mapped_index(index_file(path, manifest), "test")
    assert payloads(path, manifest, "test") == list(HELD_OUT.values())
    assert [CLASSES[label] for label in held_out.labels] == ANSWERS
    assert sorted(file.name for file in path.parent.iterdir()) == [".bulk.lock", "index.npz", "manifest.json"]


def test_what_a_tar_holds_beside_files_is_an_error_or_left_out(tars: Path, prepared: Prepared) -> None:
    place = tars.parent / "in" / CLASSES[1]
    first, second, *_ = sorted(path.name for path in place.iterdir())
    (place / "hard.JPEG").hardlink_to(place / first)
    (place / "soft.JPEG").symlink_to(first)
    subprocess.run(["tar", "-cf", "../k.tar", first, second, "hard.JPEG", "soft.JPEG"], cwd=place, check=True)
    (place / second).write_bytes(photo(5, 32))
    subprocess.run(["tar", "-rf", "../k.tar", second], cwd=place, check=True)
    found, unusable = listing.tar_part(place.parent / "k.tar")
    assert [found.path(n) for n in range(len(found))] == [first, second]
    assert found.bytes[1] == len(photo(5, 32))
    assert dict(unusable) == {"hard.JPEG": listing.NO_FILE, "soft.JPEG": listing.NO_FILE}
    (place.parent / "k.tar").rename(place.parent / f"{CLASSES[1]}.tar")
    inner = [f"{name}.tar" for name in CLASSES]
    subprocess.run(["tar", "-cf", str(tars / imagenet.TRAIN_TAR), *inner], cwd=place.parent, check=True)
    with pytest.raises(UserError, match=r"hard\.JPEG: is not a file, .* \(1 more things"):
        prepared("fails", source="imagenet", root=str(tars))
    _, manifest = prepared("skips", source="imagenet", root=str(tars), on_error="skip")
    assert (manifest.classes, manifest.left_out) == (3, 2)


IN_A_TAR = ["a.jpg", "folder/b.jpg", f"{'c' * 180}.jpg", f"{'d' * 90}/{'e' * 90}.jpg", "überall/図.jpg", "f" * 255]


def members(path: Path) -> dict[str, bytes]:
    whole, found = path.read_bytes(), [member for member in tar.entries(path) if member.is_file]
    return {os.fsdecode(member.name): whole[member.start : member.start + member.size] for member in found}


@pytest.mark.parametrize("dialect", ["gnu", "pax", "v7", "ustar"])
def test_members_of_any_tar_are_found_where_they_lie(dialect: str, tmp_path: Path) -> None:
    names = [name for name in IN_A_TAR if dialect in ("gnu", "pax") or len(name.encode()) < 100]
    contents = {name: os.urandom(300 * number) for number, name in enumerate(names)}
    for name, data in contents.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
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
