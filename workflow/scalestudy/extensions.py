"""Classes from the user's own files in config/extensions/, and who is to blame for their errors."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalestudy.errors import UserError, nearest
from scalestudy.files import sha256_file


def load_class(path: Path, class_name: str) -> Callable[..., Any]:
    """A class, or a function that makes its objects, from a Python file; raises UserError where file or class is missing or
    the file fails.

    The file may import its neighbours: its folder is on sys.path while it is read, and no longer.
    """
    if not path.is_file():
        remedy = nearest(path.stem, (file.stem for file in path.parent.glob("*.py")))
        raise UserError("there is no such file", str(path), remedy)
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
    makers = {key: value for key, value in vars(module).items() if callable(value)}
    if class_name not in makers:
        own = [key for key, value in makers.items() if value.__module__ == name]
        raise UserError(f"there is no class or function `{class_name}`", str(path), nearest(class_name, own))
    return makers[class_name]


def imported_from(folder: Path) -> dict[str, str]:
    """SHA-256 of each Python file in a folder that this process has imported, by the file's name."""
    folder, digests = folder.resolve(), {}
    for module in list(sys.modules.values()):
        # Not by `getattr`: a lazy module would import what it stands for.
        name = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(name, str) and (file := Path(name).resolve()).parent == folder and file.is_file():
            digests[file.name] = sha256_file(file)
    return digests


@contextmanager
def blamed_on(path: Path, doing: str, remedy: str = "") -> Iterator[None]:
    """Turn any exception into a UserError that names the line of the user's file where it arose."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if _is(path, frame.filename)]
        if isinstance(error, SyntaxError) and _is(path, error.filename or ""):
            lines = [error.lineno]
        where = f"{path}:{lines[-1]}" if lines else str(path)
        raised_by = f"it was raised by {doing}" if doing.endswith(")") else ""
        raise UserError(what, where, remedy or raised_by) from None


def of_own_file(error: BaseException, folder: Path, remedy: str) -> UserError | None:
    """Return an error with the line of the user's file below `folder` where it arose; None where no such file is in its stack."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    where = f"{own[-1].filename}:{own[-1].lineno}" if own else ""
    return UserError(f"{type(error).__name__}: {error}", where, remedy) if own else None


def _is(path: Path, name: str) -> bool:
    return Path(name).resolve() == path.resolve()
