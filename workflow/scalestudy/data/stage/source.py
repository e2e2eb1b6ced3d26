"""Where copies come from: a folder, an http(s) address, or an object store; each slowed down where that is asked for."""

from __future__ import annotations

import http.client
import os
import urllib.parse
from typing import Any

from scalestudy.data.readers.stores import FolderStore, HttpStore, Store
from scalestudy.data.throttle import Throttle
from scalestudy.errors import UserError

OBJECT_STORES = ("s3", "gs", "az", "s3a", "abfs", "abfss", "file", "memory")
HTTP_TIMEOUT_S = 30.0


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
        except Exception as error:  # obstore's errors have no base of their own
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


class Source:
    """A store, and what it costs to read from it."""

    def __init__(self, address: str, throttles: list[Throttle]) -> None:
        """`throttles` limit the rate, all of them together."""
        self.address, self.throttles = address, throttles
        scheme = address.partition("://")[0] if "://" in address else ""
        self.folder = "" if scheme else os.path.abspath(address)
        """Of local files; empty for others."""
        self.store: Store
        if scheme in ("http", "https"):
            self.store = HttpStore(address)
        elif scheme in OBJECT_STORES:
            self.store = ObjectStore(address)
        elif scheme:
            remedy = "it can be a folder, or begin with http, https, s3, gs or az"
            raise UserError(f"nothing can be copied from `{address}`", "stage.from", remedy)
        else:
            self.store = FolderStore(self.folder, kept_open=False)

    def wait(self, size: int) -> None:
        """Return when that many bytes may be read."""
        for throttle in self.throttles:
            throttle.wait(size)

    def size(self, name: str) -> int:
        """Bytes of a file; UserError where the storage does not tell."""
        if isinstance(self.store, ObjectStore):
            return self.store.size(name)
        if self.folder:
            try:
                return os.stat(f"{self.folder}/{name}").st_size
            except OSError as error:
                remedy = "prepare the data again, or see that `stage.from` holds the same files"
                raise UserError(f"cannot be read: {error.strerror}", f"{self.folder}/{name}", remedy) from None
        return _http_size(self.store.path(name))

    def close(self) -> None:
        """Let go of files and connections."""
        self.store.close()


def _http_size(address: str) -> int:
    parts = urllib.parse.urlsplit(address)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=HTTP_TIMEOUT_S)
    try:
        connection.request("HEAD", urllib.parse.quote(parts.path))
        answer = connection.getresponse()
        if answer.status != 200 or answer.length is None and answer.getheader("Content-Length") is None:
            raise OSError(f"the server answers {answer.status} {answer.reason}")
        return int(answer.getheader("Content-Length") or 0)
    except (OSError, http.client.HTTPException) as error:
        remedy = "see that the server runs and holds the same files"
        raise UserError(f"its size cannot be had: {error or type(error).__name__}", address, remedy) from None
    finally:
        connection.close()
