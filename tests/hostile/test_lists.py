"""Tables and lists of data by `scalestudy prepare`; tables of published numbers by `scalestudy check`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.hostile import archives
from tests.hostile.archives import HEAD, LISTS, SOLUTION, TABLE
from tests.hostile.harness import Case, Refuse, link, pipe, raw, replaced, run, text

CHEST = archives.spec("chest_xray14")
T, L = f"pictures/{TABLE}", f"pictures/{LISTS[0]}"
FIRST = "00000001_000.png,Mass,1"
TABLES = [
    Case("a pipe in place of the table", pipe(T), f"holds neither {TABLE} nor chestmnist*.npz"),
    Case("a link to a device", link(T, "/dev/zero"), f"holds neither {TABLE} nor chestmnist*.npz"),
    Case("an empty table", raw(T, b""), f"is not in {TABLE}"),
    Case("an image in place of the table", raw(T, archives.picture()), f"{TABLE}: is not UTF-8 text"),
    Case("UTF-16", raw(T, f"{HEAD}\n{FIRST}\n".encode("utf-16")), f"{TABLE}: is not UTF-8 text"),
    Case("NUL in a field", replaced(T, "Mass,1", "Ma\0ss,1"), TABLE),
    Case("a field of 200 kB", replaced(T, FIRST, f'"{"x" * 200_000}",Mass,1'), f"{TABLE}:2: is not a table: field larger"),
    Case("a quote that is not closed", replaced(T, FIRST, f'"{FIRST}'), TABLE),
    Case("no column of patients", replaced(T, ",Patient ID", ""), f"{TABLE}: has no column 'Patient ID'"),
    Case("a row without a patient", replaced(T, FIRST, "00000001_000.png,Mass"), f"{TABLE}:2: ends before its last column"),
    Case("a row without findings", text(T, "Patient ID,Image Index,Finding Labels\n1,00000001_000.png\n"),
         f"{TABLE}:2: ends before its last column", before="traceback"),
    Case("a row without an image", text(T, "Finding Labels,Patient ID,Image Index\nMass,1\n"),
         f"{TABLE}:2: ends before its last column", before="unclear"),
    Case("an unknown finding", replaced(T, "Mass,1", "Masss,1"), f"{TABLE}:2: `Masss` is not a finding"),
    Case("a finding with a terminal's command", replaced(T, "Mass,1", "\x1b[2J,1"), f"{TABLE}:2: `\\x1b[2J` is not a finding"),
    Case("an image with two meanings", replaced(T, FIRST, f"{FIRST}\n00000001_000.png,Edema,1"), "contradicts line 2"),
    Case("an image that the table lacks", replaced(T, f"{FIRST}\n", ""), f"is not in {TABLE}"),
    Case("a patient in both lists", replaced(T, "Hernia,4", "Hernia,1"), "patient 1 is also in train_val_list.txt"),
    Case("a list that is not there", lambda project: (project / L).unlink(), f"{LISTS[0]}: no such file"),
    Case("a list without an image", raw(L, b"\n\n"), f"{LISTS[0]}: lists no images"),
    Case("a list in Latin-1", raw(L, b"\xf6.png\n"), f"{LISTS[0]}: is not UTF-8 text"),
    Case("an image listed twice", replaced(L, "00000001_000.png", "00000001_000.png\n00000001_000.png"), "lists 00000001_000.png again"),
    Case("an image that is not there", replaced(L, "00000001", "00000009"), "00000009_000.png is in no folder of images"),
    Case("an image outside", replaced(L, "00000001_000.png", "../../outside/diary.txt"), "is in no folder of images"),
    Case("a name that clears the screen", replaced(L, "00000001_000.png", "\x1b[2J.png"), "\\x1b[2J.png", before="unclear"),
]  # fmt: skip
NPZ = "pictures/chestmnist.npz"


def arrays(**changes: object) -> Callable[[Path], object]:
    return lambda project: archives.mnist(project / "pictures", **changes)


def one_array(project: Path) -> None:
    with open(project / NPZ, "wb") as stream:
        np.save(stream, np.zeros(3))


MNIST = [
    Case("garbage", raw(NPZ, b"PK\x03\x04garbage"), "chestmnist.npz: is not a file of ChestMNIST, or is damaged"),
    Case("nothing", raw(NPZ, b""), "chestmnist.npz: is not a file of ChestMNIST, or is damaged"),
    Case("one array without a name", one_array,
         "chestmnist.npz: is not a file of ChestMNIST, or is damaged", before="traceback"),
    Case("an array that is not there", lambda project: np.savez(project / NPZ, x=np.zeros(3)), "is not a file of ChestMNIST"),
    Case("objects, which are code", arrays(train_labels=np.array([{"a": 1}] * 4, object)), "is not a file of ChestMNIST"),
    Case("fewer labels than images", arrays(train_labels=np.zeros((3, 14), np.uint8)), "does not have 14 findings per image",
         before="traceback"),
    Case("13 findings", arrays(val_labels=np.zeros((2, 13), np.uint8)), "does not have 14 findings per image"),
    Case("findings as text", arrays(test_labels=np.full((2, 14), "yes")), "does not have 14 findings per image",
         before="traceback"),
    Case("a finding that is 7", arrays(test_labels=np.full((2, 14), 7, np.uint8)), "test_labels hold more than 0 and 1",
         before="accepted"),
    Case("a finding that is no number", arrays(test_labels=np.full((2, 14), np.nan)), "test_labels hold more than 0 and 1",
         before="accepted"),
    Case("images as floats", arrays(train_images=np.zeros((4, 8, 8))), "train_images are float64", before="accepted"),
    Case("one number for all images", arrays(train_images=np.uint8(3)), "train_images are uint8 ()", before="traceback"),
    Case("no image", arrays(test_images=np.zeros((0, 8, 8), np.uint8), test_labels=np.zeros((0, 14), np.uint8)),
         "test_images are uint8 (0, 8, 8)", before="traceback"),
]  # fmt: skip
V = f"pictures/{SOLUTION}"
SOLUTIONS = [
    Case("no list", lambda project: (project / V).unlink(), "no list gives the classes of"),
    Case("a list in Latin-1", raw(V, b"\xf6"), f"{SOLUTION}: is not UTF-8 text"),
    Case("an empty list", raw(V, b""), "ILSVRC2012_val_00000001: is not listed"),
    Case("a class that is none", replaced(V, "n01443537", "n09999999"), "`n09999999` is not a class of"),
    Case("an image with two classes", replaced(V, "\nILSVRC", "\nILSVRC2012_val_00000001,n01443537 1\nILSVRC"),
         f"{SOLUTION}:3: gives ILSVRC2012_val_00000001 the class n01440764"),
]  # fmt: skip
TIMES = "config/reference/step_times.csv"
COLUMNS = "model,accelerator,batch,images_per_s,precision,source\n"
EMULATED = (
    "question: How?\nbase: {model: resnet50, device: emulated:p100, data: {source: synthetic}}\nscales: {mini: {}}\n"
)
PUBLISHED = [
    Case("an empty table", raw(TIMES, b""), f"{TIMES}:1: has no column `model`", before="unclear"),
    Case("an image", raw(TIMES, archives.picture()), f"{TIMES}: is not UTF-8 text", before="traceback"),
    Case("a column that is not there", replaced(TIMES, "batch", "btch"), f"{TIMES}:1: has no column `batch`", before="traceback"),
    Case("a column twice", replaced(TIMES, "precision", "batch"), f"{TIMES}:1: has the column `batch` twice", before="accepted"),
    Case("a row that is cut", replaced(TIMES, ",64,100,fp32,me", ",64"), f"{TIMES}:3: has 3 cells", before="traceback"),
    Case("a comma too many", replaced(TIMES, ",64,100,fp32,me", ",64,1,00,fp32,me"), f"{TIMES}:3: has 7 cells", before="accepted"),
    Case("a batch in words", replaced(TIMES, ",64,", ",many,"), f"{TIMES}:3: batch: must be a whole number, not `many`",
         before="traceback"),
    Case("a batch of nothing", replaced(TIMES, ",64,", ",0,"), "needs a batch from 1", before="traceback"),
    Case("a rate that is no number", replaced(TIMES, ",100,", ",nan,"), f"{TIMES}:3: images_per_s: must be a number, not `nan`",
         before="accepted"),
    Case("a rate below nothing", replaced(TIMES, ",100,", ",-100,"), "images_per_s above 0", before="accepted"),
    Case("a field of 200 kB", replaced(TIMES, "me\n", f'"{"x" * 200_000}"\n'), f"{TIMES}:2: is not a table: field larger",
         before="traceback"),
]  # fmt: skip


def test_without_a_fault_the_lists_are_accepted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archives.chest(project / "pictures")
    assert run(CHEST, capsys).status == 0
    archives.mnist(project / "mnist")
    words = [word.replace("pictures", "mnist").replace("made", "made2") for word in CHEST]
    assert run(words, capsys).status == 0
    archives.imagenet(project / "imagenet")
    words = [word.replace("pictures", "imagenet").replace("made", "made3") for word in archives.spec("imagenet")]
    assert run(words, capsys).status == 0
    published(project)
    assert run(("check",), capsys).status == 0


def published(project: Path) -> None:
    """A study of an emulated accelerator, and the table of its step times."""
    (project / "config/reference").mkdir()
    rows = "resnet50,p100,32,90,fp32,me\nresnet50,p100,64,100,fp32,me\n"
    (project / TIMES).write_text(COLUMNS + rows)
    (project / "config/studies/s.yaml").write_text(EMULATED)


@pytest.mark.parametrize("case", TABLES, ids=lambda case: case.name)
def test_a_wrong_table_of_findings_is_refused(case: Case, refuse: Refuse) -> None:
    archives.chest(refuse.project / "pictures")
    refuse(case, CHEST, may_write=("made",))


@pytest.mark.parametrize("case", MNIST, ids=lambda case: case.name)
def test_a_wrong_file_of_arrays_is_refused(case: Case, refuse: Refuse) -> None:
    archives.mnist(refuse.project / "pictures")
    refuse(case, CHEST, may_write=("made",))


@pytest.mark.parametrize("case", SOLUTIONS, ids=lambda case: case.name)
def test_a_wrong_list_of_classes_is_refused(case: Case, refuse: Refuse) -> None:
    archives.imagenet(refuse.project / "pictures")
    refuse(case, archives.spec("imagenet"), may_write=("made",))


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: case.name)
def test_a_wrong_table_of_published_numbers_is_refused(case: Case, refuse: Refuse) -> None:
    published(refuse.project)
    refuse(case, ("check",))
