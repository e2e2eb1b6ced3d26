"""ChestX-ray14 (Wang et al.: arXiv 1705.02315) as NIH publishes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.catalogue import ChestXray14
from scalestudy.data.index import Index
from scalestudy.data.manifest import Split
from scalestudy.data.sources import EncodedImages, named_root, text_of
from scalestudy.data.sources.listing import Unusable, folders_in, folders_listed, left_out, whole
from scalestudy.errors import UserError
from scalestudy.files import read_table
from scalestudy.spec.base import printable
from scalestudy.spec.config import Site

FINDINGS = (
    "Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia", "Pneumothorax",
    "Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia",
)  # fmt: skip
"""In the order of the paper."""
NOTHING = "No Finding"
TABLE = "Data_Entry_2017.csv"
TABLES = (TABLE, "Data_Entry_2017_v2020.csv")
LISTS: dict[Split, str] = {"train": "train_val_list.txt", "test": "test_list.txt"}
WANTED = (
    f"{TABLE}, {LISTS['train']}, {LISTS['test']} and the PNG files in images/ or images_001/images/ to "
    "images_012/images/ (112,120 files, 42 GB)"
)


def provide(spec: ChestXray14, site: Site) -> EncodedImages:
    """Images with any number of 14 findings, split by patient as the two lists say."""
    root = named_root(spec, site, WANTED)
    table = next((root / name for name in TABLES if (root / name).is_file()), None)
    if table is None:
        raise UserError(f"does not hold {TABLE}", str(root), f"put these files there: {WANTED}")
    findings, patients = _table(table)
    everything, wrong = _pictures(root)
    lines = left_out(wrong, root, spec.on_error)
    unusable = {name.rpartition("/")[2] for name, _ in wrong}
    numbers = {everything.path(n).rpartition("/")[2]: n for n in range(len(everything))}
    if len(numbers) < len(everything):
        raise UserError("two images have the same name", str(root), "keep one of each")
    indexes, seen = {}, {}
    for split, listed in LISTS.items():
        where = root / listed
        names = [file for file in dict.fromkeys(text_of(where, WANTED).split()) if file not in unusable]
        _complain_of_missing(names, numbers, where, "is in no folder of images", "put the image there")
        _complain_of_missing(names, findings, where, f"is not in {table.name}", "copy both again")
        if not names:
            raise UserError("lists no images that can be used", str(where), f"put these files there: {WANTED}")
        index = everything.taken(np.array([numbers[file] for file in names], np.int64))
        indexes[split] = dataclasses.replace(index, labels=np.stack([findings[file] for file in names]))
        seen[split] = {patients[file] for file in names}
    if both := seen["train"] & seen["test"]:
        what = f"patient {min(both)} is also in {LISTS['train']}"
        raise UserError(what, str(root / LISTS["test"]), "copy the official lists again: they are split by patient")
    return EncodedImages(indexes, len(FINDINGS), root=root, left_out=lines)


def _table(path: Path) -> tuple[dict[str, NDArray[np.float32]], dict[str, str]]:
    """Findings, float32 [14] of zeros and ones, and patient of each image; UserError where two rows differ."""
    findings: dict[str, NDArray[np.float32]] = {}
    patients: dict[str, str] = {}
    for line, row in enumerate(read_table(path, ("Image Index", "Finding Labels", "Patient ID")), 2):
        file, patient, marks = row["Image Index"], row["Patient ID"], _marks(row["Finding Labels"], f"{path}:{line}")
        if patients.setdefault(file, patient) != patient or (findings.setdefault(file, marks) != marks).any():
            what = f"contradicts an earlier line about {printable(file)}"
            raise UserError(what, f"{path}:{line}", "copy it again")
    return findings, patients


def _marks(named: str, where: str) -> NDArray[np.float32]:
    """Findings as `Mass|Nodule`, as [14] zeros and ones."""
    marks = np.zeros(len(FINDINGS), np.float32)
    for finding in named.split("|"):
        if finding in FINDINGS:
            marks[FINDINGS.index(finding)] = 1
        elif finding != NOTHING:
            raise UserError(f"`{printable(finding)}` is not a finding", where, "copy it again")
    return marks


def _pictures(root: Path) -> tuple[Index, list[Unusable]]:
    """All images below `images` and `images_001/images` and so on, and entries that cannot be used."""
    remedy = f"put these files there: {WANTED}"
    places = folders_in(root, "", remedy, prefix="images")
    for number, folder in enumerate(places):
        if (root / folder / "images").is_dir():
            places[number] = f"{folder}/images"
    parts = folders_listed("listing", root, places)
    wrong = [one for _, unusable in parts for one in unusable]
    return whole([images for images, _ in parts], wrong, root, remedy), wrong


def _complain_of_missing(names: list[str], counterparts: Collection[str], where: Path, what: str, remedy: str) -> None:
    missing = [name for name in names if name not in counterparts]
    if missing:
        more = f" (and {len(missing) - 1:,} more)" if len(missing) > 1 else ""
        raise UserError(f"{missing[0]}{more} {what}", str(where), remedy)
