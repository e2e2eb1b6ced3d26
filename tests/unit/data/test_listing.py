"""What in a folder of images is one: links, pipes, empty classes; each counted and named, none followed blindly."""

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
from scalestudy.spec.config import Site
from tests.unit.data.conftest import Prepared, photo


def linked(target: str) -> Callable[[Path], object]:
    return lambda place: place.symlink_to(target)


def bound(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(place.parent)  # the path of a socket has at most 108 bytes
        made.bind(place.name)


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "dangling link": (linked("/nowhere.jpg"), "is a link to something that does not exist"),
    "link to itself": (linked("z.jpg"), "is a link to something that does not exist"),
    "link through a file": (linked("1.jpg/z.jpg"), "is a link to something that does not exist"),
    "link to an image outside": (linked("../../../outside.jpg"), "is a link to .*/outside.jpg, which is neither in this"),
    "link to a device": (linked("/dev/zero"), "is a link to /dev/zero, which is neither in this folder nor in one of"),
    "link to a folder": (linked(".."), "is a link to a folder, not to a file"),
    "link to a pipe": (lambda place: (os.mkfifo(place.parent / "pipe"), place.symlink_to("pipe")), "is a link to a pipe"),
    "pipe": (os.mkfifo, "is a pipe, not a file"),
    "socket": (bound, "is a socket, not a file"),
    "folder": (Path.mkdir, "is a folder, not a file"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
def test_what_is_named_like_a_picture_and_is_none_is_named_or_left_out_and_its_class_stays(
    kind: str, picture_folder: Path, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, why = ODD[kind]
    monkeypatch.chdir(picture_folder)
    (picture_folder.parent / "outside.jpg").write_bytes(photo(40, 32))
    make(picture_folder / "train/cat/z.jpg")
    with pytest.raises(UserError, match=rf"pictures/train/cat/z\.jpg: {why}.*\n    .*`data.on_error: skip`"):
        prepared("fails", source="image_folder", root=str(picture_folder))
    assert not (picture_folder.parent / "fails/manifest.json").exists()
    _, manifest = prepared("skips", source="image_folder", root=str(picture_folder), on_error="skip")
    assert (manifest.train.samples, manifest.classes, manifest.left_out) == (8, 2, 1)
    assert "/pictures/train/cat/z.jpg: is a" in manifest.left_out_list[0]


def test_the_first_of_many_odd_things_is_named_and_the_others_are_counted(
    picture_folder: Path, prepared: Prepared
) -> None:
    for name in ("train/cat/y.jpg", "train/cat/z\x1b.jpg", "val/dog/z.jpg"):
        (picture_folder / name).symlink_to("/nowhere")
    with pytest.raises(
        UserError, match=r"cat/y.jpg: is a link to something that does not exist \(2 more things there cannot be used\)"
    ):
        prepared("fails", source="image_folder", root=str(picture_folder))
    (picture_folder / "train/cat/0.jpg").write_bytes(b"")
    _, manifest = prepared("skips", source="image_folder", root=str(picture_folder), on_error="skip")
    assert [line.partition("pictures/")[2] for line in manifest.left_out_list] == [
        "train/cat/y.jpg: is a link to something that does not exist",
        "train/cat/z\\x1b.jpg: is a link to something that does not exist",
        "val/dog/z.jpg: is a link to something that does not exist",
        "train/cat/0.jpg: cannot be read as an image: it is empty",
    ]


def test_links_to_places_inside_the_folder_are_followed_and_the_folder_may_be_one(
    picture_folder: Path, prepared: Prepared
) -> None:
    (picture_folder / "pool").mkdir()
    (picture_folder / "train/cat").rename(picture_folder / "pool/cat")
    (picture_folder / "train/cat").symlink_to("../pool/cat")
    (picture_folder / "train/dog/9.jpg").symlink_to(picture_folder / "pool/cat/0.jpg")
    (picture_folder.parent / "site").symlink_to(picture_folder)
    path, manifest = prepared(source="image_folder", root=str(picture_folder.parent / "site"))
    assert (manifest.train.samples, manifest.classes, manifest.left_out) == (9, 2, 0)
    x, _ = open_dataset(path, "train").batch(np.arange(9), size=8, augment="none", seed=0, epoch=0, train=False)
    assert (x[8] == x[0]).all()


def test_links_into_data_that_the_site_names_are_followed(picture_folder: Path, prepared: Prepared) -> None:
    subset = picture_folder.parent / "subset"
    for name in ("train/cat", "val/cat"):
        (subset / name).parent.mkdir(parents=True)
        (subset / name).symlink_to(picture_folder / name)
    (subset / "train/dog").mkdir()
    (subset / "train/dog/1.jpg").symlink_to(picture_folder / "train/dog/1.jpg")
    spec = {"source": "image_folder", "root": str(subset)}
    with pytest.raises(
        UserError, match=r"holds no images.*; train/cat is a link to .*, which is neither in this folder"
    ):
        prepared("fails", **spec, on_error="skip")
    _, manifest = prepared("named", Site(data_roots={"imagenet": f"{picture_folder}/"}), **spec)
    assert (manifest.train.samples, manifest.classes, manifest.left_out) == (4, 2, 0)
    with pytest.raises(UserError, match=r"is a link to .*/pictures/train/cat, which is neither"):
        prepared("alike", Site(data_roots={"imagenet": str(picture_folder)[:-1]}), **spec)


def test_a_split_that_is_a_link_to_a_place_outside_is_an_error(picture_folder: Path, prepared: Prepared) -> None:
    (picture_folder / "val").rename(picture_folder.parent / "elsewhere")
    (picture_folder / "val").symlink_to("../elsewhere")
    with pytest.raises(UserError, match=r"pictures/val: is a link to .*/elsewhere, which is neither in this folder"):
        prepared(source="image_folder", root=str(picture_folder), on_error="skip")


CLASSES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (Path.mkdir, "is a class without images: none in it is named .jpg, .jpeg or .png"),
    "link to a folder inside that holds none": (linked("."), "is a class without images"),
    "link to a folder outside": (linked("/etc"), "is a link to /etc, which is neither in this folder nor in one of"),
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
        "train/ant/0.jpg: is a link to something ",
        "val/ant: is not among the classes of tra",
    ]


def test_hidden_folders_and_files_next_to_classes_are_not_classes(picture_folder: Path, prepared: Prepared) -> None:
    (picture_folder / "train/.cache").mkdir()
    (picture_folder / "train/README").symlink_to("/etc/hostname")
    assert prepared(source="image_folder", root=str(picture_folder))[1].classes == 2


def test_a_part_with_something_odd_in_it_is_listed_again_after_a_kill(picture_folder: Path, tmp_path: Path) -> None:
    (picture_folder / "train/cat/z.jpg").symlink_to(picture_folder / "later.jpg")
    root = listing.Root.of(picture_folder, Site())
    with listing.kept_in(tmp_path / "kept"):
        [found] = listing.folders_listed("listing", root, ["train/cat"])
        assert (len(found.index), [one.name for one in found.odd]) == (3, ["train/cat/z.jpg"])
        (picture_folder / "later.jpg").write_bytes(photo(40, 32))
        [found] = listing.folders_listed("listing", root, ["train/cat"])
        assert (len(found.index), found.odd) == (4, ())


def test_a_part_that_was_kept_has_the_number_of_its_class_as_it_is_now(
    picture_folder: Path, prepared: Prepared
) -> None:
    (picture_folder / "train/dog/z.jpg").symlink_to("/nowhere")
    spec = {"source": "image_folder", "root": str(picture_folder)}
    with pytest.raises(UserError, match=r"dog/z\.jpg"):
        prepared(**spec)
    (picture_folder / "train/dog/z.jpg").unlink()
    (picture_folder / "train/ant").mkdir()
    (picture_folder / "train/ant/0.jpg").write_bytes(photo(40, 32))
    path, manifest = prepared(**spec)
    assert read_index(index_file(path, manifest), "train").labels.tolist() == [0, 1, 1, 1, 2, 2, 2, 2, 2]


def test_a_chest_picture_that_is_a_dangling_link_is_named_or_left_out_of_its_list(
    tmp_path: Path, prepared: Prepared
) -> None:
    root = tmp_path / "chest"
    rows = ["Image Index,Finding Labels,Patient ID", *(f"{n}.png,Hernia,{n}" for n in range(4))]
    (root / "images_001/images").mkdir(parents=True)
    for n in range(3):
        (root / f"images_001/images/{n}.png").write_bytes(photo(40, 32, "PNG", "L"))
    (root / "images_001/images/3.png").symlink_to("/nowhere")
    (root / "images_002").symlink_to("/etc")
    (root / "Data_Entry_2017.csv").write_text("\n".join(rows))
    (root / "train_val_list.txt").write_text("0.png\n1.png\n3.png\n")
    (root / "test_list.txt").write_text("2.png\n")
    with pytest.raises(UserError, match=r"chest/images_002: is a link to /etc, .* \(1 more things"):
        prepared("fails", source="chest_xray14", root=str(root))
    _, manifest = prepared("skips", source="chest_xray14", root=str(root), on_error="skip")
    assert (manifest.train.samples, manifest.test.samples, manifest.left_out) == (2, 1, 2)


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
    root, entries = listing.Root.of(tmp_path, Site()), [Entry(b"b.jpg"), Entry(b"a.PNG"), Entry(b"notes.txt")]
    monkeypatch.setattr(os, "scandir", lambda place: contextlib.nullcontext(entries))
    monkeypatch.setattr(os.path, "realpath", None)
    found = listing.folder_part(root, "cat")
    assert ([found.index.path(n) for n in range(2)], found.index.bytes.tolist()) == (["cat/a.PNG", "cat/b.jpg"], [7, 7])
    assert [entry.stats for entry in entries] == [1, 1, 0]
