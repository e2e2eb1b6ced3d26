"""Folders of images as they are found: links, entries that are no images, images of every kind, damaged ones."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from scalestudy.data.decode import images
from scalestudy.data.index import mapped_index, refuse_unlearnable
from scalestudy.data.load.dataset import open_dataset
from scalestudy.data.manifest import index_file
from scalestudy.errors import UserError, visible
from tests.unit.data.conftest import Prepared, photo
from tests.unit.data.test_shards import FORMS, payloads


def linked(target: str) -> Callable[[Path], object]:
    return lambda place: place.symlink_to(target)


NO_FILE = "not a file, or a link that leads to none"
UNUSABLE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "dangling link": ("z\x1b.jpg", linked("/nowhere.jpg"), NO_FILE),
    "pipe": ("z\x1b.jpg", os.mkfifo, NO_FILE),
    "folder": ("more", Path.mkdir, "a folder inside that of a class"),
    "other format": ("z.BMP", Path.touch, "an image by its name"),
}


@pytest.mark.parametrize(("name", "make", "why"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_entry_that_cannot_be_used_is_an_error_or_left_out_and_listed(
    name: str, make: Callable[[Path], object], why: str, picture_folder: Path, prepared: Prepared
) -> None:
    make(picture_folder / "train/cat" / name)
    shown = re.escape(f"/train/cat/{visible(name)}: ")
    with pytest.raises(UserError, match=f"{shown}is {why}"):
        prepared("fails", source="image_folder", root=str(picture_folder))
    _, manifest = prepared("skips", source="image_folder", root=str(picture_folder), on_error="skip")
    assert (manifest.train.samples, manifest.classes, manifest.left_out) == (8, 2, 1)
    assert re.search(f"{shown}{why}", manifest.left_out_list[0])


@pytest.mark.parametrize("place", ["train", "train/cat", "train/cat/0.jpg"])
def test_links_are_followed_into_any_folder(place: str, picture_folder: Path, prepared: Prepared) -> None:
    direct = prepared("direct", source="image_folder", root=str(picture_folder))[1]
    (picture_folder / place).rename(picture_folder.parent / "elsewhere")
    (picture_folder / place).symlink_to(picture_folder.parent / "elsewhere")
    path, manifest = prepared("linked", source="image_folder", root=str(picture_folder))
    assert (manifest.fingerprint, manifest.left_out) == (direct.fingerprint, 0)
    x, _ = open_dataset(path, "train").batch(np.arange(8), size=8, augment="none", seed=0, epoch=0)
    assert len(x) == 8


def test_companions_of_macos_are_no_pictures_and_its_letters_those_of_other_systems(
    picture_folder: Path, prepared: Prepared
) -> None:
    plain = prepared("plain", source="image_folder", root=str(picture_folder))[1]
    (picture_folder / "train/cat/._0.jpg").write_bytes(b"Mac OS X")
    (picture_folder / "train/cat").rename(picture_folder / "train/cafe\N{COMBINING ACUTE ACCENT}")
    (picture_folder / "val/cat").rename(picture_folder / "val/caf\N{LATIN SMALL LETTER E WITH ACUTE}")
    _, manifest = prepared("macos", source="image_folder", root=str(picture_folder))
    assert (manifest.train, manifest.classes, manifest.left_out) == (plain.train, 2, 0)


@pytest.mark.parametrize("make", [Path.mkdir, linked("/nowhere")], ids=["empty", "dangling link"])
def test_a_class_without_pictures_is_named_or_left_out_and_the_others_are_numbered_without_it(
    make: Callable[[Path], object], picture_folder: Path, prepared: Prepared
) -> None:
    make(picture_folder / "train/bird")
    message = r"/train/bird: is a class without images: none in it is named \.jpg, \.jpeg or \.png"
    with pytest.raises(UserError, match=message):
        prepared("fails", source="image_folder", root=str(picture_folder))
    path, manifest = prepared("skips", source="image_folder", root=str(picture_folder), on_error="skip")
    assert (manifest.classes, manifest.left_out) == (2, 1)
    assert sorted(set(mapped_index(index_file(path, manifest), "train").labels.tolist())) == [0, 1]


@pytest.mark.parametrize(
    ("train", "test", "what"),
    [
        ([0, 1, 1], [2, 2], "no label of the held-out data occurs in the training data"),
        ([[0.0, 1.0]] * 3, [[0.0, 1.0]], "all samples have the same label"),
    ],
)
def test_labels_of_which_nothing_can_be_learned_are_an_error(train: list[Any], test: list[Any], what: str) -> None:
    with pytest.raises(UserError, match=what):
        refuse_unlearnable(np.array(train), np.array(test), "here")


# Images, of one class

LONG_TEXT = PngImagePlugin.PngInfo()
LONG_TEXT.add_text("comment", "x" * 3 * 2**20, zip=True)


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def folder(root: Path, pictures: dict[str, bytes]) -> dict[str, str]:
    """One class, with one held-out image."""
    for name, data in {"../../val/only/held_out.jpg": photo(40, 32), **pictures}.items():
        path = root / "train/only" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return {"source": "image_folder", "root": str(root)}


def ramp() -> np.ndarray:
    return np.tile(np.arange(64, dtype=np.uint8) * 4, (64, 1))


@pytest.mark.usefixtures("one_class")
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("grey.jpg", saved(Image.fromarray(ramp()), "JPEG", quality=95)),
        ("cmyk.jpg", saved(Image.fromarray(ramp()).convert("RGB").convert("CMYK"), "JPEG", quality=95)),
        ("sixteen_bits.png", saved(Image.fromarray(ramp().astype(np.uint16) * 257), "PNG")),
        ("long_text.png", saved(Image.fromarray(ramp()), "PNG", pnginfo=LONG_TEXT)),
        ("palette.png", saved(Image.fromarray(ramp()).convert("P"), "PNG")),
        ("transparent.png", saved(Image.fromarray(ramp()).convert("RGBA"), "PNG")),
        ("progressive.jpg", saved(Image.fromarray(ramp()).convert("RGB"), "JPEG", quality=95, progressive=True)),
        ("really_a_png.jpg", saved(Image.fromarray(ramp()), "PNG")),
        ("really_a_jpeg.png", saved(Image.fromarray(ramp()), "JPEG", quality=95)),
    ],
)
def test_pictures_of_every_kind_come_out_as_rgb_of_the_same_brightness(
    name: str, data: bytes, tmp_path: Path, prepared: Prepared
) -> None:
    spec = folder(tmp_path / name, {name: data})
    path, manifest = prepared(**spec, preprocess="raw", resize=64, shard={"format": "raw"})
    pixels = np.frombuffer(payloads(path, manifest)[0], np.uint8).reshape(64, 64, 3).astype(int)
    assert np.abs(pixels - ramp()[:, :, None].astype(int)).max() <= 12
    coded, as_is = prepared("as_is", **spec, **FORMS["tar"])
    assert payloads(coded, as_is) == [data] and images.decode(data).shape == (64, 64, 3)


@pytest.mark.usefixtures("one_class")
@pytest.mark.parametrize("form", [{}, {"scale": 2.0}, *FORMS.values()], ids=["in place", "copies", *FORMS])
def test_what_is_left_out_leaves_no_gap(form: dict[str, Any], tmp_path: Path, prepared: Prepared) -> None:
    pictures = {f"{n}.jpg": photo(40 + 4 * n, 32) for n in range(6)}
    spec = folder(tmp_path / "p", {**pictures, "3.jpg": b"", "x.jpg": b"no image"})
    path, manifest = prepared(**spec, **form, on_error="skip")
    copies = 2 if form == {"scale": 2.0} else 1
    assert (manifest.train.samples, manifest.left_out) == (5 * copies, 2 * copies)
    if manifest.format == "raw":
        assert np.load(path.parent / "bulk/train.npy").shape == (5, 16, 16, 3)
        return
    index = mapped_index(index_file(path, manifest), "train")
    assert len(index) == 5 * copies
    if manifest.format == "files":
        seen = open_dataset(path, "train").files
        assert sorted(file.read_bytes() for file in seen) == sorted(
            [data for name, data in pictures.items() if name != "3.jpg"] * copies
        )
    else:
        assert all(payloads(path, manifest))


@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        (
            {"../other/c.jpg": b"no image"},
            r"train/other/c\.jpg: none of the training images of its class can be read\n",
        ),
        (
            {"../../val/only/held_out.jpg": b"", "../other/c.jpg": photo(40, 32)},
            "none of the images of test can be read",
        ),
    ],
)
def test_a_class_or_split_all_of_whose_pictures_are_damaged_is_an_error_all_the_same(
    pictures: dict[str, bytes], message: str, tmp_path: Path, prepared: Prepared
) -> None:
    spec = folder(tmp_path / "p", {"a.jpg": photo(40, 32), **pictures})
    with pytest.raises(UserError, match=message):
        prepared(**spec, on_error="skip")


@pytest.mark.usefixtures("one_class")
def test_names_in_any_script_and_as_long_as_the_file_system_has_them_work(tmp_path: Path, prepared: Prepared) -> None:
    undecodable = os.fsdecode(b"caf\xe9.jpg")
    names = ["胸部 X線 (1).jpg", "été\u0301.jpg", "a'b\"c\n.jpg", "%s{0}.jpg", f"{'長' * 83}ab.jpg", undecodable]
    assert max(len(os.fsencode(name)) for name in names) == 255
    spec = folder(tmp_path / "p", {name: photo(40 + 4 * n, 32) for n, name in enumerate(names)})
    path, manifest = prepared(**spec)
    index = mapped_index(index_file(path, manifest), "train")
    assert len(index) == 6 and "train/only/胸部 X線 (1).jpg" in map(index.path, range(6))
    x, _ = open_dataset(path, "train").batch(np.arange(6), size=8, augment="none", seed=0, epoch=0)
    assert len(x) == 6
    shards, in_shards = prepared("shards", **spec, **FORMS["tar"])
    assert len(payloads(shards, in_shards)) == 6
