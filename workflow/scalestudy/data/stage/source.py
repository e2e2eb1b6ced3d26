"""Where copies come from: a folder, an http(s) address, or an object store; each can be slowed down."""

from __future__ import annotations

import http.client
import queue
import socket
import urllib.parse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scalestudy.data.stores import TIMEOUT_S, FolderStore, HttpStore, Store
from scalestudy.emulation.storage import Throttle
from scalestudy.errors import UserError

OBJECT_STORES = ("s3", "gs", "az", "s3a", "abfs", "abfss", "file", "memory")
HTTP_TIMEOUT_S = 30.0
HEAD_BYTES = 16 << 10


class ObjectStore(Store):
    """Files below an address that obstore (the optional extra `stores`) understands, by range requests.

    Credentials, regions and endpoints come from the environment, as obstore's documentation names them.
    """

    def __init__(self, address: str) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            what = f"`{address}` needs the package obstore, which is not installed"
            raise UserError(what, "stage.from", "install `scalestudy[stores]`") from None
        self._obstore: Any = obstore
        self._address = address.rstrip("/")
        try:
            self._store: Any = from_url(self._address)
        except Exception as error:  # obstore's errors have no common base class
            raise UserError(f"obstore cannot open it: {error}", self._address, "see stage.from") from None

    def path(self, name: str) -> str:
        return f"{self._address}/{name}"

    def read_into(self, name: str, start: int, out: memoryview) -> None:
        if not len(out):
            return
        try:
            out[:] = memoryview(self._obstore.get_range(self._store, name, start=start, end=start + len(out)))
        except Exception as error:
            raise OSError(str(error).partition("\n")[0]) from None

    def size(self, name: str) -> int:
        """Bytes of an object."""
        try:
            return int(self._obstore.head(self._store, name)["size"])
        except Exception as error:
            raise UserError(f"cannot be read: {str(error).partition(chr(10))[0]}", self.path(name)) from None


class PlainHttpStore(HttpStore):
    """An http address, read from the socket itself: http.client's parsing of headers costs as much as a small file does.

    After an unusual answer (a transfer coding, a connection to be closed, a status other than 206) http.client repeats
    the request. A connection is lent for one request, so that a thread that writes a file holds none.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._free: queue.LifoQueue[SimpleNamespace] = queue.LifoQueue()
        self.lend(1)

    def lend(self, connections: int) -> None:
        """Set the number of connections for all threads together, before the first request."""
        self._free = queue.LifoQueue()
        for _ in range(connections):
            self._free.put(SimpleNamespace(socket=None))

    def read_into(self, name: str, start: int, out: memoryview) -> None:
        self._local.lent = self._free.get()
        try:
            super().read_into(name, start, out)
        finally:
            self._free.put(self._local.lent)

    def _request(self, name: str, start: int, out: memoryview) -> None:
        if not self._lean(name, start, out):
            super()._request(name, start, out)

    def _lean(self, name: str, start: int, out: memoryview) -> bool:
        connection, head = self._socket()
        connection.sendall(
            f"GET {self._base}/{urllib.parse.quote(name)} HTTP/1.1\r\nHost: {self._host}\r\n"
            f"Range: bytes={start}-{start + len(out) - 1}\r\n\r\n".encode("latin1")
        )
        there, end = 0, -1
        while end < 0 and there < len(head):
            count = connection.recv_into(memoryview(head)[there:])
            if not count:
                self._forget()
                raise ConnectionResetError("the server closed the connection")
            there += count
            end = head.find(b"\r\n\r\n", 0, there)
        if end < 0 or not _usual(bytes(head[:end]), len(out)):
            self._forget()
            return False
        done = there - end - 4
        if done > len(out):
            self._forget()
            return False
        out[:done] = memoryview(head)[end + 4 : there]
        while done < len(out):
            count = connection.recv_into(out[done:])
            if not count:
                raise ConnectionResetError(f"the server closed the connection after {done:,} of {len(out):,} bytes")
            done += count
        return True

    def _socket(self) -> tuple[socket.socket, bytearray]:
        """The connection lent to this thread, and memory for the head of an answer and what follows it."""
        found = self._local.lent.socket
        if found is None:
            host, _, port = self._host.rpartition(":") if ":" in self._host else (self._host, "", "80")
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found = self._local.lent.socket = (connection, bytearray(HEAD_BYTES))
        return found  # type: ignore[no-any-return]

    def _forget(self) -> None:
        super()._forget()
        if (found := self._local.lent.socket) is not None:
            found[0].close()
            self._local.lent.socket = None

    def close(self) -> None:
        while not self._free.empty():
            if (found := self._free.get().socket) is not None:
                found[0].close()
        super().close()


def _usual(head: bytes, size: int) -> bool:
    """Whether an answer holds exactly the range, and another request may follow it."""
    fields = head.lower()
    return (
        fields.startswith(b"http/1.1 206 ")
        and b"\r\ncontent-length: %d" % size in fields
        and b"\r\ntransfer-encoding:" not in fields
        and b"\r\nconnection: close" not in fields
    )


class Source:
    """A store, and the throttles that slow down reading from it."""

    def __init__(self, address: str, throttles: list[Throttle]) -> None:
        """`throttles` limit the rate, all of them together."""
        self.address, self.throttles = address, throttles
        scheme = address.partition("://")[0] if "://" in address else ""
        self.folder = "" if scheme else str(Path(address).absolute())
        """Of local files; empty for others."""
        self.store: Store
        if scheme == "http":
            self.store = PlainHttpStore(address)
        elif scheme == "https":
            self.store = HttpStore(address)
        elif scheme in OBJECT_STORES:
            self.store = ObjectStore(address)
        elif scheme:
            remedy = "name a folder, or an address that begins with http, https, s3, gs or az"
            raise UserError(f"nothing can be copied from `{address}`", "stage.from", remedy)
        else:
            self.store = FolderStore(self.folder, kept_open=False)

    def threads(self, streams: int) -> int:
        """How many threads copy by so many streams: one more where it can write while the others wait for a server."""
        if not isinstance(self.store, PlainHttpStore):
            return streams
        self.store.lend(streams)
        return streams + 1

    def wait(self, size: int) -> None:
        """Wait until that many bytes may be read."""
        for throttle in self.throttles:
            throttle.wait(size)

    def size(self, name: str) -> int:
        """Bytes of a file; UserError where the storage does not report them."""
        if isinstance(self.store, ObjectStore):
            return self.store.size(name)
        if self.folder:
            try:
                return Path(self.folder, name).stat().st_size
            except OSError as error:
                remedy = "prepare the data again, or check that `stage.from` holds the same files"
                raise UserError(f"cannot be read: {error.strerror}", f"{self.folder}/{name}", remedy) from None
        return _http_size(self.store.path(name))

    def close(self) -> None:
        """Close files and connections."""
        self.store.close()


def _http_size(address: str) -> int:
    parts = urllib.parse.urlsplit(address)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=HTTP_TIMEOUT_S)
    try:
        connection.request("HEAD", urllib.parse.quote(parts.path))
        answer = connection.getresponse()
        length = answer.getheader("Content-Length")
        if answer.status != 200 or length is None:
            raise OSError(f"the server answers {answer.status} {answer.reason}")
        return int(length)
    except (OSError, http.client.HTTPException) as error:
        remedy = "check that the server runs and holds the same files"
        raise UserError(f"its size is unknown: {error or type(error).__name__}", address, remedy) from None
    finally:
        connection.close()
