"""Measured runs run alone on a host, whoever starts them: they hold its lock; disturbing work waits for it.

There are two files in one folder, the same for every environment. The first belongs to one user, and no other can
open it: runs of one user wait for each other, however long. The second is shared by all users. Whoever can open it can
hold it for ever, so that runs of other users are waited for up to MAX_WAIT_FOR_OTHERS_S.
"""

from __future__ import annotations

import fcntl
import math
import os
import pwd
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from scalestudy.errors import UserError, visible
from scalestudy.locks import is_gone, me, note_in, shown, sign, try_lock

LOCKS = "SCALESTUDY_LOCKS"
"""By this name a user says where the lock lies; runs with different folders do not wait for each other."""
FOLDER = Path("/tmp")
"""On every host, of all users, and none of them can remove what another made there."""
MAX_WAIT_FOR_OTHERS_S = 1800.0
MARGIN_S = 20.0
"""From the end of a wait in a job to the end of that job."""
POLL_S = 0.2
FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""For files in a folder of all users."""


class WaitedTooLong(Exception):
    """The job's time is over, and its run has only waited; the message is the cause."""


@contextmanager
def measured_run(name: str, deadline: float = math.inf) -> Iterator[None]:
    """Held by a run that is measured: one at a time on this host, and nothing else of ours beside it.

    `name` is shown to the user's other runs that wait. Raises WaitedTooLong shortly before `deadline`, seconds since
    1970: the end of the job that waits.
    """
    with _held(fcntl.LOCK_EX, deadline) as own:
        with suppress(OSError):  # those who wait are told less
            sign(own, {**me(), "name": visible(name)})
        try:
            yield
        finally:
            os.ftruncate(own.fileno(), 0)


@contextmanager
def beside_measured_runs() -> Iterator[None]:
    """Hold the shared lock of background work; waits while a measured run holds the host."""
    with _held(fcntl.LOCK_SH):
        yield


@contextmanager
def _held(kind: int, deadline: float = math.inf) -> Iterator[IO[bytes]]:
    """Hold both locks, which end with the processes that hold them; yields the user's own."""
    folder = lock_folder()
    own, all_users = folder / f"scalestudy-{os.getuid()}.lock", folder / "scalestudy-host.lock"
    try:
        first = _opened(own, is_own=True)
    except OSError as error:
        remedy = f"have it removed, or set {LOCKS} to a folder that all your runs on this host use"
        raise UserError(f"cannot be used: {error.strerror}", str(own), remedy) from error
    with first:
        _lock(first, kind, lambda: _holder(first), deadline)
        try:
            second = _opened(all_users, is_own=False)
        except OSError as error:
            _say(f"runs of other users on this host are not waited for: {all_users}: {error.strerror}")
            yield first
            return
        with second:
            _lock(second, kind, lambda: "another user's work on this host", deadline, MAX_WAIT_FOR_OTHERS_S)
            yield first


def lock_folder() -> Path:
    """Where the lock of this host lies. Raises UserError where the named folder is none."""
    folder = Path(os.environ.get(LOCKS) or FOLDER)
    if not folder.is_dir():
        raise UserError("is not a folder", f"{LOCKS}={folder}", f"make it, or unset it: then it is {FOLDER}")
    return folder


def _lock(stream: IO[bytes], kind: int, holder: Callable[[], str], deadline: float, limit_s: float = math.inf) -> None:
    """Lock an open file; a wait names the holder. Continue without it when the limit is over."""
    begin, holder_name = time.monotonic(), ""
    while (is_locked := try_lock(stream, kind)) is False:
        waited_s = time.monotonic() - begin
        if waited_s > limit_s:
            _say(f"waited {limit_s / 60:.0f} minutes for {holder_name}; continuing at the same time")
            return
        if (now := holder()) != holder_name:
            holder_name = now
            _say(f"waiting for {holder_name} to end")
        if time.time() + MARGIN_S > deadline:
            cause = f"its job ends after a wait of {waited_s / 60:.0f} min for {holder_name}: request whole nodes"
            raise WaitedTooLong(cause)
        time.sleep(POLL_S)
    if is_locked is None:
        _say("cannot keep measured runs from overlapping: the file system of the lock file does not support locks")
    if holder_name:
        _say(f"the wait is over, after {time.monotonic() - begin:.0f} s")


def _opened(file: Path, *, is_own: bool) -> IO[Any]:
    """Open a lock file, or make it. Raises OSError where it is not this user's, and should be."""
    flags, mode = (FLAGS | os.O_RDWR, 0o600) if is_own else (FLAGS | os.O_RDONLY, 0o644)
    # Not by O_CREAT alone: fs.protected_regular refuses it where another user made the file.
    try:
        descriptor = os.open(file, flags | os.O_CREAT | os.O_EXCL, mode)
        os.fchmod(descriptor, mode)
    except FileExistsError:
        descriptor = os.open(file, flags)
    if is_own and (owner := os.fstat(descriptor).st_uid) != os.getuid():
        os.close(descriptor)
        raise PermissionError(1, f"it belongs to {_user(owner)}")
    return os.fdopen(descriptor, "r+b" if is_own else "rb", buffering=0)


def _holder(own: IO[bytes]) -> str:
    """The measured run that holds this user's lock, by its note; work beside runs leaves none."""
    note = note_in(own)
    return f"{note['name']} ({shown(note)})" if "name" in note and not is_gone(note) else "other work on this host"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _say(text: str) -> None:
    print(f"scalestudy: {text}", file=sys.stderr, flush=True)
