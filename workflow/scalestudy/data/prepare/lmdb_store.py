"""One LMDB database per split (Chu: "MDB: A memory-mapped database", 2011), filled by one writer."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb

from scalestudy.data.disk import FULL
from scalestudy.data.index import Labels
from scalestudy.data.manifest import Split, database_key
from scalestudy.data.prepare import parts
from scalestudy.data.prepare.convert import Converted
from scalestudy.data.prepare.parts import PreparedPart
from scalestudy.data.prepare.shard import Gather
from scalestudy.data.progress import Progress
from scalestudy.limits import usable_cores

PER_TRANSACTION = 250
"""Most samples that are written again after a kill."""
AHEAD = 32
"""Images converted ahead of the writer, per core."""
FIRST_MAP_BYTES = 1 << 26


def write_database(
    folder: Path, records: Path, split: Split, labels: Labels, convert: Callable[[int], Converted], gather: Gather,
    progress: Progress,
) -> list[PreparedPart]:  # fmt: skip
    """Sample i of the index under `database_key(i)`, in `<split>.lmdb/`; transactions recorded in `records` are kept."""
    place = folder / f"{split}.lmdb"
    done: list[PreparedPart] = []
    if place.is_dir():
        while (part := parts.load(records, f"{split}-{len(done):07d}")) is not None:
            done.append(part)
    place.mkdir(exist_ok=True)
    with _opened(place) as environment:
        stored = sum(len(part.index) for part in done)
        _delete_from(environment, stored)
        first = min(len(done) * PER_TRANSACTION, len(labels))
        progress.add(first)
        left, ahead = len(labels) - first, AHEAD * usable_cores()
        with parts.in_order(lambda n: convert(first + n), left, ahead) as results:
            for begin in range(first, len(labels), PER_TRANSACTION):
                end = min(begin + PER_TRANSACTION, len(labels))
                gathered = gather()
                pieces = [gathered.one(number, next(results)) for number in range(begin, end)]
                values = [data for data in pieces if data is not None]
                _put(environment, stored, values)
                part = gathered.part(labels, [len(value) for value in values], [zlib.crc32(value) for value in values])
                parts.save(records, f"{split}-{len(done):07d}", part)
                done.append(part)
                stored += len(values)
                progress.add(end - begin)
    return done


@contextlib.contextmanager
def _opened(place: Path) -> Iterator[lmdb.Environment]:
    """The environment, for this one writer; OSError in this block where its disk is full."""
    # No other process uses the folder while it is made, so LMDB's own lock file is not needed.
    environment = lmdb.open(str(place), map_size=FIRST_MAP_BYTES, lock=False)
    try:
        yield environment
    except lmdb.Error as error:
        # LMDB has no class for errors of the system: only the text says which one it was.
        full = next((number for number in FULL if os.strerror(number) in str(error)), None)
        if full is None:
            raise
        raise OSError(full, os.strerror(full), str(place)) from None
    finally:
        environment.close()


def _put(environment: lmdb.Environment, first: int, values: list[bytes]) -> None:
    """One transaction, synced; the map grows as needed."""
    while True:
        try:
            with environment.begin(write=True) as transaction:
                for number, value in enumerate(values, first):
                    transaction.put(database_key(number), value, append=True)
            return
        except lmdb.MapFullError:
            environment.set_mapsize(2 * environment.info()["map_size"])


def _delete_from(environment: lmdb.Environment, first: int) -> None:
    """Delete what a killed writer stored without recording it."""
    with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
        there = cursor.set_range(database_key(first))
        while there:
            there = cursor.delete()
