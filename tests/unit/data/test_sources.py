from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scalestudy.data.load.dataset import open_dataset
from scalestudy.data.manifest import read_manifest
from scalestudy.data.sources import fashion_mnist
from scalestudy.data.stage import Share, StageOptions, staged
from scalestudy.errors import UserError
from scalestudy.spec.config import Site
from tests.unit.data.conftest import Prepared


def test_digits_are_split_1437_to_360_with_classes_in_proportion(prepared: Prepared) -> None:
    path, manifest = prepared(source="digits")
    assert (manifest.train.samples, manifest.test.samples, manifest.classes, manifest.channels) == (1437, 360, 10, 1)
    test = open_dataset(path, "test")
    x, y = test.batch(np.arange(360), size=None, augment="none", seed=0, epoch=0)
    assert x.shape == (360, 1, 8, 8) and x.max() == 255 and x.min() == 0
    assert all(33 <= count <= 39 for count in np.bincount(y.numpy()))


# ---- Fashion-MNIST, from small files whose checksums stand in for the real ones


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


@pytest.fixture
def small_fashion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "fashion"
    folder.mkdir()
    checksums = {}
    for split, count in (("train", 20), ("test", 10)):
        pixels = np.random.default_rng(count).integers(0, 256, (count, 28, 28), np.uint8)
        for name, array in (
            (fashion_mnist.IMAGES[split], pixels),
            (fashion_mnist.LABELS[split], np.arange(count, dtype=np.uint8) % 10),
        ):
            (folder / name).write_bytes(gzip.compress(idx(array)))
            checksums[name] = hashlib.sha256(idx(array)).hexdigest()
    monkeypatch.setattr(fashion_mnist, "CONTENTS", checksums)
    monkeypatch.setattr(fashion_mnist, "PACKAGED", tmp_path / "no_package")
    return folder


def test_fashion_mnist_is_found_through_the_site_and_in_debians_package(
    small_fashion: Path, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(data_roots={"fashion_mnist": str(small_fashion)})
    assert prepared("site", site, source="fashion_mnist")[1].status == "ready"
    monkeypatch.setattr(fashion_mnist, "PACKAGED", small_fashion)
    assert prepared("package", source="fashion_mnist")[1].status == "ready"


def test_fashion_mnist_that_is_nowhere_is_skipped_with_what_to_do(
    small_fashion: Path, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, manifest = prepared(source="fashion_mnist")
    assert manifest.status == "skipped"
    assert "SCALESTUDY_OFFLINE=1" in manifest.reason and "data_roots.fashion_mnist" in manifest.reason
    assert read_manifest(path) == manifest
    with pytest.raises(UserError, match="the data was skipped"):
        staged(path, StageOptions(), Share(), Site())
    monkeypatch.delenv("SCALESTUDY_OFFLINE")
    monkeypatch.setattr(fashion_mnist, "ADDRESS", "http://localhost:9/")
    assert "cannot be fetched (" in prepared(source="fashion_mnist")[1].reason


@pytest.mark.parametrize("damage", [b"no gzip", gzip.compress(b"other contents", mtime=0)])
def test_damaged_or_incomplete_fashion_mnist_is_an_error(
    damage: bytes, small_fashion: Path, prepared: Prepared
) -> None:
    (small_fashion / "train-images-idx3-ubyte.gz").write_bytes(damage)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte.gz: "):
        prepared(source="fashion_mnist", root=str(small_fashion))
    (small_fashion / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(UserError, match="holds no complete Fashion-MNIST"):
        prepared(source="fashion_mnist", root=str(small_fashion))


def test_fashion_mnist_is_fetched_once_and_then_found_in_the_cache(
    small_fashion: Path, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCALESTUDY_OFFLINE")
    monkeypatch.setattr(fashion_mnist, "ADDRESS", small_fashion.as_uri() + "/")
    assert prepared("first", source="fashion_mnist")[1].status == "ready"
    monkeypatch.setattr(fashion_mnist, "ADDRESS", "http://localhost:9/")
    assert prepared("second", source="fashion_mnist")[1].status == "ready"


# ---- synthetic


def test_synthetic_samples_depend_on_their_number_alone(prepared: Prepared) -> None:
    path, manifest = prepared(source="synthetic", samples=50, shape=[3, 16, 12], classes=7)
    assert (manifest.train.samples, manifest.test.samples, manifest.bulk) == (50, 5, "")
    data = open_dataset(path, "train")
    options = {"size": None, "augment": "none", "seed": 1, "epoch": 0}
    x, y = data.batch(np.arange(50), **options)
    again, _ = data.batch(np.array([7, 3]), **{**options, "seed": 2})
    assert x.shape == (50, 3, 16, 12) and data.image_size == (16, 12)
    assert (again[0] == x[7]).all() and (again[1] == x[3]).all() and (x[7] != x[3]).any()
    assert set(y.tolist()) == set(range(7))


def test_synthetic_multilabel_has_a_column_per_label(prepared: Prepared) -> None:
    options = {"samples": 400, "shape": [20], "classes": 12, "task": "multilabel", "latency_s": 1e-6}
    path, _ = prepared(source="synthetic", **options)
    data, every = open_dataset(path, "train"), np.arange(400)
    x, y = data.batch(every, size=None, augment="none", seed=0, epoch=0)
    assert x.shape == (400, 20) and y.shape == (400, 12) and str(y.dtype) == "torch.float32"
    assert 2.7 < y.sum(1).mean() < 3.3
    with pytest.raises(UserError, match=r"samples of shape \(20,\) are not images"):
        data.batch(every, size=8, augment="none", seed=0, epoch=0)
    with pytest.raises(UserError, match="`preprocess: raw` is for JPEG and PNG files; `synthetic` has tensors"):
        prepared(source="synthetic", **options, preprocess="raw")
    with pytest.raises(UserError, match="there is nothing to copy"):
        staged(path, StageOptions(), Share(), Site())


# ---- synthetic JPEG


@pytest.mark.parametrize(("width", "height", "kib"), [(500, 375, 100.0), (101, 67, 4.0)])
def test_synthetic_jpegs_have_the_stated_shape_and_mean_size(
    width: int, height: int, kib: float, prepared: Prepared
) -> None:
    path, manifest = prepared(source="synthetic_jpeg", samples=120, width=width, height=height, mean_kib=kib)
    assert 0.9 * kib < manifest.train.bytes / 120 / 1024 < 1.1 * kib
    assert (manifest.test.samples, manifest.format) == (12, "files")
    file = open_dataset(path, "train").files[0]
    assert Image.open(file).size == (width, height)
    with pytest.raises(UserError, match=rf"images of {width}x{height} have .* KiB, not 9000 KiB"):
        prepared(source="synthetic_jpeg", samples=4, width=width, height=height, mean_kib=9000)


def test_the_same_options_give_the_same_bytes_and_more_when_scaled(prepared: Prepared) -> None:
    options = {"source": "synthetic_jpeg", "samples": 20, "width": 64, "height": 48, "mean_kib": 2.0}
    first, second = prepared("a", **options), prepared("b", **options)
    more, _ = prepared("c", **options, scale=2.0)
    assert first[1].fingerprint == second[1].fingerprint
    names = [f"train/000000/{number:09d}.jpg" for number in range(40)]
    contents = [(more.parent / "bulk" / name).read_bytes() for name in names]
    assert contents[:20] == [(first[0].parent / "bulk" / name).read_bytes() for name in names[:20]]
    assert len(set(contents)) == 40


# ---- image folder


def test_pictures_are_used_where_they_lie(picture_folder: Path, prepared: Prepared) -> None:
    path, manifest = prepared(source="image_folder", root=str(picture_folder))
    assert (manifest.train.samples, manifest.test.samples, manifest.classes) == (8, 2, 2)
    assert manifest.bulk == str(picture_folder) and sorted(file.name for file in path.parent.iterdir()) == [
        ".bulk.lock", "index.npz", "manifest.json"
    ]  # fmt: skip
    x, y = open_dataset(path, "train").batch(np.arange(8), size=32, augment="crop_flip", seed=0, epoch=0)
    assert x.shape == (8, 3, 32, 32) and y.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]


def test_images_that_nothing_names_are_skipped_and_named_ones_that_are_missing_an_error(
    tmp_path: Path, prepared: Prepared
) -> None:
    assert "data_roots.image_folder" in prepared(source="image_folder")[1].reason
    with pytest.raises(UserError, match=r"names a folder that is not there\n    put these files there: train/<class>"):
        prepared(source="image_folder", root=str(tmp_path / "nowhere"))
    (tmp_path / "empty/train/cat").mkdir(parents=True)
    with pytest.raises(UserError, match="holds no images"):
        prepared(source="image_folder", root=str(tmp_path / "empty"))


# ---- own

OWN = """
import numpy as np
class Mine:
    classes = ["a", "b"]
    def __init__(self, train, samples=6):
        self.samples = samples if train else 2
    def __len__(self):
        return self.samples
    def __getitem__(self, index):
        return np.full((3, 4, 4), index, np.float32), index % 2
class Broken(Mine):
    def __getitem__(self, index):
        if index == 4:
            raise RuntimeError("no such record")
        return super().__getitem__(index)
class Unnamed(Mine):
    classes = None
class Counted(Mine):
    classes = targets = None
    def __init__(self, train):
        super().__init__(train)
        self.targets = [0, 1, 0, 1, 0, 1][: self.samples]
class Several(Mine):
    def __getitem__(self, index):
        return np.zeros(4, np.float32), np.array([1, index % 2, 0])
class Halves(Several):
    def __getitem__(self, index):
        return np.zeros(4, np.float32), np.array([1, 0.5, 0])
"""


@pytest.fixture
def own(here: Path) -> Path:
    file = here / "config/extensions/mine.py"
    file.parent.mkdir(parents=True)
    file.write_text(OWN)
    return file


def test_own_data_is_read_item_by_item_and_repeats_when_scaled(own: Path, prepared: Prepared) -> None:
    path, manifest = prepared(**{"import": "mine:Mine"}, kwargs={"samples": 4}, scale=2.0)
    assert (manifest.train.samples, manifest.test.samples, manifest.classes, manifest.channels) == (8, 2, 2, 3)
    x, y = open_dataset(path, "train").batch(np.arange(8), size=None, augment="none", seed=0, epoch=0)
    assert x[:, 0, 0, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0] and y.tolist() == [0, 1] * 4


@pytest.mark.parametrize(("name", "classes"), [("Unnamed", 2), ("Counted", 2), ("Several", 3)])
def test_own_data_that_names_no_classes_has_those_of_its_labels(
    name: str, classes: int, own: Path, prepared: Prepared
) -> None:
    path, manifest = prepared(**{"import": f"mine:{name}"})
    _, y = open_dataset(path, "train").batch(np.arange(6), size=None, augment="none", seed=0, epoch=0)
    assert (manifest.classes, y.reshape(6, -1)[:, -2 if y.ndim > 1 else 0].tolist()) == (classes, [0, 1] * 3)


def test_own_data_that_has_grown_since_it_was_prepared_is_an_error(own: Path, prepared: Prepared) -> None:
    path, _ = prepared(**{"import": "mine:Mine"}, kwargs={"samples": 6}, scale=0.5)
    own.write_text(OWN.replace("return self.samples", "return 2 * self.samples"))
    with pytest.raises(
        UserError, match=r"mine\.py: it has 12 items for train, another number than when it was prepared"
    ):
        open_dataset(path, "train")


def test_own_data_without_items_or_with_one_that_fails_is_an_error_with_its_file(own: Path, prepared: Prepared) -> None:
    with pytest.raises(UserError, match=r"config/extensions/mine\.py: .*has no items for train"):
        prepared(**{"import": "mine:Mine"}, kwargs={"samples": 0})
    with pytest.raises(UserError, match=r"mine\.py: a label that is an array holds 0 or 1 .*, and one holds 0\.5"):
        prepared(**{"import": "mine:Halves"})
    path, _ = prepared(**{"import": "mine:Broken"})
    data = open_dataset(path, "train")
    with pytest.raises(UserError, match=r"mine\.py:14: RuntimeError: no such record\n    raised by item 4 of"):
        data.batch(np.arange(6), size=None, augment="none", seed=0, epoch=0)
