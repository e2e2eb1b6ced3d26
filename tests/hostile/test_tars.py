"""Tars of images, by `scalestudy prepare`: ImageNet as it is published, a tar of a tar per class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scalestudy.data.tar import END, member
from tests.hostile import archives
from tests.hostile.archives import CLASSES, HELD_OUT, TRAIN, headed, tar_of
from tests.hostile.harness import Case, Refuse, link, pipe, raw, run

WORDS = archives.spec("imagenet")
T = f"pictures/{TRAIN}"
INNER = tar_of({"a.JPEG": archives.picture()})


def outer(data: bytes) -> Callable[[Path], object]:
    return raw(T, data)


def inner(data: bytes) -> Callable[[Path], object]:
    """One of the inner tars is these bytes."""
    return raw(T, tar_of({f"{CLASSES[0]}.tar": data, f"{CLASSES[1]}.tar": INNER}))


def pax(records: bytes) -> bytes:
    """A tar of one member with what pax says of it."""
    return headed(b"x", b"%011o" % len(records), b"x", records) + member("a.JPEG", archives.picture()) + END


def cut(share: float) -> Callable[[Path], object]:
    def make(project: Path) -> None:
        data = (project / T).read_bytes()
        (project / T).write_bytes(data[: int(len(data) * share)])

    return make


DAMAGED = f"{TRAIN}: is not a tar, or is damaged, at byte"
CASES = [
    Case("nothing in it", outer(b""), f"{TRAIN}: is not a tar, or ends early, at byte 0"),
    Case("only its end", outer(END), f"{TRAIN}: holds no tar per class"),
    Case("garbage", outer(b"garbage" * 1000), f"{DAMAGED} 0"),
    Case("ones", outer(b"\xff" * 10_240), f"{DAMAGED} 0"),
    Case("compressed", outer(b"\x1f\x8b\x08\0" + b"x" * 5000), f"{DAMAGED} 0"),
    Case("cut within a member", cut(0.5), f"{TRAIN}: "),
    Case("cut before its end", lambda project: (project / T).write_bytes((project / T).read_bytes()[:-1024]), "ends early"),
    Case("a checksum that is wrong", outer(b"x" + member("n.tar", INNER)[1:] + END), f"{DAMAGED} 0"),
    Case("a member of a size below nothing", outer(headed(b"n.tar", b"-0000001000") + END), f"{DAMAGED} 0", before="hang"),
    Case("a size with a plus", outer(headed(b"n.tar", b"+0000000000") + END), f"{DAMAGED} 0", before="accepted"),
    Case("a size with an underscore", outer(headed(b"n.tar", b"0000_000000") + END), f"{DAMAGED} 0", before="accepted"),
    Case("a size in letters", outer(headed(b"n.tar", b"many") + END), f"{DAMAGED} 0"),
    Case("a size beyond the file", outer(headed(b"n.tar", b"77777777777") + END), "ends within a member that begins at byte 0"),
    Case("a size in base 256 beyond all disks", outer(headed(b"n.tar", b"\x80" + b"\xff" * 11) + END), "ends within a member"),
    Case("a size in base 256 below nothing", outer(headed(b"n.tar", b"\xff" * 12) + END), "ends within a member"),
    Case("a name of 100,000 bytes", outer(headed(b"long", b"%011o" % 100_000, b"L", b"n" * 100_000) + END),
         f"{TRAIN}: has a name of 100,000 bytes at byte 0", before="accepted"),
    Case("pax without a length", outer(pax(b"garbage")), f"{DAMAGED} 0", before="traceback"),
    Case("pax of length nothing", outer(pax(b"0 path=a\n")), f"{DAMAGED} 0", before="traceback"),
    Case("pax of a length below nothing", outer(pax(b"-5 path=a\n")), f"{DAMAGED} 0", before="traceback"),
    Case("pax longer than it is", outer(pax(b"99 path=a\n")), f"{DAMAGED} 0", before="accepted"),
    Case("pax without a sign", outer(pax(b"9 path a\n")), f"{DAMAGED} 0", before="accepted"),
    Case("pax with a size in letters", outer(pax(b"12 size=abc\n")), f"{DAMAGED} 0", before="traceback"),
    Case("pax with a size below nothing", outer(pax(b"13 size=-512\n")), f"{DAMAGED} 0", before="accepted"),
    Case("pax with a size of a thousand digits", outer(pax(b"1011 size=%s\n" % (b"9" * 1000))), f"{DAMAGED} 0", before="traceback"),
    Case("a class twice", outer(tar_of({"a/n1.tar": INNER, "b/n1.tar": INNER})), f"{TRAIN}: holds the class n1 twice",
         before="accepted"),
    Case("a hard link in place of an image", inner(INNER[:-1024] + headed(b"b.JPEG", b"0", b"1") + END),
         f"{CLASSES[0]}.tar: b.JPEG: is a hard link, not a file", before="accepted"),
    Case("an image of an unknown kind", inner(headed(b"b.JPEG", b"0", b"!") + INNER),
         "b.JPEG: is of the unknown kind '!', not a file", before="accepted"),
    Case("two images of one name", inner(INNER[:-1024] + INNER), "a.JPEG: is not the last of this name in the tar",
         before="accepted"),
    Case("a class without images", inner(bytes(10240)), f"{CLASSES[0]}.tar: is a class without images", before="accepted"),
    Case("a class that is a link", outer(tar_of({f"{CLASSES[0]}.tar": INNER})[:-1024] + headed(b"n2.tar", b"0", b"2") + END),
         f"{TRAIN}: n2.tar: is a symbolic link, not a file", before="accepted"),
    Case("no tar in it", outer(tar_of({"readme.txt": b"x"})), f"{TRAIN}: holds no tar per class"),
    Case("a class that is no tar", inner(b"garbage" * 200), DAMAGED),
    Case("a class that is cut", inner(INNER[:700]), f"{TRAIN}: "),
    Case("a class of a size below nothing", inner(headed(b"a.JPEG", b"-0000001000") + END), DAMAGED, before="hang"),
    Case("no held-out images", lambda project: (project / "pictures" / HELD_OUT).unlink(), f"{TRAIN} is there, but not {HELD_OUT}"),
    Case("held-out images that are none", raw(f"pictures/{HELD_OUT}", b"garbage" * 200), f"{HELD_OUT}: is not a tar"),
    Case("a pipe in its place", pipe(T), "pictures/train: is not there", before="unclear"),
    Case("a link that leads nowhere", link(T, "nowhere.tar"), "pictures/train: is not there", before="unclear"),
]  # fmt: skip


def test_without_a_fault_the_tars_are_accepted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archives.imagenet(project / "pictures")
    assert run(WORDS, capsys).status == 0


def test_pax_that_is_right_is_accepted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archives.imagenet(project / "pictures")
    inner(pax(b"26 path=a/other/name.JPEG\n"))(project)
    assert run(WORDS, capsys).status == 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_tar_is_refused(case: Case, refuse: Refuse) -> None:
    archives.imagenet(refuse.project / "pictures")
    refuse(case, WORDS, may_write=("made",))
