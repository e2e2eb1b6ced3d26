"""A storage of a stated rate and latency, emulated: a token bucket that threads and processes of a node share."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import time
import weakref

_CLOCK = struct.Struct("d")


class Throttle:
    """Makes reads wait as if they came from a storage of `mib_per_s` (None: any rate) and `latency_ms` per request.

    Requests share the rate and overlap their latencies. The shared state is one number in the file `place`: when the
    storage will have delivered all that was asked of it so far, on the monotonic clock, which all processes of a host
    have in common. `place` None: in memory, for this process and those to which it sends the throttle, while it lives.
    Emulated: no seeks, no cache, no fairness beyond first come, first served.
    """

    def __init__(self, mib_per_s: float | None, latency_ms: float, place: str | None) -> None:
        self._bytes_per_s = mib_per_s * 2**20 if mib_per_s else float("inf")
        self._latency_s = latency_ms / 1000
        self._lock = threading.Lock()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(place, flags, 0o600) if place else os.memfd_create("scalestudy-storage")
        weakref.finalize(self, os.close, self._descriptor)
        self._how = mib_per_s, latency_ms, place or f"/proc/{os.getpid()}/fd/{self._descriptor}"
        # Processes that come together all make it as long; what is there stays.
        if os.fstat(self._descriptor).st_size < _CLOCK.size:
            os.ftruncate(self._descriptor, _CLOCK.size)
        self._shared = mmap.mmap(self._descriptor, _CLOCK.size)

    def wait(self, size: int) -> None:
        """Return when `size` bytes would have arrived."""
        with self._lock:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                (busy_until,) = _CLOCK.unpack(self._shared[:])
                done = max(time.monotonic() + self._latency_s, busy_until) + size / self._bytes_per_s
                self._shared[:] = _CLOCK.pack(done if self._bytes_per_s != float("inf") else busy_until)
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        time.sleep(max(0.0, done - time.monotonic()))

    def __reduce__(self) -> tuple[type[Throttle], tuple[float | None, float, str]]:
        """Another process opens the same file."""
        return Throttle, self._how
