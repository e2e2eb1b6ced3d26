"""What is brought home of a call: one archive, below the size that a transfer may have."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

MOST_BYTES = 15 * 2**20
ARCHIVE = "gpu.tar.gz"


def archive(out: Path, files: Iterable[tuple[str, Path]], most_bytes: int = MOST_BYTES) -> list[str]:
    """Write `gpu.tar.gz` with files by their names in it, the most important first; returns the names of what did not fit.

    The limit is one of the archive, of which each file has at most its own size.
    """
    left_out: list[str] = []
    room = most_bytes
    with tarfile.open(out / ARCHIVE, "w:gz") as packed:
        for name, path in files:
            size = path.stat().st_size + 1024  # its header, and what fills its last block
            if size > room:
                left_out.append(name)
                continue
            packed.add(path, name, recursive=False)
            room -= size
        if left_out:
            text = ("Too large for the archive:\n" + "\n".join(left_out) + "\n").encode()
            entry = tarfile.TarInfo("left_out.txt")
            entry.size = len(text)
            packed.addfile(entry, io.BytesIO(text))
    return left_out


def to_bring(out: Path, work: Path) -> list[tuple[str, Path]]:
    """The outcomes, what parts kept (exports, figures, machine files), then results and logs of runs."""
    kept = sorted(path for path in (work / "kept").rglob("*") if path.is_file())
    files = work / "files"
    of_runs = [path for pattern in ("result.json", "rank.*.log") for path in sorted(files.rglob(pattern))]
    return [
        ("gpu.json", out / "gpu.json"),
        *((f"kept/{path.relative_to(work / 'kept')}", path) for path in kept),
        *((f"runs/{path.relative_to(files)}", path) for path in of_runs if path.stat().st_size),
    ]
