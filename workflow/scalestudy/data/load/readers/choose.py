"""The reader for a dataset's format and a run's input mode."""

from __future__ import annotations

from scalestudy.data.load.readers import DatasetHandle, Reader
from scalestudy.data.load.readers.database import DatabaseReader
from scalestudy.data.load.readers.indexed import IndexedReader
from scalestudy.data.load.readers.memory import MemoryReader
from scalestudy.data.load.readers.stream import StreamReader
from scalestudy.data.load.sample_locations import SampleLocations
from scalestudy.data.manifest import Manifest, bulk_folder, database_path
from scalestudy.data.modes import Mode
from scalestudy.data.stores import ThrottledStore, store_at
from scalestudy.emulation.storage import Throttle
from scalestudy.errors import UserError


def open_reader(handle: DatasetHandle, manifest: Manifest, mode: Mode, places: SampleLocations) -> Reader:
    """Open the reader of one split; UserError where the data cannot be read so."""
    how = handle.how
    throttle = Throttle(how.mib_per_s, how.latency_ms, how.place) if how.limited and how.place else None
    reader: Reader
    if manifest.format == "database":
        if how.origin is not None:
            raise UserError(
                "a database is read only where it lies", "loader.origin", "leave it out, or store the data in shards"
            )
        reader = DatabaseReader(database_path(handle.manifest, manifest, handle.split).absolute(), throttle)
    else:
        store = store_at(
            how.origin or str(bulk_folder(handle.manifest, manifest).absolute()), manifest.format != "files"
        )
        if throttle is not None:
            store = ThrottledStore(store, throttle)
        starts = places.start if len(places.start) else None
        reader = IndexedReader(store, places.name, places.sizes, starts, places.names)
    if mode == "memory":
        return MemoryReader(reader, places.sizes, how.memory)
    if mode == "stream":
        assert isinstance(reader, IndexedReader)
        return StreamReader(reader, how.patience_s)
    return reader
