"""Folders of images, by `scalestudy prepare`: where they lie, and stored anew, for which each is decoded."""

from __future__ import annotations

import io
import shutil
import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image

from tests.hostile import archives
from tests.hostile.harness import Case, Refuse, link, raw, run, text
from tests.unit.data.test_hard_pictures import claiming

Z = "pictures/train/cat/z.jpg"
IN_PLACE, STORED = archives.spec("image_folder"), archives.spec("image_folder", preprocess="raw", resize=8)


def bomb() -> bytes:
    """A PNG of 60,000 x 60,000 pixels in a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def coded(form: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, form)
    return stream.getvalue()


FOLDERS = [
    Case("no such folder", lambda project: shutil.rmtree(project / "pictures"), "names a folder that is not there"),
    Case("a file in its place", lambda project: (shutil.rmtree(project / "pictures"), (project / "pictures").write_text("")),
         "names a folder that is not there"),
    Case("no folder of training", lambda project: shutil.rmtree(project / "pictures/train"), "pictures/train: is not there", before="unclear"),
    Case("no class", lambda project: (shutil.rmtree(project / "pictures/train"), (project / "pictures/train").mkdir()),
         "holds no images"),
    Case("a class without images", lambda project: (project / "pictures/train/cow").mkdir(), "cow: is a class without images"),
    Case("a class that training has not", raw("pictures/val/cow/0.jpg", archives.picture()), "is not among the classes of train"),
    Case("a class that leads nowhere", link("pictures/train/cow", "nowhere"), "cow: is a link to something that does not exist"),
]  # fmt: skip
WHOLE = archives.picture(1, (64, 48))
PICTURES = [
    Case("nothing in it", raw(Z, b""), "z.jpg: cannot be read as an image: it is empty"),
    Case("text", text(Z, "hello"), "unknown kind, neither JPEG nor PNG"),
    Case("a page", text(Z, "<html>404</html>"), "unknown kind, neither JPEG nor PNG"),
    Case("PostScript", text(Z, "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n"), "unknown kind, neither JPEG nor PNG"),
    Case("a GIF", raw(Z, coded("GIF")), "unknown kind, neither JPEG nor PNG"),
    Case("a TIFF", raw(Z, coded("TIFF")), "unknown kind, neither JPEG nor PNG"),
    Case("a BMP", raw(Z, coded("BMP")), "unknown kind, neither JPEG nor PNG"),
    Case("a WebP's head", raw(Z, b"RIFF\x10\0\0\0WEBPVP8 "), "unknown kind, neither JPEG nor PNG"),
    Case("only the first bytes of a JPEG", raw(Z, WHOLE[:20]), "z.jpg: cannot be read as an image: "),
    Case("half of a JPEG", raw(Z, WHOLE[: len(WHOLE) // 2]), "z.jpg: cannot be read as an image: "),
    Case("only the first bytes of a PNG", raw(Z, coded("PNG")[:20]), "z.jpg: cannot be read as an image: "),
    Case("a PNG with a wrong checksum", raw(Z, coded("PNG")[:30] + b"xxxx" + coded("PNG")[34:]), "z.jpg: cannot be read as an image: "),
    Case("a PNG of 3,600,000,000 pixels", raw(Z, bomb()), "z.jpg: cannot be read as an image: "),
    Case("a JPEG of 130 bytes that claims 65,500 x 65,500 pixels", raw(Z, claiming(65_500)),
         "z.jpg: cannot be read as an image: it claims 65,500 x 65,500 pixels", before="damage"),
    Case("a JPEG of 60,000 x 1 pixels", raw(Z, archives.picture(0, (60_000, 1))), "z.jpg: cannot be "),
]  # fmt: skip


def test_without_a_fault_the_pictures_are_accepted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archives.folders(project / "pictures")
    for words in (IN_PLACE, STORED):
        assert run(words, capsys).status == 0
        shutil.rmtree(project / "made")


@pytest.mark.parametrize("case", FOLDERS, ids=lambda case: case.name)
def test_a_wrong_folder_is_refused(case: Case, refuse: Refuse) -> None:
    archives.folders(refuse.project / "pictures")
    refuse(case, IN_PLACE, may_write=("made",))


@pytest.mark.parametrize("case", PICTURES, ids=lambda case: case.name)
def test_a_wrong_picture_is_refused(case: Case, refuse: Refuse) -> None:
    archives.folders(refuse.project / "pictures")
    refuse(case, STORED, may_write=("made",))
