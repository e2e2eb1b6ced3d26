"""Classes from the user's own files in config/extensions/, and who is to blame for their errors."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from scalestudy.errors import UserError, nearest
from scalestudy.files import sha256_file


def load_class(path: Path, class_name: str) -> type:
    """A class from a Python file; raises UserError where file or class is missing or the file fails.

    The file may import its neighbours: its folder is on sys.path while it is read, and no longer.
    """
    if not path.is_file():
        raise UserError(
            "there is no such file", str(path), nearest(path.stem, (p.stem for p in path.parent.glob("*.py")))
        )
    module = _load(path)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        own = [
            name
            for name, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        raise UserError(f"there is no class `{class_name}`", str(path), nearest(class_name, own))
    return found


def _load(path: Path) -> ModuleType:
    name = f"scalestudy_extension_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent.resolve())
    # Dataclasses and pickle look a class's module up by its name.
    sys.modules[name] = module
    sys.path.insert(0, folder)
    try:
        with blamed_on(path, "reading it"):
            spec.loader.exec_module(module)
    except UserError:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(folder)
    return module


def imported_from(folder: Path) -> dict[str, str]:
    """SHA-256 of each Python file in a folder that this process has imported, by the file's name."""
    folder, found = folder.resolve(), {}
    for module in list(sys.modules.values()):
        # Not by `getattr`: a lazy module would import what it stands for.
        name = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(name, str) and (file := Path(name).resolve()).parent == folder and file.is_file():
            found[file.name] = sha256_file(file)
    return found


@contextmanager
def blamed_on(path: Path, doing: str, remedy: str = "") -> Iterator[None]:
    """Turn any exception into a UserError that names the line of the user's file where it arose."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        line = _line_in(path, error)
        raise UserError(
            f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}",
            f"{path}:{line}" if line else str(path),
            remedy or (f"it was raised by {doing}" if doing.endswith(")") else ""),
        ) from None


def _line_in(path: Path, error: Exception) -> int | None:
    """The line of `path` where an exception arose: the innermost, or the one that does not parse."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve() == path.resolve():
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    return lines[-1] if lines else None
