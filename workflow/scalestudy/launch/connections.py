"""Connections of a run's agents, over TCP: one JSON object per line. No other client is admitted.

Not `multiprocessing.connection`: its authentication waits without a limit for a peer that sends nothing, and a message
of which a part has come blocks its reader.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import wait as wait_for
from typing import Any

LIMIT_BYTES = 1 << 20
"""A longer message ends the connection."""
SEND_S = 10.0
"""A peer that takes nothing for so long is gone."""
AUTHENTICATE_S = 2.0
"""A connection that has not shown the token by then is closed."""

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
        self._messages: list[Message | None] = []
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

    def arrived(self, timeout_s: float | None = 0.0) -> list[Message | None]:
        """Whole messages that are there, after one block at most within `timeout_s`; None last: the connection has ended."""
        try:
            self.socket.settimeout(timeout_s)
            block = self.socket.recv(1 << 16)
            *lines, self._rest = (self._rest + block).split(b"\n")
            self._messages += map(parsed, lines)
            if not block or len(self._rest) > LIMIT_BYTES:
                self._messages.append(None)
        except (TimeoutError, BlockingIOError):
            pass
        except OSError:
            self._messages.append(None)
        messages, self._messages = self._messages, []
        return messages

    def receive(self, limit_s: float | None = None) -> Message | None:
        """The next message, None where the connection has ended, or at the limit. Others stay for `arrived`."""
        end = None if limit_s is None else time.monotonic() + limit_s
        while not self._messages:
            left_s = None if end is None else end - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            self._messages = self.arrived(left_s)
        return self._messages.pop(0)


def parsed(line: bytes) -> Message | None:
    """The message of a line from the network; None where it is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


class Connections:
    """A port, and the agents that have authenticated themselves there."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.token = secrets.token_hex(16)
        """An agent's first message has it, with the agent's number below `count`."""
        self.agents: dict[int, Channel] = {}
        self.listener = socket.create_server(("", 0), backlog=4096)
        self.listener.setblocking(False)  # a peer may be gone by the time it is accepted

    def messages(self, timeout_s: float) -> Iterator[tuple[int, Message | None]]:
        """Messages of agents, with their numbers, as they arrive; None is the end of a connection, which is closed.

        Ends after `timeout_s`, and AUTHENTICATE_S of one new connection, at the latest.
        """
        watched: list[Any] = [self.listener, *self.agents.values()]
        if self.listener in wait_for(watched, timeout_s):
            self._admit()
        for index, channel in list(self.agents.items()):
            for message in channel.arrived():
                if message is None:
                    self.agents.pop(index).socket.close()
                yield index, message
                if message is None:
                    break

    def send(self, message: Message) -> None:
        """Send a message to every agent; a lost one shows when `messages` is called next."""
        for channel in self.agents.values():
            with suppress(OSError):
                channel.send(message)

    def close(self) -> None:
        """Close the port and all connections."""
        for channel in self.agents.values():
            channel.socket.close()
        self.listener.close()

    def _admit(self) -> None:
        """Accept a connection, and close it unless it begins as that of an agent of this run does."""
        with suppress(OSError):  # it is gone already
            channel = Channel(self.listener.accept()[0])
            index = self.agent_number(channel.receive(AUTHENTICATE_S) or {})
            if index is None or index in self.agents:
                channel.socket.close()
            else:
                self.agents[index] = channel

    def agent_number(self, hello: Message) -> int | None:
        """The number of the agent that sent the first message of a connection; None: an agent of this run did not."""
        token, index = hello.get("token"), hello.get("index")
        # JSON can hold halves of characters, which no peer may stop a run with.
        if not isinstance(token, str) or not hmac.compare_digest(
            token.encode(errors="surrogatepass"), self.token.encode()
        ):
            return None
        return index if type(index) is int and 0 <= index < self.count else None
