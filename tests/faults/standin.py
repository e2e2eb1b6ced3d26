"""The stand-in for failing disks and wrong clocks (file_standin.c): compiled where it is used, told by the environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("file_standin.c")


def compiled(folder: Path) -> Path:
    """The library, built in a folder."""
    library = folder / "file_standin.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    library.chmod(0o755)
    return library


def told(action: str, files: str, calls: str, mark: Path) -> dict[str, str]:
    """The variables by which a process that has the library acts.

    `action` as file_standin.c lists them; `files` a pattern for whole paths; `calls` r, w or both; `mark` is made when it
    first acts.
    """
    return {"STANDIN_ACTION": action, "STANDIN_FILES": files, "STANDIN_CALLS": calls, "STANDIN_MARK": str(mark)}
