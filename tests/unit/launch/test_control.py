"""The connections of agents: who is admitted, and that nobody can hold up the process that supervises a run."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scalestudy.launch import control as module
from scalestudy.launch.channel import LIMIT_BYTES, Channel
from scalestudy.launch.control import Control
from scalestudy.spec.run import RunSpec
from scalestudy.training.job import Job, Resolved


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """The supervisor of a run on two hosts whose agents are never started."""
    run = RunSpec.model_validate_json(json.dumps({"strategy": "allreduce", "ranks": 4, "nodes": 2}))
    resolved = Resolved(2, 2, 1, "cpu", 2, None)
    job = Job("r", run, resolved, tmp_path, tmp_path, tmp_path, None, tmp_path, ("a", "b"))
    found = Control(job, "ssh")
    yield found
    found.end()


def connected(control: Control) -> socket.socket:
    """A connection to its port, on loopback."""
    return socket.create_connection(("127.0.0.1", control.listener.getsockname()[1]), timeout=5)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other end has closed it."""
    try:
        connection.settimeout(0)
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@contextmanager
def dripping(connection: socket.socket) -> Iterator[None]:
    """Meanwhile, a byte comes every 10 ms, and never a whole line."""
    over = threading.Event()

    def drip() -> None:
        try:
            while not over.wait(0.01):
                connection.send(b"x")
        except OSError:
            pass  # the other end has had enough

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.timeout(20)
def test_a_peer_that_drips_bytes_holds_nobody_up(control: Control) -> None:
    with connected(control) as peer, dripping(peer), connected(control) as agent:
        agent.sendall(json.dumps({"token": control.token, "index": 1}).encode() + b'\n{"ready": 7}\n')
        while not control.ready:
            control.hear()
    assert control.ready == {1: 7}


@pytest.mark.timeout(20)
def test_a_peer_that_shows_no_token_in_time_is_disconnected(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AUTHENTICATE_S", 0.0)
    with connected(control) as peer:
        peer.send(b"x")
        while not is_closed(peer):
            control.hear()
        assert control.unauthenticated == {}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "hello",
    [
        b"GET / HTTP/1.1\n",
        b'{"token": "guessed", "index": 0}\n',
        b'{"token": "TOKEN", "index": 2}\n',
        b'{"token": "TOKEN", "index": "0"}\n',
        b'{"index": 0}\n',
        b"[]\n",
        b"\xff\n",
    ],
)
def test_only_an_agent_of_this_run_is_admitted(control: Control, hello: bytes) -> None:
    with connected(control) as peer:
        peer.sendall(hello.replace(b"TOKEN", control.token.encode()))
        while not is_closed(peer):
            control.hear()
        assert control.agents == {}


@pytest.mark.timeout(20)
def test_an_agent_cannot_take_anothers_place(control: Control) -> None:
    hello = json.dumps({"token": control.token, "index": 0}).encode() + b"\n"
    with connected(control) as first, connected(control) as second:
        first.sendall(hello)
        while not control.agents:
            control.hear()
        second.sendall(hello)
        while not is_closed(second):
            control.hear()
        assert control.agents[0].socket.getpeername() == first.getsockname()


@pytest.mark.timeout(20)
def test_messages_arrive_whole_and_an_endless_one_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        channel = Channel(server.accept()[0])
    peer.sendall(b'{"a": 1}\n{"b"')
    assert channel.receive() == {"a": 1}
    assert channel.arrived() == []
    peer.sendall(b": 2}\n{}\n")
    assert channel.receive() == {"b": 2}
    assert channel.receive() == {}
    peer.setblocking(False)
    sent, messages = 0, []
    while not messages:
        if sent <= 2 * LIMIT_BYTES:
            try:
                sent += peer.send(b"x" * 65536)
            except BlockingIOError:
                pass
        messages = channel.arrived()
    assert messages == [None]
    peer.close()
    channel.close()
