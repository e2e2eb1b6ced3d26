"""Each parser of foreign bytes under edited and random input: it accepts them, or refuses them by a message."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalestudy.cluster.doctor.facts import facts_of
from scalestudy.data.decode import images
from scalestudy.data.sources.chest_xray14 import _table
from scalestudy.data.sources.imagenet import _by_stem
from scalestudy.data.tar import END, entries, member
from scalestudy.errors import UNSEEN, UserError
from scalestudy.launch.connections import parsed
from scalestudy.results.transports import nccl_transports
from tests.foreign import published, test_schedulers
from tests.unit.cluster.recorded_sites import Recorded

EXAMPLES = int(os.environ.get("SCALESTUDY_FUZZ_EXAMPLES", "40"))
"""Inputs of each parser; `make soak` has more."""
TOKENS = (
    b"\0",
    b"\xff" * 4,
    b"-1",
    b"9" * 40,
    b"../",
    b'"',
    b"{",
    b"[",
    b"\n",
    b"PK\x01\x02",
    b"\xff\xd8",
    "\ud7ff".encode(),
)
EDITS = st.tuples(st.floats(0, 1), st.integers(0, 2000), st.one_of(st.sampled_from(TOKENS), st.binary(max_size=6)))
"""Where, the number of removed bytes, and their replacement."""


def edited(data: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    for where, removed, put in edits:
        begin = int(where * len(data))
        data = data[:begin] + put + data[begin + removed :]
    return data


def written(name: str, data: bytes) -> Path:
    Path(name).write_bytes(data)
    return Path(name)


def tar(data: bytes) -> None:
    before = -1
    for entry in entries(written("x.tar", data)):
        assert before < entry.start <= entry.start + entry.size <= len(data)
        before = entry.start


def image(data: bytes) -> None:
    try:
        if data[:2] in (b"\xff\xd8", b"\x89P"):
            height, width = images.header(data)
            if height * width < 1_000_000:
                images.decode(data)
    except images.UNREADABLE:
        pass


def nccl_log(data: bytes) -> None:
    for sender, receiver, via in nccl_transports(data.decode(errors="replace")):
        assert sender < 10**9 and receiver < 10**9 and len(via) < 200


def peer(data: bytes) -> None:
    assert isinstance(parsed(data), dict | None)


def table(data: bytes) -> None:
    _table(written("Data_Entry_2017.csv", data))


def classes(data: bytes) -> None:
    _by_stem(data.decode(errors="replace").splitlines(), Path("x.csv"))


def scheduler(source: str) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        found = test_schedulers.statuses(source, lambda _out: data.decode(errors="replace"))
        assert not isinstance(found, str) or found.isprintable()

    return run


def cluster(kind: str) -> Callable[[bytes], None]:
    recorded = test_schedulers.SITES[kind]

    def run(data: bytes) -> None:
        command = sorted(recorded)[len(data) % len(recorded)]
        facts_of(kind, Recorded({**recorded, command: data.decode(errors="replace")}))

    return run


def tars() -> list[bytes]:
    pax = published.headed(b"x", b"%011o" % 26, b"x", b"26 path=a/other/name.JPEG\n")
    return [published.tar_of({"a.jpg": b"x" * 600, "b.jpg": b"y"}), pax + member("a", b"1") + END]


def texts(*texts: str) -> Callable[[], list[bytes]]:
    return lambda: [text.encode() for text in texts]


LOG = "h1:7:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\nRing 01 : 16 -> 0 [send] via NET/IB/0\n"
PARSERS: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "tar": (tar, tars),
    "image": (image, lambda: [published.picture(), published.picture(form="PNG")]),
    "table of findings": (table, texts(f"{published.HEAD}\na.png,Mass|Edema,1\nb.png,No Finding,2\n")),
    "list of classes": (classes, texts("ImageId,PredictionString\nILSVRC2012_val_00000001,n01440764 85 1 499 272\n")),
    "log of NCCL": (nccl_log, texts(LOG)),
    "peer": (peer, lambda: [json.dumps({"token": "x", "index": 1, "ready": 5}).encode()]),
    **{
        source: (scheduler(source), texts(outputs[command]))
        for source, (_, command, outputs, _) in test_schedulers.SOURCES.items()
        if command in outputs
    },
    **{
        f"cluster {kind}": (cluster(kind), texts(*recorded.values()))
        for kind, recorded in test_schedulers.SITES.items()
    },
}
"""The parser, and valid inputs, from which damaged ones are made."""


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_of_foreign_bytes_ends_with_a_result_or_a_message(name: str, project: Path) -> None:
    parse, seeds = PARSERS[name]
    valid = seeds()
    for data in valid:
        parse(data)
    damaged = st.builds(edited, st.sampled_from(valid), st.lists(EDITS, min_size=1, max_size=4))

    @settings(max_examples=EXAMPLES, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(damaged, st.binary(max_size=200)))
    def fuzz(data: bytes) -> None:
        try:
            parse(data)
        except UserError as error:
            assert str(error) and not UNSEEN.search(str(error)), ascii(str(error))

    fuzz()
