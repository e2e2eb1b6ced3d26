"""Files that are whole or absent: atomic writes, canonical JSON, checksums."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from scalestudy.errors import UserError


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """A temporary path beside `path`; what is written there is synced and renamed when the block ends well.

    The temporary name keeps the suffix of `path`, because writers choose their format by it. Errors of the system name
    `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _named(path):
        handle, name = tempfile.mkstemp(prefix=_temporary(path), suffix=path.suffix, dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            mask = os.umask(0)
            os.umask(mask)
            temporary.chmod(0o666 & ~mask)
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
def _named(path: Path) -> Iterator[None]:
    """Errors of the system in the block that name no file, or the temporary one, name `path`."""
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
    """Read a JSON file of ours; a damaged one is a UserError that says which."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise UserError("no such file", str(path)) from None
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"not readable as JSON: {error}", str(path), "delete it; it will be made again") from None


def _refuse_constant(name: str) -> Any:
    """`NaN` and infinities are not JSON, and nothing of ours writes them."""
    raise ValueError(f"{name} is not a value of JSON")


SEAL = "digest"
"""Key of a sealed file's digest over everything else in it."""


def write_sealed(path: Path | str, value: dict[str, Any]) -> None:
    """Write a JSON object with the digest of its content, so that a later change shows."""
    plain = finite({key: item for key, item in value.items() if key != SEAL})
    write_json(path, {**plain, SEAL: sha256_text(canonical_json(plain))})


def read_sealed(path: Path | str, remedy: str) -> dict[str, Any]:
    """Read what `write_sealed` wrote, less the digest; UserError where it is no object, or was changed since.

    A file without a digest was written before files had one; only what it says can be checked.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError("is not what belongs there: a JSON object is expected", str(path), remedy)
    digest = value.pop(SEAL, None)
    if digest is not None and digest != sha256_text(canonical_json(value)):
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
    """SHA-256 of what is left in a binary stream, hexadecimal."""
    digest = hashlib.sha256()
    for block in iter(lambda: stream.read(1 << 20), b""):
        digest.update(block)
    return digest.hexdigest()
