"""Long work in parts: one thread does each, records it when it is whole, and after a kill it is not repeated."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.index import DAMAGED, Index, Labels, load_arrays
from scalestudy.data.manifest import Split
from scalestudy.data.prepare.convert import Converted, Unreadable
from scalestudy.data.progress import Progress
from scalestudy.files import plain_file
from scalestudy.limits import usable_cores

T = TypeVar("T")
RECORDS, PLAN = "parts", "plan"
"""In a work folder: records of whole parts, the plan that they belong to, and listings of the source's folders."""


@dataclass(frozen=True)
class PreparedPart:
    """The outcome of some consecutive samples of a split."""

    index: Index
    bytes_in: int
    left_out: list[str]
    """Samples that cannot be read: name and reason."""
    shards: NDArray[np.uint64] = field(default_factory=lambda: np.zeros((0, 4), np.uint64))
    """[shards, 4] number, samples, bytes and XXH3 of each shard written."""


class PartJob(NamedTuple):
    """The work of one part: consecutive samples of a split, by their planned numbers; in shards, those of `shards`."""

    split: Split
    number: int
    begin: int
    end: int
    shards: tuple[tuple[int, int, int], ...] = ()
    """Number, begin and end of each shard."""


class Gathered:
    """Samples of a part, converted one by one; with `skip`, those that cannot be read are left out."""

    def __init__(self, convert: Callable[[int], Converted], skip: bool) -> None:
        self._convert, self._skip = convert, skip
        self.kept: list[int] = []
        self.left_out: list[str] = []
        self.bytes_in = 0
        self._sides: list[tuple[int, int]] = []

    def samples(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Planned number and bytes of each image that can be read."""
        for number in range(begin, end):
            if (data := self.one(number, functools.partial(self._convert, number))) is not None:
                yield number, data

    def one(self, number: int, made: Callable[[], Converted]) -> bytes | None:
        """The bytes of an image, which is counted; None where it is left out."""
        try:
            picture = made()
        except Unreadable as error:
            if not self._skip:
                raise
            self.left_out.append(f"{error.where}: {error.what}")
            return None
        self.kept.append(number)
        self._sides.append((picture.width, picture.height))
        self.bytes_in += picture.bytes_in
        return picture.data

    def part(
        self, labels: Labels, sizes: Sequence[int], checks: Sequence[int], paths: Sequence[str] = (), **more: Any
    ) -> PreparedPart:
        """The outcome: stored bytes and CRC-32 of each image that was kept; `more` are further fields of the index.

        `labels` are those of all planned samples. Without `paths`, images have no names.
        """
        sides = np.array(self._sides, np.int64).reshape(-1, 2)
        known = np.where(sides <= np.iinfo(np.uint16).max, sides, 0).astype(np.uint16)
        more |= {"width": known[:, 0], "height": known[:, 1]}
        index = Index.of(paths, labels[self.kept], np.array(sizes, np.int64), np.array(checks, np.uint32), **more)
        if not paths:
            index = dataclasses.replace(index, offsets=np.zeros(0, np.int64))
        return PreparedPart(index, self.bytes_in, self.left_out)


def records_folder(work: Path, plan: str, name: str = "") -> Path:
    """The folder of records of parts. Where it belongs to another plan, it is emptied first.

    Without a `name`, everything else in `work` was made by that plan, and is removed too.
    """
    records, kept = work / f"{RECORDS}{name}", work / f"{PLAN}{name}"
    if kept.is_file() and kept.read_text() == plan:
        return records
    for left in [records] if name else list(work.iterdir()):
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)
    records.mkdir()
    with open(kept, "w", encoding="utf-8", opener=plain_file) as stream:
        stream.write(plan)
    return records


def forget_records(work: Path) -> None:
    """Remove records and plan: all parts are written."""
    shutil.rmtree(work / RECORDS)
    (work / PLAN).unlink()


def save(folder: Path, name: str, part: PreparedPart) -> None:
    """Record that a part is whole."""
    arrays = {f"index_{key}": value for key, value in vars(part.index).items()}
    text = np.frombuffer(json.dumps(part.left_out).encode(), np.uint8)  # ASCII: names may be in any encoding
    temporary = folder / f"{name}.part"
    with open(temporary, "wb", opener=plain_file) as stream:
        np.savez(stream, bytes_in=np.int64(part.bytes_in), left_out=text, shards=part.shards, **arrays)
    temporary.replace(folder / f"{name}.npz")


def load(folder: Path, name: str) -> PreparedPart | None:
    """The record of a part, where it is whole."""
    with contextlib.suppress(*DAMAGED):
        arrays = load_arrays(folder / f"{name}.npz")
        index = Index(**{key: arrays[f"index_{key}"] for key in Index.__dataclass_fields__})
        return PreparedPart(index, int(arrays["bytes_in"]), json.loads(arrays["left_out"].tobytes()), arrays["shards"])
    return None


def done(
    folder: Path,
    jobs: Sequence[PartJob],
    work: Callable[[PartJob], PreparedPart],
    progress: Progress,
) -> list[PreparedPart]:
    """The parts of all jobs, in their order, by as many threads as cores; the first error ends all work.

    A part recorded in `folder` is reused.
    """

    def one(job: PartJob) -> PreparedPart:
        name = f"{job.split}-{job.number:07d}"
        part = load(folder, name)
        if part is None:
            part = work(job)
            save(folder, name, part)
        progress.add(job.end - job.begin)
        return part

    with threads() as pool:
        return list(pool.map(one, jobs))


@contextlib.contextmanager
def threads() -> Iterator[ThreadPoolExecutor]:
    """As many threads as cores, each with one torch thread. What uses torch for the first time in them sees to that itself."""
    if (torch := sys.modules.get("torch")) is None:
        pool = ThreadPoolExecutor(usable_cores())
    else:
        torch.set_num_threads(torch.get_num_threads())  # pins the caller's before the threads choose 1
        pool = ThreadPoolExecutor(usable_cores(), initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def in_order(function: Callable[[int], T], count: int, ahead: int) -> Iterator[Iterator[Callable[[], T]]]:
    """Call `function` with every number below `count` in threads, at most `ahead` of the results taken.

    The iterator gives, in order, callables that return the result or raise the error. The threads end with the block: a
    generator that owned them would end them when it is collected, which may happen where `threading` holds its own lock.
    """
    with threads() as pool:
        yield _results(pool, function, count, ahead)


def _results(
    pool: ThreadPoolExecutor, function: Callable[[int], T], count: int, ahead: int
) -> Iterator[Callable[[], T]]:
    waiting: deque[Future[T]] = deque()
    for number in range(count):
        waiting.append(pool.submit(function, number))
        if len(waiting) >= ahead:
            yield waiting.popleft().result
    while waiting:
        yield waiting.popleft().result
