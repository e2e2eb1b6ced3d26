"""Entries of image folders: links are followed; what is no file, and empty classes, are errors or left out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalestudy.data.index import mapped_index, refuse_unlearnable
from scalestudy.data.load.dataset import open_dataset
from scalestudy.data.manifest import index_file
from scalestudy.errors import UserError, visible
from tests.unit.data.conftest import Prepared


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
