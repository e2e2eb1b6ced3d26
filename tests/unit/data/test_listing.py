"""Entries of image folders: links are followed, what is no file is passed over and counted, empty classes are named."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scalestudy.data.index import read_index
from scalestudy.data.load.dataset import open_dataset
from scalestudy.data.manifest import index_file
from scalestudy.data.sources import listing
from scalestudy.errors import UserError
from tests.unit.data.conftest import Prepared, photo


def linked(target: str) -> Callable[[Path], object]:
    return lambda place: place.symlink_to(target)


def bound(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(place.parent)  # the path of a socket has at most 108 bytes
        made.bind(place.name)


NO_FILE: dict[str, Callable[[Path], object]] = {
    "dangling link": linked("/nowhere.jpg"),
    "link to itself": linked("z.jpg"),
    "link through a file": linked("1.jpg/z.jpg"),
    "link to a device": linked("/dev/zero"),
    "link to a folder": linked(".."),
    "pipe": os.mkfifo,
    "socket": bound,
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", NO_FILE)
def test_an_entry_that_is_no_file_is_passed_over_counted_and_printed(
    kind: str,
    picture_folder: Path,
    prepared: Prepared,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(picture_folder)
    NO_FILE[kind](picture_folder / "train/cat/z\x1b.jpg")
    _, manifest = prepared(source="image_folder", root=str(picture_folder))
    assert (manifest.train.samples, manifest.classes, manifest.left_out) == (8, 2, 1)
    assert manifest.left_out_list[0].endswith(
        r"/pictures/train/cat/z\x1b.jpg: not a file, or a link that leads to none"
    )
    assert (
        r"passed over 1 (not a file, or a link that leads to none), the first train/cat/z\x1b.jpg"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("place", ["train", "val", "train/cat", "train/cat/0.jpg"])
def test_links_are_followed_into_any_folder(place: str, picture_folder: Path, prepared: Prepared) -> None:
    direct = prepared("direct", source="image_folder", root=str(picture_folder))[1]
    (picture_folder / place).rename(picture_folder.parent / "elsewhere")
    (picture_folder / place).symlink_to(picture_folder.parent / "elsewhere")
    path, manifest = prepared("linked", source="image_folder", root=str(picture_folder))
    assert (manifest.fingerprint, manifest.left_out) == (direct.fingerprint, 0)
    x, _ = open_dataset(path, "train").batch(np.arange(8), size=8, augment="none", seed=0, epoch=0, train=False)
    assert len(x) == 8


CLASSES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (Path.mkdir, "is a class without images: none in it is named .jpg, .jpeg or .png"),
    "link to a folder that holds none": (linked("/etc"), "is a class without images"),
    "dangling link": (linked("/nowhere"), "is a link to something that does not exist"),
}


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("source", ["image_folder", "caltech256"])
def test_a_class_without_pictures_is_named_or_left_out_and_the_others_are_numbered_without_it(
    kind: str, source: str, picture_folder: Path, tmp_path: Path, prepared: Prepared
) -> None:
    make, why = CLASSES[kind]
    classes = picture_folder / "train"
    if source == "caltech256":
        classes = classes.rename(tmp_path / "256_ObjectCategories")
        for number in range(5):
            (classes / f"cat/{number}.jpg").write_bytes(photo(48, 32))
    root = classes if source == "caltech256" else picture_folder
    make(classes / "bird")
    with pytest.raises(UserError, match=rf"/{classes.name}/bird: {why}"):
        prepared("fails", source=source, root=str(root))
    path, manifest = prepared("skips", source=source, root=str(root), on_error="skip")
    assert (manifest.classes, manifest.left_out) == (2, 1)
    assert sorted(set(read_index(index_file(path, manifest), "train").labels.tolist())) == [0, 1]


def test_a_class_of_nothing_but_dangling_links_is_left_out_with_them(picture_folder: Path, prepared: Prepared) -> None:
    (picture_folder / "train/ant").mkdir()
    (picture_folder / "train/ant/0.jpg").symlink_to("/nowhere")
    (picture_folder / "val/ant").mkdir()
    (picture_folder / "val/ant/0.jpg").write_bytes(photo(40, 32))
    _, manifest = prepared(source="image_folder", root=str(picture_folder), on_error="skip")
    assert (manifest.classes, manifest.train.samples, manifest.test.samples) == (2, 8, 2)
    assert [line.partition("pictures/")[2][:40] for line in manifest.left_out_list] == [
        "train/ant: is a class without images: no",
        "val/ant: is not among the classes of tra",
        "train/ant/0.jpg: not a file, or a link t",
    ]


def test_hidden_folders_and_files_next_to_classes_are_not_classes(picture_folder: Path, prepared: Prepared) -> None:
    (picture_folder / "train/.cache").mkdir()
    (picture_folder / "train/README").symlink_to("/etc/hostname")
    assert prepared(source="image_folder", root=str(picture_folder))[1].classes == 2


def test_a_chest_picture_that_is_a_dangling_link_is_left_out_of_its_list(tmp_path: Path, prepared: Prepared) -> None:
    root = tmp_path / "chest"
    rows = ["Image Index,Finding Labels,Patient ID", *(f"{n}.png,Hernia,{n}" for n in range(4))]
    (root / "images_001/images").mkdir(parents=True)
    for n in range(3):
        (root / f"images_001/images/{n}.png").write_bytes(photo(40, 32, "PNG", "L"))
    (root / "images_001/images/3.png").symlink_to("/nowhere")
    (root / "Data_Entry_2017.csv").write_text("\n".join(rows))
    (root / "train_val_list.txt").write_text("0.png\n1.png\n3.png\n")
    (root / "test_list.txt").write_text("2.png\n")
    _, manifest = prepared(source="chest_xray14", root=str(root))
    assert (manifest.train.samples, manifest.test.samples, manifest.left_out) == (2, 1, 1)


class Entry:
    """A plain file as `os.scandir` shows it on a file system that tells what each entry is."""

    def __init__(self, name: bytes) -> None:
        self.name, self.stats = name, 0

    def is_file(self, *, follow_symlinks: bool) -> bool:
        assert not follow_symlinks  # which costs a question, were it a link
        return True

    def stat(self) -> os.stat_result:
        self.stats += 1
        return os.stat_result([0o100644, *[7] * 9])


def test_of_plain_files_only_the_size_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [Entry(b"b.jpg"), Entry(b"a.PNG"), Entry(b"notes.txt")]
    monkeypatch.setattr(os, "scandir", lambda place: contextlib.nullcontext(entries))
    monkeypatch.setattr(os.path, "realpath", None)
    found = listing.folder_part(tmp_path, "cat")
    assert ([found.index.path(n) for n in range(2)], found.index.bytes.tolist()) == (["cat/a.PNG", "cat/b.jpg"], [7, 7])
    assert [entry.stats for entry in entries] == [1, 1, 0]
