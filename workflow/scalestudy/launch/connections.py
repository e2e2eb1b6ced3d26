"""Connections of a run's agents: no other client is admitted, and none can hold up the supervising process."""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import wait as wait_for
from typing import Any

from scalestudy.launch.channel import Channel, Message

AUTHENTICATE_S = 2.0
"""A connection that has not shown the token by then is closed."""


class Connections:
    """A port, the agents that have authenticated themselves there, and connections that have yet to do so."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.token = secrets.token_hex(16)
        """An agent's first message has it, with the agent's number below `count`."""
        self.agents: dict[int, Channel] = {}
        self.unauthenticated: dict[Channel, float] = {}
        """With the time by which they must have shown the token."""
        self.listener = socket.create_server(("", 0), backlog=4096)
        self.listener.setblocking(False)  # a peer may be gone by the time it is accepted

    @property
    def port(self) -> int:
        """Where agents connect to."""
        return int(self.listener.getsockname()[1])

    def messages(self, timeout_s: float) -> Iterator[tuple[int, Message | None]]:
        """Messages of agents, with their numbers, as they arrive; None is the end of a connection, which is closed.

        Ends after `timeout_s` at the latest, whatever the other ends do.
        """
        watched: list[Any] = [self.listener, *self.unauthenticated, *self.agents.values()]
        ready: Any
        for ready in wait_for(watched, timeout_s):
            if ready is self.listener:
                self._accept()
            elif ready in self.unauthenticated:
                yield from self._authenticate(ready)
            else:
                index = next(index for index, channel in self.agents.items() if channel is ready)
                yield from self._from_agent(index, ready.arrived())
        now = time.monotonic()
        for channel in [channel for channel, deadline in self.unauthenticated.items() if now >= deadline]:
            self._refuse(channel)

    def addresses(self) -> dict[int, tuple[str, str]]:
        """By agent, the addresses of its connection: this end's, the other's."""
        return {index: channel.addresses for index, channel in self.agents.items()}

    def send(self, message: Message) -> None:
        """Send a message to every agent; a lost one shows when `messages` is called next."""
        for channel in self.agents.values():
            with suppress(ConnectionError):
                channel.send(message)

    def close(self) -> None:
        """Close the port and all connections."""
        for channel in [*self.agents.values(), *self.unauthenticated]:
            channel.close()
        self.listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it is gone already
            self.unauthenticated[Channel(self.listener.accept()[0])] = time.monotonic() + AUTHENTICATE_S

    def _authenticate(self, channel: Channel) -> Iterator[tuple[int, Message | None]]:
        messages = channel.arrived()
        if not messages:
            return
        index = self._agent_number(messages[0])
        if index is None or index in self.agents:
            self._refuse(channel)
            return
        del self.unauthenticated[channel]
        self.agents[index] = channel
        yield from self._from_agent(index, messages[1:])

    def _agent_number(self, hello: Message | None) -> int | None:
        """The number of the agent that sent the first message of a connection; None: an agent of this run did not."""
        token = None if hello is None else hello.get("token")
        if hello is None or not isinstance(token, str):
            return None
        # JSON can hold halves of characters, which no peer may stop a run with.
        if not hmac.compare_digest(token.encode(errors="surrogatepass"), self.token.encode()):
            return None
        index = hello.get("index")
        return index if type(index) is int and 0 <= index < self.count else None

    def _from_agent(self, index: int, messages: list[Message | None]) -> Iterator[tuple[int, Message | None]]:
        for message in messages:
            if message is None:
                self.agents.pop(index).close()
            yield index, message
            if message is None:
                return

    def _refuse(self, channel: Channel) -> None:
        del self.unauthenticated[channel]
        channel.close()
