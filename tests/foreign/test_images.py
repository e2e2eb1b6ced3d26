"""Images, folders of images, and the lists that publishers put beside them, read by `scalestudy prepare`."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from tests.foreign import published
from tests.foreign.conftest import Command, Spoil, cases, edit, link, raw
from tests.foreign.published import LISTS, SOLUTION, TABLE

Z = "pictures/train/cat/z.jpg"
IN_PLACE, STORED = published.spec("image_folder"), published.spec("image_folder", preprocess="raw", resize=8)
CHEST, IMAGENET = published.spec("chest_xray14"), published.spec("imagenet")


def claiming(pixels: int) -> bytes:
    """A JPEG whose header claims this many rows and columns."""
    data = bytearray(published.picture())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", pixels, pixels)
    return bytes(data)


def bomb() -> bytes:
    """A PNG of 60,000 x 60,000 pixels in a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    rows = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + rows + chunk(b"IEND", b"")


WHOLE, PNG = published.picture(1, (64, 48)), published.picture(form="PNG")
UNREADABLE, UNKNOWN = "z.jpg: cannot be read as an image: ", "unknown kind, neither JPEG nor PNG"
PICTURES = {
    "empty": (raw(Z, b""), UNREADABLE),
    "a page": (raw(Z, b"<html>404</html>"), UNKNOWN),
    "PostScript": (raw(Z, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n"), UNKNOWN),
    "a TIFF": (raw(Z, published.picture(form="TIFF")), UNKNOWN),
    "the first bytes of a JPEG": (raw(Z, WHOLE[:20]), UNREADABLE),
    "half of a JPEG": (raw(Z, WHOLE[: len(WHOLE) // 2]), UNREADABLE),
    "a PNG with a wrong checksum": (raw(Z, PNG[:30] + b"xxxx" + PNG[34:]), UNREADABLE),
    "a PNG of 3,600,000,000 pixels": (raw(Z, bomb()), UNREADABLE),
    "a line of 9,000 pixels, which would be 72,000": (
        raw(Z, published.picture(size=(9000, 1), form="PNG")),
        UNREADABLE,
    ),
    "a JPEG that claims 65,500 x 65,500 pixels": (raw(Z, claiming(65_500)), UNREADABLE),
}
FOLDERS = {
    "a class outside": (link("pictures/train/cow", "../../../outside"), "cow"),
    "a class of the held-out images only": (raw("pictures/val/cow/0.jpg", WHOLE), "cow"),
}
T, L, V = (f"pictures/{name}" for name in (TABLE, LISTS[0], SOLUTION))
FIRST = "00000001_000.png,Mass,1"
TABLES = {
    "an image in place of the table": (raw(T, WHOLE), f"{TABLE}: cannot be read as a table in UTF-8"),
    "a missing column": (edit(T, ",Patient ID", ""), f"{TABLE}:1: has no column `Patient ID`"),
    "a short row": (edit(T, FIRST, "00000001_000.png,Mass"), f"{TABLE}:2: "),
    "an unknown finding": (edit(T, "Mass,1", "\x1b[2J,1"), f"{TABLE}:2: `\\x1b[2J` is not a finding"),
    "an image with two meanings": (edit(T, FIRST, f"{FIRST}\n00000001_000.png,Edema,1"), "contradicts an earlier line"),
    "a patient in both lists": (edit(T, "Hernia,4", "Hernia,1"), "patient 1 is also in train_val_list.txt"),
    "an image outside": (edit(L, "00000001_000.png", "../../outside/diary.txt"), "is in no folder of images"),
}
SOLUTIONS = {
    "an empty list": (raw(V, b""), "ILSVRC2012_val_00000001: is not listed"),
    "an unknown class": (edit(V, "n01443537", "n09999999"), "`n09999999` is not a class of"),
    "an image with two classes": (edit(V, "\nILSVRC", "\nILSVRC2012_val_00000001,n01440764 1\nILSVRC"), f"{SOLUTION}:4: "),
}  # fmt: skip


READ_BY = (
    (published.folders, STORED, PICTURES),
    (published.folders, IN_PLACE, FOLDERS),
    (published.chest, CHEST, TABLES),
    (published.imagenet, IMAGENET, SOLUTIONS),
)
CASES = {name: (publish, words, *case) for publish, words, damages in READ_BY for name, case in damages.items()}


def test_undamaged_images_and_lists_are_accepted(command: Command) -> None:
    made = {
        IN_PLACE: published.folders,
        STORED: published.folders,
        CHEST: published.chest,
        IMAGENET: published.imagenet,
    }
    for words, publish in made.items():
        publish(command.project / "pictures")
        command.accepts(*words)
        shutil.rmtree("pictures")
        shutil.rmtree("made")


@cases(CASES, "publish, words, spoil, message")
def test_a_wrong_image_folder_or_list_is_refused(
    publish: Callable[[Path], None], words: tuple[str, ...], spoil: Spoil, message: str, command: Command
) -> None:
    publish(command.project / "pictures")
    command.refuses(spoil, message, words)
