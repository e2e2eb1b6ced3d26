"""What a driver needs before Snakemake begins: a folder that can be written, room in memory, open files.

Snakemake would fail in the middle of its own work, with the frames of a traceback.
"""

from __future__ import annotations

import errno
import os
import resource
import uuid
from contextlib import suppress
from pathlib import Path

FOLDER = Path(".snakemake")
"""Of the working directory. Snakemake writes there under a dry run too."""
LEAST_BYTES = 64 * 1024
"""More than Snakemake writes of a small workflow before its first job."""
LEAST_FILES = 64
LEAST_ROOM_MIB = 128
"""Address space beside what is loaded: a dozen threads, each with a stack of 8 MiB, and the jobs."""
AGAIN = "then run the same command again"
REMEDIES = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there, or have the quota raised",
    errno.EROFS: "have the disk mounted writable, or work in a copy of the project",
    errno.EACCES: "have the folder made writable for you, or work in a copy of the project",
}


def refusal() -> str | None:
    """Why Snakemake would fail here, and what to do; None where nothing is known to be in its way."""
    return few_files() or little_memory() or unwritable(FOLDER)


def few_files() -> str | None:
    """A limit of open files that is too low."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit >= LEAST_FILES:
        return None
    return f"Too many open files: the limit is {limit}, and a driver needs {LEAST_FILES}\n    ulimit -n 4096, {AGAIN}"


def little_memory() -> str | None:
    """A limit of the address space that is nearly reached."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    used_mib, limit_mib = pages * resource.getpagesize() >> 20, limit >> 20
    if limit_mib - used_mib >= LEAST_ROOM_MIB:
        return None
    what = f"memory runs out: of an address space of {limit_mib:,} MiB Snakemake alone takes {used_mib:,} MiB"
    return f"{what}\n    raise the limit (ulimit -v, or the memory of the job), {AGAIN}"


def unwritable(folder: Path) -> str | None:
    """A folder, made if it is missing, into which LEAST_BYTES cannot be written."""
    probe = folder / f"writable.{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with open(probe, "wb") as stream:
                stream.write(os.urandom(LEAST_BYTES))  # zeros take no room on some disks
                stream.flush()
                os.fsync(stream.fileno())
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0, "fix this")
        what = f"{folder}: {error.strerror or error}: Snakemake keeps its records there, also of a dry run"
        return f"{what}\n    {remedy}, {AGAIN}"
    return None
