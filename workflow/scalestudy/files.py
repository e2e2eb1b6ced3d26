"""Files that are whole or absent: atomic writes, canonical JSON, checksums."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from scalestudy.errors import UserError, visible


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """A temporary path beside `path`; its file is synced and renamed when the block ends well.

    The temporary name keeps the suffix of `path`, because writers choose their format by it. Errors of the system name
    `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        temporary = path.with_name(f"{_temporary(path)}{secrets.token_hex(8)}{path.suffix}")
        # The kernel applies the umask: to read it here would clear it for a moment, for all threads.
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        try:
            yield temporary
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
            temporary.replace(path)
            sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def _temporary(path: Path) -> str:
    """How the name of a file begins that becomes `path`."""
    return f".{path.stem[:80]}."


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the system in the block that name no file, or the temporary one, name `path`: a write does not say where."""
    try:
        yield
    except OSError as error:
        if error.filename is None or Path(str(error.filename)).name.startswith(_temporary(path)):
            error.filename = str(path)
        raise


def sync_directory(directory: Path) -> None:
    """Make a rename in `directory` survive a crash; file systems that cannot are left to themselves."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:  # some network file systems refuse to sync a directory
        pass
    finally:
        os.close(descriptor)


def plain_file(path: str, flags: int) -> int:
    """`opener` of `open` for files of ours that are written in place, under names that others know: logs, locks, ledgers.

    In a folder that others can write, such a name may be a link to a file of this user, who would empty it by himself.
    No link is followed; the same content under another name (a hard link, as copies by `cp -l` are) keeps
    it. Raises UserError where the name is that of a link, or of anything but a file.
    """
    empties, made = flags & os.O_TRUNC, 0o666
    try:
        descriptor = os.open(path, (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, made)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise OSError(errno.ENXIO, "")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _planted(Path(path)) from None
        if error.errno == errno.ENXIO:
            raise UserError("is not a file: nothing is written to it", str(path), "move it away") from None
        raise
    if empties and found.st_nlink > 1:
        os.close(descriptor)
        Path(path).unlink()
        return os.open(path, (flags & ~os.O_TRUNC) | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, made)
    if empties:
        os.ftruncate(descriptor, 0)
    return descriptor


PLANTED = "scalestudy makes no links there: find out who did, and remove it"


def _planted(path: Path) -> UserError:
    with suppress(OSError):
        return UserError(f"is a link, to {path.readlink()}: nothing is written through it", str(path), PLANTED)
    return UserError("is a link: nothing is written through it", str(path), PLANTED)


def refuse_link(path: Path) -> None:
    """UserError where a place of ours, in which something is about to be written, is a link."""
    if path.is_symlink():
        raise _planted(path)


def refuse_links_in(folder: Path) -> None:
    """UserError for the first link below a folder of ours, in which files are about to be written or replaced."""
    for place, folders, names in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *names)):
            refuse_link(path)


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
    """Read a JSON file of ours; a damaged one, no file at all, or a far too large one is a UserError that names it."""
    try:
        state = Path(path).stat()
        if not stat.S_ISREG(state.st_mode):
            raise UserError("is not a file", str(path), "remove it; it will be made again")
        if state.st_size > MAX_JSON_BYTES:
            what = f"is larger than {MAX_JSON_BYTES >> 20} MiB: scalestudy writes no file that large"
            raise UserError(what, str(path), "delete it; it will be made again")
        return json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise UserError("no such file", str(path)) from None
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"not readable as JSON: {error}", str(path), "delete it; it will be made again") from None


MAX_JSON_BYTES = 1 << 28
"""Bytes; the progress of a hundred thousand runs takes a tenth of it."""


def json_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file that has one in each line; lines that are none, as a crash can leave them, are left out."""
    try:
        with open(file, "rb") as stream:
            for line in stream:
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(found, dict):
                    yield found
    except FileNotFoundError:
        return


TAIL_BYTES = 1 << 16


def tail(file: Path | str) -> str:
    """The last TAIL_BYTES of a log, as text; empty where there is no file."""
    try:
        with open(file, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


MAX_TABLE_BYTES = 1 << 26
WHOLE, NUMBER = re.compile(r"[0-9]{1,18}"), re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,2})?")


def read_table(
    file: Path, needed: Iterable[str] = (), wholes: Collection[str] = (), numbers: Collection[str] = ()
) -> list[dict[str, str]]:
    """The rows of a CSV file, by the names in its first line; cells may be empty.

    Raises UserError, with the line, where it is no table, a `needed` column is missing, or a value in a column of
    `wholes` or `numbers` is none.
    """
    try:
        if file.stat().st_size > MAX_TABLE_BYTES or not file.is_file():
            raise UserError("is not a table of numbers, or is far too large", str(file), "is it the right file?")
        with open(file, encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream)
            found = list(_rows(rows, str(file), needed))
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", str(file)) from None
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8 text (byte {error.start:,})", str(file), "save it as UTF-8") from None
    except csv.Error as error:
        raise UserError(f"is not a table: {error}", f"{file}:{rows.line_num}", CELLS) from None
    for line, row in found:
        for kind, columns, what in ((WHOLE, wholes, "a whole number"), (NUMBER, numbers, "a number")):
            for column in columns:
                if row.get(column) and kind.fullmatch(row[column]) is None:
                    raise UserError(
                        f"must be {what}, not `{row[column][:60]}`", f"{file}:{line}: {column}", "correct it"
                    )
    return [row for _, row in found]


CELLS = "give each row a cell for each column; put text that holds a comma in quotes"


def _rows(rows: Any, place: str, needed: Iterable[str]) -> Iterator[tuple[int, dict[str, str]]]:
    names: list[str] = next(rows, [])
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"has the column `{name[:60]}` twice", f"{place}:1", "keep one of them")
    for name in needed:
        if name not in names:
            raise UserError(f"has no column `{name}`", f"{place}:1", "add it")
    for cells in rows:
        if cells and len(cells) != len(names):
            what = f"has {len(cells)} cells where the first line names {len(names)} columns"
            raise UserError(what, f"{place}:{rows.line_num}", CELLS)
        if cells:
            yield rows.line_num, dict(zip(names, cells, strict=True))


def _refuse_constant(name: str) -> Any:
    """`NaN` and infinities are not JSON, and nothing of ours writes them."""
    raise ValueError(f"{name} is not a value of JSON")


SEAL = "digest"
"""Key of a sealed file's digest over everything else in it."""


def write_sealed(path: Path | str, value: dict[str, Any]) -> None:
    """Write a JSON object with the digest of its content, so that a later change shows."""
    plain = _visible(finite({key: item for key, item in value.items() if key != SEAL}))
    write_json(path, {**plain, SEAL: sha256_text(canonical_json(plain))})


NO_DIGEST = "has no digest: it was changed after it was written, or is from before there were any"


def _visible(value: Any) -> Any:
    """`value` with every text as messages show it."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(str(key)): _visible(item) for key, item in value.items()}
    return [_visible(item) for item in value] if isinstance(value, list) else value


def read_sealed(path: Path | str, remedy: str) -> dict[str, Any]:
    """Read a file of `write_sealed`, less the digest; UserError where it is no object, or was changed since.

    A file without a digest is refused too: whoever edits one could delete it.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError("is not what belongs there: a JSON object is expected", str(path), remedy)
    digest = value.pop(SEAL, None)
    if digest is None:
        raise UserError(NO_DIGEST, str(path), remedy)
    if digest != sha256_text(canonical_json(value)):
        raise UserError("was changed after it was written: its digest does not match its content", str(path), remedy)
    return value


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
        return sha256_stream(stream)


def sha256_stream(stream: IO[bytes]) -> str:
    """SHA-256 of the rest of a binary stream, hexadecimal."""
    digest = hashlib.sha256()
    for block in iter(lambda: stream.read(1 << 20), b""):
        digest.update(block)
    return digest.hexdigest()
