"""Measured runs run alone on a host, whoever starts them: they hold its lock; disturbing work waits for it.

There are two files in one folder, the same for every environment. The first belongs to one user, and no other can
open it: runs of one user wait for each other, however long. The second is shared by all users. Whoever can open it can
hold it for ever, so that runs of other users are waited for up to MAX_WAIT_FOR_OTHERS_S.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import math
import os
import pwd
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from scalestudy import processes
from scalestudy.errors import UserError, visible
from scalestudy.files import MAX_NOTE_BYTES, NO_LOCKS_HERE, write_text

LOCKS = "SCALESTUDY_LOCKS"
"""By this name a user says where the lock lies; runs with different folders do not wait for each other."""
FOLDER = Path("/tmp")
"""On every host, of all users, and none of them can remove what another made there."""
MAX_WAIT_FOR_OTHERS_S = 1800.0
MARGIN_S = 20.0
"""From the end of a wait in a job to the end of that job."""
POLL_S = 0.2
FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""For files in a folder of all users."""


class WaitedTooLong(Exception):
    """The job's time is over, and its run has only waited; the message is the cause."""


@contextmanager
def measured_run(name: str, deadline: float = math.inf) -> Iterator[None]:
    """Held by a run that is measured: one at a time on this host, and nothing else of ours beside it.

    `name` is shown to those who wait. Raises WaitedTooLong shortly before `deadline`, seconds since 1970: the end of the
    job that waits.
    """
    note = lock_folder() / f"scalestudy-{os.getuid()}.holder"
    since = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    with _held(fcntl.LOCK_EX, deadline):
        with suppress(OSError):  # without it those who wait are told less
            write_text(note, json.dumps({"name": name, "process": processes.identity(os.getpid()), "since": since}))
            note.chmod(0o644)
        try:
            yield
        finally:
            with suppress(OSError):
                note.unlink()


@contextmanager
def beside_measured_runs() -> Iterator[None]:
    """Held by work that takes the machine's time: it waits until no measured run is on this host."""
    with _held(fcntl.LOCK_SH):
        yield


@contextmanager
def _held(kind: int, deadline: float = math.inf) -> Iterator[None]:
    # A lock ends with the processes that hold it, however they end.
    folder = lock_folder()
    own, all_users = folder / f"scalestudy-{os.getuid()}.lock", folder / "scalestudy-host.lock"
    with _locked(own, kind, None, deadline), _locked(all_users, kind, MAX_WAIT_FOR_OTHERS_S, deadline):
        yield


def lock_folder() -> Path:
    """Where the lock of this host lies. Raises UserError where the named folder is none."""
    folder = Path(os.environ.get(LOCKS) or FOLDER)
    if not folder.is_dir():
        raise UserError("is not a folder", f"{LOCKS}={folder}", f"make it, or unset it: then it is {FOLDER}")
    return folder


@contextmanager
def _locked(file: Path, kind: int, limit_s: float | None, deadline: float) -> Iterator[None]:
    """Lock a file; with a limit, which is for the file of all users, continue without it when that is over."""
    begin, said, mode = time.monotonic(), None, 0o600 if limit_s is None else 0o644
    with ExitStack() as stack:
        try:
            descriptor = _opened(file, mode)
            stack.callback(os.close, descriptor)
        except OSError as error:
            if limit_s is None:
                remedy = f"have it removed, or set {LOCKS} to a folder that all your runs on this host use"
                raise UserError(f"cannot be used: {error.strerror}", str(file), remedy) from error
            _say(f"runs of other users on this host are not waited for: {file}: {error.strerror}")
            yield
            return
        while _is_taken(descriptor, kind):
            if limit_s is not None and time.monotonic() - begin > limit_s:
                waited = f"waited {limit_s / 60:.0f} minutes for another user's work on this host"
                _say(f"{waited}; continuing at the same time")
                break
            if (holders := _holders(file.parent) or "other work on this host") != said:
                said = holders
                _say(f"waiting for {holders} to end")
            if time.time() + MARGIN_S > deadline:
                waited = f"{(time.monotonic() - begin) / 60:.0f} min"
                raise WaitedTooLong(f"its job ends after a wait of {waited} for {holders}: request whole nodes")
            time.sleep(POLL_S)
        if said is not None:
            _say(f"the wait is over, after {time.monotonic() - begin:.0f} s")
        yield


def _opened(file: Path, mode: int) -> int:
    """Open a lock file, or make it. Raises OSError where it is not this user's, and should be."""
    # Not by O_CREAT alone: fs.protected_regular refuses it where another user made the file.
    with suppress(FileExistsError):
        made = os.open(file, FLAGS | os.O_CREAT | os.O_EXCL, mode)
        os.fchmod(made, mode)
        return made
    descriptor = os.open(file, FLAGS)
    owner = os.fstat(descriptor).st_uid
    if mode == 0o600 and owner != os.getuid():
        os.close(descriptor)
        raise PermissionError(1, f"it belongs to {_user(owner)}")
    return descriptor


def _is_taken(descriptor: int, kind: int) -> bool:
    """Lock an open file unless another process has it; whether one has."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in NO_LOCKS_HERE:
            raise
        _say("cannot keep measured runs from overlapping: the file system of the lock file does not support locks")
    return False


def _holders(folder: Path) -> str:
    """The measured runs on this host by name, user and process; empty where none has left a note that is true."""
    found = []
    for note in sorted(folder.glob("scalestudy-*.holder")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            with open(note, "rb", opener=lambda name, _: os.open(name, FLAGS)) as stream:
                said, owner = json.loads(stream.read(MAX_NOTE_BYTES)), os.fstat(stream.fileno()).st_uid
            process = said["process"].partition(":")[0]
            # Anybody can write a note: it counts only for a living process of the user who wrote it.
            lives = processes.identity(int(process)) == said["process"]
            if lives and Path(f"/proc/{process}").stat().st_uid == owner:
                name, since = (visible(str(said[key])[:200]) for key in ("name", "since"))
                found.append(f"{name} of {_user(owner)} (process {process}, since {since})")
    return "; ".join(found)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _say(text: str) -> None:
    print(f"scalestudy: {text}", file=sys.stderr, flush=True)
