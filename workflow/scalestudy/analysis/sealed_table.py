"""Parquet files that carry a digest of their content, so that a later change shows."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from scalestudy.files import atomic_path, canonical_json, sha256_text

SEAL = b"scalestudy.digest"
"""Key of the digest among the file's own notes; pandas' notes about its columns lie beside it."""
MAGIC, TAIL = 4, 8
"""Bytes of `PAR1` at the begin, and of the footer's length and `PAR1` at the end (Parquet's format, README)."""


def write_table(file: Path, frame: pd.DataFrame) -> None:
    """Write a frame, whole or not at all, with the digest of its content."""
    table = pa.Table.from_pandas(frame)
    # Notes lie in the footer: the columns' bytes are the same with and without them.
    sealed = {**(table.schema.metadata or {}), SEAL: _digest(_written(table)).encode()}
    with atomic_path(file) as temporary:
        temporary.write_bytes(_written(table.replace_schema_metadata(sealed)))


def read_table(file: Path) -> pd.DataFrame:
    """The frame that `write_table` wrote. ValueError, OSError or ArrowException where it is damaged, or was changed since."""
    data = file.read_bytes()
    table = pq.read_table(pa.BufferReader(data))
    seal = (table.schema.metadata or {}).get(SEAL)
    if seal is None or seal.decode("ascii", "replace") != _digest(data):
        raise ValueError("it was changed after it was written: its digest does not match its content")
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _written(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()


def _digest(data: bytes) -> str:
    """SHA-256 over what a Parquet file holds: names and types of its columns, and the bytes of their values."""
    footer = int.from_bytes(data[-TAIL:-MAGIC], "little")
    schema = pq.read_schema(pa.BufferReader(data))
    columns = canonical_json([[field.name, str(field.type)] for field in schema])
    values = memoryview(data)[MAGIC : len(data) - TAIL - footer]
    return sha256_text(f"{columns} {hashlib.sha256(values).hexdigest()}")
