"""Compile the kernel: `python -m scalestudy.data.decode.kernel.build`. Does nothing where it is built already.

Called by envs/venv.py. Without a compiler or libjpeg-turbo's headers, the plain path stays, and a message reports it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scalestudy.data.decode.kernel import BUILT, SOURCE, Kernel, source_key

OPTIONS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=default")
"""Views are computed as Python computes them: no product is fused with a sum."""
NEEDS = "a C compiler and libjpeg-turbo's headers (on Debian and Ubuntu: apt-get install gcc libc6-dev libjpeg62-turbo-dev or libjpeg-turbo8-dev)"


def build(folder: Path = BUILT) -> Path:
    """The library for this source and compiler, compiled where it is not there; RuntimeError where it cannot be."""
    compiler = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or "cc"]
    try:
        version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"no C compiler was found ({error})") from None
    identity = hashlib.sha256(" ".join([version.stdout, *compiler, *OPTIONS]).encode()).hexdigest()[:12]
    library = folder / f"kernel-{source_key()}-{identity}.so"
    if library.is_file():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / "kernel.so"
        command = [*compiler, *OPTIONS, os.fspath(SOURCE), "-o", os.fspath(made), "-ljpeg", "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
            raise RuntimeError(f"it does not compile: {first}")
        Kernel(made)  # loads here
        made.replace(library)
    return library


def main() -> None:
    """Build, or report that the plain path is used."""
    try:
        build()
    except (RuntimeError, OSError, AttributeError) as error:
        print(f"setup: using the slower fallback JPEG decoder: {error}\n    for the fast way: {NEEDS}")
        sys.exit(0)


if __name__ == "__main__":
    main()
