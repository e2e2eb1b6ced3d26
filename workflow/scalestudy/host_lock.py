"""Measured runs run alone on a host, whoever starts them: they hold its lock; disturbing work waits for it.

There are two files in one folder, the same for every environment. The first belongs to one user, and no other can
open it: runs of one user wait for each other, however long. The second is shared by all users. Whoever can open it can
hold it for ever, so that runs of other users are waited for up to MAX_WAIT_FOR_OTHERS_S.
"""

from __future__ import annotations

import datetime
import errno
import fcntl
import json
import os
import pwd
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scalestudy import processes
from scalestudy.errors import UserError
from scalestudy.locks import NO_LOCKS_HERE

LOCKS = "SCALESTUDY_LOCKS"
"""By this name a user says where the lock lies; runs with different folders do not wait for each other."""
FOLDER = Path("/tmp")
"""On every host, of all users, and none of them can remove what another made there."""
MAX_WAIT_FOR_OTHERS_S = 1800.0
POLL_S = 0.2
MAX_NOTE_BYTES = 4096


@contextmanager
def measured_run(name: str) -> Iterator[None]:
    """Held by a run that is measured: one at a time on this host, and nothing else of ours beside it.

    `name` is shown to those who wait.
    """
    with _held(fcntl.LOCK_EX), _noted(name):
        yield


@contextmanager
def beside_measured_runs() -> Iterator[None]:
    """Held by work that takes the machine's time: it waits until no measured run is on this host."""
    with _held(fcntl.LOCK_SH):
        yield


@contextmanager
def _held(kind: int) -> Iterator[None]:
    # A lock ends with the processes that hold it, however they end.
    folder = lock_folder()
    own, all_users = folder / f"scalestudy-{os.getuid()}.lock", folder / "scalestudy-host.lock"
    with _locked(own, kind, None), _locked(all_users, kind, MAX_WAIT_FOR_OTHERS_S):
        yield


def lock_folder() -> Path:
    """Where the lock of this host lies. Raises UserError where the named folder is none."""
    folder = Path(os.environ.get(LOCKS) or FOLDER)
    if not folder.is_dir():
        raise UserError("is not a folder", f"{LOCKS}={folder}", f"make it, or unset it: then it is {FOLDER}")
    return folder


@contextmanager
def _locked(file: Path, kind: int, limit_s: float | None) -> Iterator[None]:
    """Lock a file; with a limit, which is for the file of all users, continue without it when that is over."""
    begin = time.monotonic()
    said: str | None = None
    while True:
        try:
            descriptor = _open(file, 0o600 if limit_s is None else 0o644)
        except OSError as error:
            if limit_s is None:
                raise UserError(f"cannot be used: {error.strerror}", str(file), _remedy(file)) from error
            _say(f"runs of other users on this host are not waited for: {file}: {error.strerror}")
            yield
            return
        try:
            waits = _is_taken(descriptor, kind)
            if not waits and not _is_still(file, descriptor):
                continue  # it was removed and made anew
            if waits and limit_s is not None and time.monotonic() - begin > limit_s:
                _say(
                    f"waited {limit_s / 60:.0f} minutes for another user's work on this host; continuing at the same time"
                )
                waits = False
            if not waits:
                yield
                return
        finally:
            os.close(descriptor)
        if (holders := _holders(file.parent)) != said:
            said = holders
            _say(f"waiting for {holders or 'other work on this host'} to end")
        time.sleep(POLL_S)


def _open(file: Path, mode: int) -> int:
    """Open a lock file, or make it. Raises OSError where it is not a file that may be used."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(file, flags)
    except FileNotFoundError:
        # Not with the flags above alone: fs.protected_regular refuses O_CREAT where another user made the file.
        with suppress(FileExistsError):
            made = os.open(file, flags | os.O_CREAT | os.O_EXCL, mode)
            os.fchmod(made, mode)
            return made
        descriptor = os.open(file, flags)
    found, private = os.fstat(descriptor), mode == 0o600
    if not stat.S_ISREG(found.st_mode) or (private and found.st_uid != os.getuid()):
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "it is not a file of this user" if private else "it is not a file")
    if private and stat.S_IMODE(found.st_mode) != mode:
        os.fchmod(descriptor, mode)
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


def _is_still(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(file.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remedy(file: Path) -> str:
    with suppress(OSError, KeyError):
        owner = pwd.getpwuid(file.lstat().st_uid).pw_name
        return f"it belongs to {owner}: have it removed, or set {LOCKS} to a folder that all your runs here use"
    return f"set {LOCKS} to a folder that all your runs on this host use"


# Who holds it


@contextmanager
def _noted(name: str) -> Iterator[None]:
    """A note beside the locks, which every user can read: the run, its process, since when."""
    note = lock_folder() / f"scalestudy-{os.getuid()}.holder"
    since = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    content = json.dumps({"name": name, "process": processes.identity(os.getpid()), "since": since})
    with suppress(OSError):  # without it those who wait are told less
        descriptor, temporary = tempfile.mkstemp(dir=note.parent, prefix=f"{note.name}.")
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(content)
            os.fchmod(descriptor, 0o644)
        try:
            Path(temporary).replace(note)
        except OSError:
            Path(temporary).unlink()
    try:
        yield
    finally:
        with suppress(OSError):
            note.unlink()


def _holders(folder: Path) -> str:
    """The measured runs on this host by name, user and process; empty where none has left a note that is true."""
    found = []
    for note in sorted(folder.glob("scalestudy-*.holder")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            found.append(_holder(note))
    return "; ".join(filter(None, found))


def _holder(note: Path) -> str:
    descriptor = os.open(note, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return ""
        said = json.loads(stream.read(MAX_NOTE_BYTES))
    process = said["process"].partition(":")[0]
    # Anybody can write a note: it counts only for a living process of the user who wrote it.
    if processes.identity(int(process)) != said["process"] or Path(f"/proc/{process}").stat().st_uid != status.st_uid:
        return ""
    name, since = (_plain(str(said[key])) for key in ("name", "since"))
    return f"{name} of {_user(status.st_uid)} (process {process}, since {since})"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)[:200]


def _say(text: str) -> None:
    print(f"scalestudy: {text}", file=sys.stderr, flush=True)
