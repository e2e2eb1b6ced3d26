"""Files that are whole or absent: atomic writes, canonical JSON, checksums."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scalestudy.errors import UserError, visible


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """A temporary path beside `path`; its file is synced and renamed when the block ends well.

    The temporary name keeps the suffix of `path`, because writers choose their format by it. Errors of the system name
    `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem[:80]}.{secrets.token_hex(8)}{path.suffix}")
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        if error.filename is None or Path(str(error.filename)).name == temporary.name:
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def expanded(folder: str) -> Path:
    """A folder as a person writes it, with `~` and `$VARIABLES`; a variable that is not set stays."""
    return Path(os.path.expandvars(folder)).expanduser()


def sync_directory(directory: Path) -> None:
    """Make a rename in `directory` survive a crash; file systems that cannot are left to themselves."""
    descriptor = os.open(directory, os.O_RDONLY)
    with suppress(OSError):  # some network file systems refuse to sync a directory
        os.fsync(descriptor)
    os.close(descriptor)


def now_at_most(*files: Path | str) -> None:
    """Date files of the future now. Snakemake refuses an output that is older than an input, and clocks differ."""
    for file in files:
        with suppress(OSError):
            if Path(file).stat().st_mtime > time.time():
                os.utime(file)


def write_text(path: Path | str, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any) -> None:
    """Write indented JSON atomically; not-a-number becomes null, so that any reader can read it."""
    write_text(path, json.dumps(finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_with(path: Path | str, write: Callable[[Path], Any]) -> None:
    """Let a library write a file, atomically."""
    with atomic_path(path) as temporary:
        write(temporary)


def read_json(path: Path | str) -> Any:
    """Read a JSON file of ours; a damaged one, or no file at all, is a UserError that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError("no such file", str(path)) from None
    except OSError as error:
        error.filename = str(path)  # what reads does not say where
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"not readable as JSON: {error}", str(path), "delete it; it will be made again") from None


def json_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file that has one in each line; lines that are none, as a crash can leave them, are left out."""
    if file.exists():
        for line in file.read_bytes().splitlines():
            with suppress(ValueError, RecursionError):
                value = json.loads(line)
                if isinstance(value, dict):
                    yield value


TAIL_BYTES = 1 << 16


def tail(file: Path | str) -> str:
    """The last TAIL_BYTES of a log, as text; empty where there is no file."""
    try:
        with open(file, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


WHOLE, NUMBER = re.compile(r"[0-9]{1,18}"), re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,2})?")
CELLS = "give each row a cell for each column; put text that holds a comma in quotes"


def read_table(
    file: Path, needed: Collection[str] = (), wholes: Collection[str] = (), numbers: Collection[str] = ()
) -> list[dict[str, str]]:
    """The rows of a CSV file, by the names in its first line; cells may be empty, but for those of `needed` columns.

    Raises UserError, with the line, where it is no table, a `needed` value is missing, or a value in a column of
    `wholes` or `numbers` is none.
    """
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            rows = [(reader.line_num, row) for row in reader]
            names = list(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot be read as a table in UTF-8: {error}", str(file), "is it the right file?") from None
    for name in needed:
        if name not in names:
            raise UserError(f"has no column `{name}`", f"{file}:1", "add it")
    if len(set(names)) < len(names):
        raise UserError("has a column twice", f"{file}:1", "keep one of them")
    kinds = [(WHOLE, "a whole number", name) for name in wholes] + [(NUMBER, "a number", name) for name in numbers]
    for line, row in rows:
        if None in row or None in row.values():
            raise UserError(f"has not {len(names)} cells, as the first line has", f"{file}:{line}", CELLS)
        if empty := [name for name in needed if not row[name].strip()]:
            raise UserError("has no value", f"{file}:{line}: {empty[0]}", "add it, or remove the row")
        for kind, what, name in kinds:
            if row.get(name) and kind.fullmatch(row[name]) is None:
                raise UserError(f"must be {what}, not `{row[name][:60]}`", f"{file}:{line}: {name}", "correct it")
    return [row for _, row in rows]


def visible_texts(value: Any) -> Any:
    """Plain data with all its texts as messages show them."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(str(key)): visible_texts(item) for key, item in value.items()}
    return [visible_texts(item) for item in value] if isinstance(value, list) else value


def finite(value: Any) -> Any:
    """`value` with every NaN and infinity replaced by None, recursively."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sha256_text(text: str) -> str:
    """SHA-256 of UTF-8 text, hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path | str) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
