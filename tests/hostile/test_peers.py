"""Whoever can reach a run without being part of it: peers of its control channel, and notes of other users on this host."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalestudy.host_lock import _holders
from scalestudy.launch.connections import Connections
from tests.hostile.harness import Case, Refuse, nothing

MESSAGES: dict[str, tuple[bytes, str]] = {
    "nothing but a line's end": (b"\n", ""),
    "garbage": (b"\x80\x81\xff\n", ""),
    "a page request": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ""),
    "a greeting of TLS": (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\n", ""),
    "a list": (b"[]\n", ""),
    "a number": (b"7\n", ""),
    "no token": (b"{}\n", ""),
    "a wrong token": (b'{"token": "x", "index": 0}\n', ""),
    "a token that is a map": (b'{"token": {}, "index": 0}\n', ""),
    "a token that is null": (b'{"token": null, "index": 0}\n', ""),
    "a token of half a character": (b'{"token": "\\ud800", "index": 0}\n', "damage"),
    "a token beyond ASCII": ('{"token": "ü", "index": 0}\n'.encode(), ""),
    "nested without end": (b"[" * 500_000 + b"\n", "damage"),
    "maps without end": (b'{"a":' * 100_000 + b"\n", "damage"),
    "five thousand digits": (b"9" * 5000 + b"\n", ""),
    "a message without an end": (b"x" * 3_000_000, ""),
    "a pickle": (b"\x80\x04\x95\x1d\0\0\0\0\0\0\0\x8c\x05posix\x8c\x06system\x93.\n", ""),
}


@pytest.fixture
def connections() -> Iterator[Connections]:
    """The port of a run on two hosts."""
    found = Connections(count=2)
    yield found
    found.close()


def connected(connections: Connections) -> socket.socket:
    return socket.create_connection(("127.0.0.1", connections.listener.getsockname()[1]), timeout=5)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_peer_that_is_not_of_the_run_cannot_end_it(name: str, connections: Connections, refuse: Refuse) -> None:
    message, before = MESSAGES[name]
    with connected(connections) as peer:
        peer.setblocking(False)
        left, refused = message, False
        while not refused:
            try:
                left = left[peer.send(left) :] if left else left
            except BlockingIOError:
                pass
            except OSError:
                left = b""  # the run has closed the connection
            assert list(connections.messages(timeout_s=0.05)) == []
            refused = not connections.unauthenticated
    with connected(connections) as agent:
        for said in ({"token": connections.token, "index": 1}, {"ready": 5}):
            agent.sendall(json.dumps(said).encode() + b"\n")
        heard: list[object] = []
        for _ in range(50):
            heard += connections.messages(timeout_s=0.1)
            if heard:
                break
        assert heard == [(1, {"ready": 5})] and set(connections.agents) == {1}
    refuse.note(Case(name, nothing, "", before=before), "dropped; the run continues without it")


@pytest.mark.parametrize("index", [True, -1, 2, 1e3, "1", None, [1]])
def test_an_agent_has_a_number_of_the_run(index: object, connections: Connections) -> None:
    assert connections._agent_number({"token": connections.token, "index": index}) is None
    assert connections._agent_number({"token": connections.token, "index": 1}) == 1


NOTES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", ""),
    "garbage": (b"\x80\x81", ""),
    "a list": (b"[]", ""),
    "nested without end": (b"[" * 4096, "damage"),
    "a process that is none": (b'{"process": "x:y", "name": "a", "since": "b"}', ""),
    "a process below nothing": (b'{"process": "-1:5", "name": "a", "since": "b"}', ""),
    "a process that is a list": (b'{"process": [], "name": "a", "since": "b"}', ""),
    "a process of the system": (b'{"process": "1:1", "name": "\\u001b[2J", "since": "b"}', ""),
}


@pytest.mark.parametrize("name", NOTES)
def test_a_note_of_another_user_says_nothing_that_is_not_true(name: str, tmp_path: Path, refuse: Refuse) -> None:
    content, before = NOTES[name]
    (tmp_path / "scalestudy-1.holder").write_bytes(content)
    assert _holders(tmp_path) == ""
    refuse.note(Case(f"a note: {name}", nothing, "", before=before), "it does not count")
