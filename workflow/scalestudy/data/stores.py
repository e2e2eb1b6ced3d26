"""Stores: named files of which ranges are read, from a folder or over HTTP, and either of them made slower."""

from __future__ import annotations

import http.client
import os
import resource
import ssl
import threading
import time
import urllib.parse
from abc import ABC, abstractmethod

from scalestudy.emulation.storage import Throttle

TIMEOUT_S = 6.0
"""Longest wait for a server to answer, or to continue its answer."""
TRIES = 3
PAUSE_S = 0.5


class Store(ABC):
    """Files by name. Several threads may read at once."""

    @abstractmethod
    def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out` with the bytes of a file from `start` on; OSError or EOFError where they cannot be read."""

    @abstractmethod
    def path(self, name: str) -> str:
        """The whole path or address of a file."""

    local = False
    """Whether files go through this machine's page cache."""

    def close(self) -> None:  # noqa: B027
        """Close files and connections."""


def _fill(descriptor: int, start: int, out: memoryview) -> None:
    done = 0
    while done < len(out):
        count = os.preadv(descriptor, [out[done:]], start + done)
        if count == 0:
            raise EOFError(f"it ends after {start + done:,} bytes, {start + len(out):,} are needed")
        done += count


class FolderStore(Store):
    """A folder. With `kept_open`, a file is opened once: for large ones of which many ranges are read.

    At most a quarter of the files that this process may have open are kept; others are opened for each range.
    """

    local = True

    def __init__(self, folder: str, kept_open: bool) -> None:
        self._folder, self._kept_open = folder, kept_open
        self._descriptors: dict[str, int] = {}
        self._most_kept = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
        self._lock = threading.Lock()

    def path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def read_into(self, name: str, start: int, out: memoryview) -> None:
        if self._kept_open and (name in self._descriptors or len(self._descriptors) < self._most_kept):
            _fill(self._opened(name), start, out)
            return
        descriptor = os.open(f"{self._folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _fill(descriptor, start, out)
        finally:
            os.close(descriptor)

    def _opened(self, name: str) -> int:
        found = self._descriptors.get(name)
        if found is not None:
            return found
        with self._lock:
            if name not in self._descriptors:
                descriptor = os.open(f"{self._folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                # The order is random: pages read ahead are wasted, and no one counts them against a limit.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
                self._descriptors[name] = descriptor
            return self._descriptors[name]

    def close(self) -> None:
        with self._lock:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors.clear()

    def __del__(self) -> None:
        self.close()


class HttpStore(Store):
    """Files below an http(s) address, by range requests; a connection per thread is kept.

    A failed request is repeated, up to TRIES in all; a server that is gone is an error in under 30 seconds.
    """

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")
        parts = urllib.parse.urlsplit(self._address)
        self._secure, self._host, self._base = parts.scheme == "https", parts.netloc, parts.path
        self._local = threading.local()

    def path(self, name: str) -> str:
        return f"{self._address}/{name}"

    def read_into(self, name: str, start: int, out: memoryview) -> None:
        if not len(out):
            return
        for attempt in range(TRIES):
            try:
                self._request(name, start, out)
            except (OSError, http.client.HTTPException) as error:
                self._forget()
                if attempt == TRIES - 1:
                    raise OSError(f"the server does not deliver it ({error or type(error).__name__})") from error
                time.sleep(PAUSE_S)
            else:
                return

    def _request(self, name: str, start: int, out: memoryview) -> None:
        connection = self._connection()
        headers = {"Range": f"bytes={start}-{start + len(out) - 1}"}
        connection.request("GET", f"{self._base}/{urllib.parse.quote(name)}", headers=headers)
        answer = connection.getresponse()
        whole = answer.status == 200 and start == 0 and answer.length == len(out)
        if answer.status != 206 and not whole:
            self._forget()
            raise EOFError(f"the server answers {answer.status} {answer.reason} to a request for a range")
        done = 0
        while done < len(out):
            count = answer.readinto(out[done:])
            if not count:
                raise http.client.IncompleteRead(b"", len(out) - done)
            done += count
        answer.read()  # at its end, so that the connection can be used again

    def _connection(self) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if found is None:
            if self._secure:
                context = ssl.create_default_context()
                found = http.client.HTTPSConnection(self._host, timeout=TIMEOUT_S, context=context)
            else:
                found = http.client.HTTPConnection(self._host, timeout=TIMEOUT_S)
            self._local.connection = found
        return found

    def _forget(self) -> None:
        if connection := getattr(self._local, "connection", None):
            connection.close()
            self._local.connection = None


class ThrottledStore(Store):
    """Another store, slowed down by a throttle."""

    def __init__(self, store: Store, throttle: Throttle) -> None:
        self._store, self._throttle = store, throttle
        self.local = store.local

    def path(self, name: str) -> str:
        return self._store.path(name)

    def read_into(self, name: str, start: int, out: memoryview) -> None:
        self._throttle.wait(len(out))
        self._store.read_into(name, start, out)

    def close(self) -> None:
        self._store.close()
        self._throttle.close()
