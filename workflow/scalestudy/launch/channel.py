"""Messages between `scalestudy train` and its agents: one JSON object per line, over TCP."""

from __future__ import annotations

import json
import socket
from typing import Any

LIMIT_BYTES = 1 << 20
SILENCE_S = 10.0


class Channel:
    """One connection. Whoever is at the other end of a broken or silent one is told so by None."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        connection.settimeout(SILENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A machine that loses its power says no goodbye; the kernel finds out in half a minute.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
        self._received = b""

    def fileno(self) -> int:
        """For `multiprocessing.connection.wait`."""
        return self.socket.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send one message; raises ConnectionError where the other end is gone."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise ConnectionError(str(error)) from error

    def receive(self, wait: bool = True) -> dict[str, Any] | None:
        """The next message, None where the connection has ended. Waits for it as long as the other end lives."""
        while b"\n" not in self._received:
            try:
                block = self.socket.recv(1 << 16)
            except TimeoutError:
                if wait:
                    continue
                return None
            except OSError:
                return None
            self._received += block
            if not block or len(self._received) > LIMIT_BYTES:
                return None
        line, _, self._received = self._received.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            return None
        return message if isinstance(message, dict) else None

    @property
    def has_more(self) -> bool:
        """Whether a whole message has been received and not been read."""
        return b"\n" in self._received

    def close(self) -> None:
        """End the connection."""
        self.socket.close()
