"""Network peers that reach the control channel of a run without being part of it."""

from __future__ import annotations

import json

import pytest

from scalestudy.launch import connections as module
from scalestudy.launch.connections import Connections
from tests.unit.launch.test_connections import connected, connections

__all__ = ["connections"]

MESSAGES = {
    "garbage": b"\x80\x81\xff\n",
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\n",
    "a list": b"[]\n",
    "no token": b"{}\n",
    "a wrong token": b'{"token": "x", "index": 0}\n',
    "a token of half a character": b'{"token": "\\ud800", "index": 0}\n',
    "nested without end": b"[" * 500_000 + b"\n",
    "a message without an end": b"x" * 3_000_000,
    "a pickle": b"\x80\x04\x95\x1d\0\0\0\0\0\0\0\x8c\x05posix\x8c\x06system\x93.\n",
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_a_peer_without_the_token_is_dropped_and_the_run_continues(
    message: bytes, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AUTHENTICATE_S", 0.5)
    with connected(connections) as peer:
        peer.setblocking(False)
        left, is_open = message, True
        while is_open:
            try:
                left = left[peer.send(left) :]
                assert list(connections.messages(timeout_s=0.05)) == []
                is_open = peer.recv(1) != b""
            except BlockingIOError:
                pass
            except OSError:
                is_open = False
    with connected(connections) as agent:
        for said in ({"token": connections.token, "index": 1}, {"ready": 5}):
            agent.sendall(json.dumps(said).encode() + b"\n")
        heard: list[object] = []
        for _ in range(50):
            heard = heard or [*connections.messages(timeout_s=0.1)]
        assert heard == [(1, {"ready": 5})] and set(connections.agents) == {1}


@pytest.mark.parametrize("index", [True, -1, 2, 1e3, "1", None, [1]])
def test_an_agent_without_a_number_of_the_run_is_refused(index: object, connections: Connections) -> None:
    assert connections.agent_number({"token": connections.token, "index": index}) is None
    assert connections.agent_number({"token": connections.token, "index": 1}) == 1
