"""What is noted beside copies of data on a node's own disk, damaged or written by somebody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.data.stage import Share, StageOptions, staged
from scalestudy.spec.config import Site
from tests.hostile import archives
from tests.hostile.harness import Case, Refuse, raw, run
from tests.hostile.test_manifests import MADE, SHARDS

FACTS = [b"", b"\x80", b"[]", b"7", b"{", b"{}", b"[" * 100_000, b'{"state": "copying"}', b'{"state": "copying", "bytes": "x"}',
         b'{"state": 5, "bytes": []}', b'{"state": "whole", "bytes": {}, "private": 3}', b'{"state": "whole", "boot": [1]}',
         b'{"state": "whole", "bytes": true}']  # fmt: skip
BROKE = (b"[]", b"7", b'{"state": "copying"}', b'{"state": "copying", "bytes": "x"}', b'{"state": 5, "bytes": []}')
"""Before: a traceback, in the next run that made room."""


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: ascii(facts[:40]))
def test_damaged_notes_about_copies_are_made_anew(facts: bytes, refuse: Refuse, tmp_path: Path) -> None:
    archives.folders(refuse.project / "pictures")
    assert run(SHARDS, refuse.capsys).status == 0
    site = Site(scratch=str(tmp_path / "scratch"), staged_gib=1.0)
    copies = staged(MADE, StageOptions(), Share(), site)
    copies.release()
    before = copies.entry.facts
    raw(str(copies.entry.root / f"{copies.entry.name}.json"), facts)(refuse.project)
    staged(
        MADE, StageOptions(label="another"), Share(), site
    ).release()  # makes room, and looks at the notes of all others
    refuse.note(Case(f"{facts[:40]!r}", raw("", b""), "", before="traceback" if facts in BROKE else ""), "copied anew")
    again = staged(MADE, StageOptions(), Share(), site)
    again.release()
    assert again.entry.facts == before
