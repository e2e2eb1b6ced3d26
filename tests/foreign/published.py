"""Data as its publishers hand it out, small: images, ImageNet's tars, the lists of ChestX-ray14."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from scalestudy.data.tar import END, member

CLASSES = ("n01440764", "n01443537")
TRAIN, HELD_OUT, SOLUTION = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "LOC_val_solution.csv"
TABLE, LISTS = "Data_Entry_2017.csv", ("train_val_list.txt", "test_list.txt")
HEAD = "Image Index,Finding Labels,Patient ID"


def picture(seed: int = 0, size: tuple[int, int] = (12, 10), form: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form)
    return stream.getvalue()


def tar_of(files: Mapping[str, bytes]) -> bytes:
    return b"".join(member(name, data) for name, data in files.items()) + END


def headed(name: bytes, size: bytes, kind: bytes = b"0", data: bytes = b"") -> bytes:
    """A member with any 12 bytes as its size, and a checksum that fits."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:124] = b"%07o\0%07o\0%07o\0" % (0o644, 0, 0)
    block[124:136] = size.ljust(12, b"\0")[:12]
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257:265] = b"ustar\x00" + b"00"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + data + bytes(-len(data) % 512)


def imagenet(root: Path, others: Mapping[str, bytes] | None = None) -> None:
    """Two classes of two images, or `others` as the tars of classes; two held out. Neither tar nor list is in order."""
    root.mkdir(parents=True)
    tars = {name: tar_of({f"{name}_{n}.JPEG": picture(n) for n in range(2)}) for name in reversed(CLASSES)}
    inner = {f"{name}.tar": data for name, data in {**tars, **(others or {})}.items()}
    (root / TRAIN).write_bytes(tar_of({"._companion.tar": b"Mac OS X", **inner}))
    stems = [f"ILSVRC2012_val_{n:08d}" for n in (1, 2)]
    (root / HELD_OUT).write_bytes(tar_of({f"{stem}.JPEG": picture(7) for stem in stems}))
    rows = [f"{stem},{name} 1 2 3 4" for stem, name in zip(reversed(stems), CLASSES, strict=True)]
    (root / SOLUTION).write_text("\n".join(["ImageId,PredictionString", *rows, ""]))


def chest(root: Path) -> None:
    """Three training images and one held out, of four patients, in folders of both layouts."""
    names = [f"0000000{n}_000.png" for n in range(1, 5)]
    for number, name in enumerate(names):
        folder = root / ("images", "images_001/images")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture(number, form="PNG"))
    rows = [f"{name},{what},{n}" for n, (name, what) in enumerate(zip(names, FINDINGS, strict=True), 1)]
    (root / TABLE).write_text("\n".join([HEAD, *rows, ""]))
    for file, listed in zip(LISTS, (names[:3], names[3:]), strict=True):
        (root / file).write_text("\n".join([*listed, ""]))


FINDINGS = ("Mass", "No Finding", "Edema|Mass", "Hernia")


def folders(root: Path) -> None:
    """Two classes of two images, one of each held out."""
    for split, count in {"train": 2, "val": 1}.items():
        for name in ("cat", "dog"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                (root / split / name / f"{number}.jpg").write_bytes(picture(number))


def spec(source: str, **options: object) -> tuple[str, ...]:
    """The words that prepare the data of a source in `pictures`."""
    plain = json.dumps({"source": source, "root": "pictures", **options})
    return ("prepare", "--spec", plain, "--out", "made/manifest.json")
