"""ImageNet as it is published, a tar of a tar per class, read by `scalestudy prepare`."""

from __future__ import annotations

import os
from pathlib import Path

from scalestudy.data.tar import END, member
from tests.foreign import published
from tests.foreign.conftest import Command, Spoil, cases, link, raw
from tests.foreign.published import CLASSES, HELD_OUT, TRAIN, headed, tar_of

WORDS = published.spec("imagenet")
T = f"pictures/{TRAIN}"
INNER = tar_of({"a.JPEG": published.picture()})


def outer(data: bytes) -> Spoil:
    return raw(T, data)


def inner(data: bytes) -> Spoil:
    """One of the inner tars is these bytes."""
    return raw(T, tar_of({f"{CLASSES[0]}.tar": data, f"{CLASSES[1]}.tar": INNER}))


def pax(records: bytes) -> bytes:
    """A tar of one member with these extended headers."""
    return headed(b"x", b"%011o" % len(records), b"x", records) + member("a.JPEG", published.picture()) + END


def half(project: Path) -> None:
    os.truncate(project / T, (project / T).stat().st_size // 2)


DAMAGED = f"{TRAIN}: is not a tar, or is damaged, at byte"
CASES = {
    "empty": (outer(b""), f"{TRAIN}: is not a tar, or ends early, at byte 0"),
    "only its end": (outer(END), f"{TRAIN}: holds no tar per class"),
    "compressed": (outer(b"\x1f\x8b\x08\0" + b"x" * 5000), f"{DAMAGED} 0"),
    "cut within a member": (half, f"{TRAIN}: "),
    "a wrong checksum": (outer(b"x" + member("n.tar", INNER)[1:] + END), f"{DAMAGED} 0"),
    "a negative size": (outer(headed(b"n.tar", b"-0000001000") + END), f"{DAMAGED} 0"),
    "a size in letters": (outer(headed(b"n.tar", b"many") + END), f"{DAMAGED} 0"),
    "a size beyond the file": (outer(headed(b"n.tar", b"77777777777") + END), "ends within a member"),
    "a size in base 256 beyond all disks": (outer(headed(b"n.tar", b"\x80" + b"\xff" * 11) + END), "ends within"),
    "a name of 100,000 bytes": (
        outer(headed(b"long", b"%011o" % 100_000, b"L", b"n" * 100_000) + END),
        "100,000 bytes",
    ),
    "pax of length 0": (outer(pax(b"0 path=a\n")), f"{DAMAGED} 0"),
    "pax longer than its record": (outer(pax(b"99 path=a\n")), f"{DAMAGED} 0"),
    "pax with a negative size": (outer(pax(b"13 size=-512\n")), f"{DAMAGED} 0"),
    "a class twice": (outer(tar_of({"a/n1.tar": INNER, "b/n1.tar": INNER})), "holds the class n1 twice"),
    "a class without images": (inner(bytes(10240)), "is a class without images"),
    "a class of garbage": (inner(b"garbage" * 200), DAMAGED),
    "garbage as held-out images": (raw(f"pictures/{HELD_OUT}", b"garbage" * 200), f"{HELD_OUT}: is not a tar"),
    "a link to nothing": (link(T, "nowhere.tar"), "pictures/train: cannot be listed"),
}


def test_undamaged_tars_are_accepted_also_with_extended_headers(command: Command) -> None:
    published.imagenet(command.project / "pictures")
    inner(pax(b"26 path=a/other/name.JPEG\n"))(command.project)
    command.accepts(*WORDS)


@cases(CASES)
def test_a_wrong_tar_is_refused(spoil: Spoil, message: str, command: Command) -> None:
    published.imagenet(command.project / "pictures")
    command.refuses(spoil, message, WORDS)
