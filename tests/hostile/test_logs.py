"""NCCL's logs: what they say of transports decides whether a run counts, and what they do not say decides nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalestudy.results.warnings import nccl_log, nccl_transports
from tests.hostile.harness import Case, Refuse

GOOD = "h1:7:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
FOUND = {(0, 1, "P2P/CUMEM"): 1}
NOTHING: dict[tuple[int, int, str], int] = {}
LOGS: list[tuple[str, str, dict[tuple[int, int, str], int], str]] = [
    ("as it is", GOOD, FOUND, ""),
    ("nothing in it", "", NOTHING, ""),
    ("cut within the line", GOOD[:-20], NOTHING, ""),
    ("cut within the transport", GOOD[:-5], {(0, 1, "P2P/C"): 1}, ""),
    ("zeros, then the line", "\0" * 4096 + GOOD, FOUND, ""),
    ("bytes that are no text, then the line", "\ufffd" * 4096 + "\n" + GOOD, FOUND, ""),
    ("two processes in one line", GOOD[:-1] + GOOD, {(0, 1, "P2P/CUMEMH1"): 1, **FOUND}, ""),
    ("a rank of ten digits", GOOD.replace("0[0]", "1234567890[0]"), NOTHING, ""),
    ("a rank of ten thousand digits", GOOD.replace("0[0]", "1" * 10_000 + "[0]"), NOTHING, "traceback"),
    ("a rank of a million digits", GOOD.replace("0[0]", "1" * 1_000_000), NOTHING, "hang"),
    ("a million lines of another kind", "h1:7:7 [0] NCCL INFO Ring 00 : \n" * 100_000 + GOOD, FOUND, ""),
    ("half a million words without an end", "Ring 00 : 0[0] -> " * 30_000, NOTHING, ""),
    ("a transport of 10,000 letters", GOOD.replace("CUMEM", "C" * 10_000), {(0, 1, "P2P/" + "C" * 32): 1}, "unclear"),
    ("a transport with a terminal's command", GOOD.replace("CUMEM", "\x1b[2J"), {(0, 1, "P2P"): 1}, ""),
    ("a rank below nothing", GOOD.replace("0[0]", "-1[0]"), NOTHING, ""),
    ("digits of another script", GOOD.replace("0[0]", "\u0663[0]"), NOTHING, "accepted"),
]


@pytest.mark.parametrize(("name", "log", "found", "before"), LOGS, ids=[log[0] for log in LOGS])
def test_a_damaged_log_names_no_transport_that_it_does_not_hold(
    name: str, log: str, found: dict[tuple[int, int, str], int], before: str, refuse: Refuse
) -> None:
    begin = time.process_time()
    assert dict(nccl_transports(log)) == found
    assert time.process_time() - begin < 5
    refuse.note(Case(name, Path, "", before=before), f"read past; transports found: {len(found)}")


class Job:
    """What of a job names its logs."""

    def __init__(self, log: Path) -> None:
        self.log = log


ODD: dict[str, Callable[[Path], Any]] = {
    "a folder": Path.mkdir,
    "a link that leads nowhere": lambda place: place.symlink_to("nowhere"),
    "a link to a device": lambda place: place.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a gigabyte of nothing": lambda place: place.write_bytes(b"") or os.truncate(place, 1 << 30),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_log_that_is_none_is_read_past(kind: str, project: Path, refuse: Refuse) -> None:
    ODD[kind](project / "nccl.0.log")
    (project / "nccl.1.log").write_bytes(b"\xff\xfe" + GOOD.encode())
    text = nccl_log(Job(project))  # type: ignore[arg-type]
    assert dict(nccl_transports(text)) == FOUND
    assert len(text) < 100_000_000
    before = {
        "a pipe": "hang",
        "a link to a device": "hang",
        "a folder": "traceback",
        "a link that leads nowhere": "traceback",
    }
    refuse.note(Case(kind, Path, "", before=before.get(kind, "accepted")), "read past")
