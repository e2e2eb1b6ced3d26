"""Messages between `scalestudy train` and its agents: one JSON object per line, over TCP."""

from __future__ import annotations

import json
import socket
from collections import deque
from typing import Any

LIMIT_BYTES = 1 << 20
"""A longer message ends the connection."""
SEND_S = 10.0
"""A peer that takes nothing for so long is gone."""

Message = dict[str, Any]


class Channel:
    """One connection. A broken one, and a malformed message, is reported as its end: None."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.addresses = str(connection.getsockname()[0]), str(connection.getpeername()[0])
        """This end's and the other's, which the kernel no longer knows of a lost connection."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A machine that loses its power closes no connection; the kernel finds out in half a minute.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
        self._messages: deque[Message | None] = deque()
        self._rest = b""

    def fileno(self) -> int:
        """For `multiprocessing.connection.wait`."""
        return self.socket.fileno()

    def send(self, message: Message) -> None:
        """Send one message; raises ConnectionError where the other end is gone."""
        try:
            self.socket.settimeout(SEND_S)
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise ConnectionError(str(error)) from error

    def arrived(self) -> list[Message | None]:
        """The whole messages that are there, without waiting for more; None last where the connection has ended."""
        self._read(timeout_s=0)
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def receive(self) -> Message | None:
        """The next message, None where the connection has ended. Waits for it as long as the other end lives."""
        while not self._messages:
            self._read(timeout_s=None)
        return self._messages.popleft()

    def close(self) -> None:
        """End the connection."""
        self.socket.close()

    def _read(self, timeout_s: float | None) -> None:
        """Take in one block, where one comes in time."""
        try:
            self.socket.settimeout(timeout_s)
            block = self.socket.recv(1 << 16)
        except (TimeoutError, BlockingIOError):
            return
        except OSError:
            block = b""
        *lines, self._rest = (self._rest + block).split(b"\n")
        self._messages += map(_message, lines)
        if not block or len(self._rest) > LIMIT_BYTES:
            self._messages.append(None)


def _message(line: bytes) -> Message | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
