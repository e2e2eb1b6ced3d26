"""Images converted by all cores and stored in order, part after part; whole parts outlive a kill."""

from __future__ import annotations

import contextlib
import json
import shutil
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.disk import sync
from scalestudy.data.index import Index, Labels
from scalestudy.data.manifest import Split
from scalestudy.data.prepare.select import Converted, Unreadable
from scalestudy.data.progress import Progress
from scalestudy.limits import usable_cores

IMAGES_PER_PART = 250
"""Most images that are converted again after a kill, where they are not in shards."""
CHUNK, AHEAD = 16, 2
"""Images that a thread converts at once, and chunks per core that are converted ahead of the writer."""
Made = tuple[int, Converted | Unreadable]
"""An image's planned number, and what became of it."""


@dataclass(frozen=True)
class Part:
    """Some consecutive images of a split, stored."""

    index: Index
    left_out: list[str]
    """Images that cannot be read: name and reason."""
    written: tuple[int, int] = (0, 0)
    """Bytes and XXH3 of the shard that holds them."""


Kept = Iterator[tuple[int, bytes]]
"""The images of a part that could be read: planned number and bytes."""


@dataclass(frozen=True)
class Job:
    """The conversion of one split."""

    doing: str
    split: Split
    labels: Labels
    """Labels of the planned images."""
    convert: Callable[[int], Converted]
    """Convert an image, by its planned number; called by several threads."""
    skip: bool
    """Whether images that cannot be read are left out."""
    records: Path
    """Folder of the records of whole parts."""


def stored(job: Job, edges: NDArray[np.int64], write: Callable[[list[Part], Kept], dict[str, Any]]) -> list[Part]:
    """The parts between `edges`; those on record are kept.

    `write` stores the images of the part that follows those it is given. It returns further fields of the part's index,
    `paths` of its files, and for a shard what is `written`.
    """
    parts: list[Part] = []
    while len(parts) < len(edges) - 1 and (part := _load(job, len(parts))) is not None:
        parts.append(part)
    done, total = int(edges[len(parts)]), int(edges[-1])
    with Progress(f"{job.doing} {job.split}", total, done) as progress, ThreadPoolExecutor(usable_cores()) as pool:
        made = _in_order(pool, job, done, total)
        for begin, end in pairwise(edges[len(parts) :].tolist()):
            rows, left_out = list[tuple[int, int, int]](), list[str]()
            more = write(parts, _kept(islice(made, end - begin), rows, left_out))
            numbers, sizes, checks = np.array(rows, np.int64).reshape(-1, 3).T.copy()
            written, paths = more.pop("written", (0, 0)), more.pop("paths", None)
            index = Index.of(paths, job.labels[numbers], sizes, checks.astype(np.uint32), **more)
            part = Part(index, left_out, written)
            _save(job, len(parts), part)
            parts.append(part)
            progress.add(end - begin)
    return parts


def _kept(made: Iterator[Made], rows: list[tuple[int, int, int]], left_out: list[str]) -> Kept:
    """Record number, size and CRC-32 of each image that could be read in `rows`, and the others in `left_out`."""
    for number, image in made:
        if isinstance(image, Unreadable):
            left_out.append(f"{image.where}: {image.what}")
            continue
        rows.append((number, len(image.data), image.check))
        yield number, image.data


def _in_order(pool: ThreadPoolExecutor, job: Job, begin: int, end: int) -> Iterator[Made]:
    def convert(number: int) -> Made:
        try:
            return number, job.convert(number)
        except Unreadable as error:
            if not job.skip:
                raise
            return number, error

    waiting: deque[Future[list[Made]]] = deque()
    for first in range(begin, end, CHUNK):
        numbers = range(first, min(first + CHUNK, end))
        waiting.append(pool.submit(lambda numbers: [convert(number) for number in numbers], numbers))
        if len(waiting) > AHEAD * usable_cores():
            yield from waiting.popleft().result()
    while waiting:
        yield from waiting.popleft().result()


def begin_work(work: Path, plan: str) -> Path:
    """The folder in which data is made, and in it that of records; what was left there of another plan is removed."""
    records, kept = work / "parts", work / "plan"
    for begun in work.glob(".*"):  # by a process that was killed
        begun.unlink()
    if not kept.is_file() or kept.read_text() != plan:
        shutil.rmtree(work, ignore_errors=True)
        records.mkdir(parents=True)
        kept.write_text(plan)
    return records


def end_work(work: Path) -> None:
    """Remove records and plan: all parts are written, and on the disk."""
    sync(work)
    shutil.rmtree(work / "parts")
    (work / "plan").unlink()


def _record(job: Job, number: int) -> Path:
    return job.records / f"{job.split}-{number:07d}.npz"


def _save(job: Job, number: int, part: Part) -> None:
    record = _record(job, number)
    facts = json.dumps([part.left_out, *part.written]).encode()  # ASCII: names may be in any encoding
    with open(record.with_suffix(".part"), "wb") as stream:
        np.savez(stream, facts=np.frombuffer(facts, np.uint8), **vars(part.index))
    record.with_suffix(".part").replace(record)


def _load(job: Job, number: int) -> Part | None:
    with contextlib.suppress(OSError, EOFError, zipfile.BadZipFile), np.load(_record(job, number)) as record:
        left_out, size, digest = json.loads(record["facts"].tobytes())
        index = Index(**{name: record[name] for name in Index.__dataclass_fields__})
        return Part(index, left_out, (size, digest))
    return None  # or a crash of the host left it empty
