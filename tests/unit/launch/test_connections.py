"""The connections of agents: only those of a run are admitted, and no peer can hold up its supervisor."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scalestudy.launch import connections as module
from scalestudy.launch.connections import Channel, Connections
from scalestudy.launch.control import Control
from scalestudy.launch.failures import NodeFailed
from scalestudy.spec.run import RunSpec
from tests.unit.test_training import job

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def connections() -> Iterator[Connections]:
    """The port of a run on two hosts whose agents are never started."""
    found = Connections(count=2)
    yield found
    found.close()


def connected(connections: Connections) -> socket.socket:
    return socket.create_connection(("127.0.0.1", connections.listener.getsockname()[1]), timeout=5)


def hear(connections: Connections) -> list[tuple[int, Any]]:
    return list(connections.messages(timeout_s=0.1))


@contextmanager
def dripping(connection: socket.socket) -> Iterator[None]:
    """Meanwhile, a byte comes every 10 ms, and never a whole line."""
    over = threading.Event()

    def drip() -> None:
        try:
            while not over.wait(0.01):
                connection.send(b"x")
        except OSError:
            pass  # the other end has closed it

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_peer_that_drips_bytes_holds_up_no_agent_for_long(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AUTHENTICATE_S", 0.3)
    with connected(connections) as peer, dripping(peer), connected(connections) as agent:
        agent.sendall(json.dumps({"token": connections.token, "index": 1}).encode() + b'\n{"ready": 7}\n')
        while not (heard := hear(connections)):
            pass
    assert heard == [(1, {"ready": 7})]


def test_an_agent_cannot_take_anothers_place(connections: Connections) -> None:
    hello = json.dumps({"token": connections.token, "index": 0}).encode() + b"\n"
    with connected(connections) as first, connected(connections) as second:
        for agent in (first, second):
            agent.sendall(hello)
        for _ in range(4):
            hear(connections)
        assert second.recv(1) == b""
        assert connections.agents[0].socket.getpeername() == first.getsockname()


def test_an_agent_that_is_reset_between_ready_and_start_is_a_node_fault(tmp_path: Path) -> None:
    control = Control(job(RunSpec(), tmp_path, ("node7",)), "ssh")
    with connected(control.connections) as agent:
        agent.sendall(json.dumps({"token": control.connections.token, "index": 0}).encode() + b'\n{"ready": 7}\n')
        control.until(lambda: control.ready == {0: 7}, 10.0)
        agent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with pytest.raises(NodeFailed, match="the agent on node7 ended without a message"):
        control.start()
        control.until(lambda: control.done == {0}, None)
    control.end()


def test_messages_arrive_whole() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        channel = Channel(server.accept()[0])
    peer.sendall(b'{"a": 1}\n{"b"')
    assert channel.receive() == {"a": 1}
    assert channel.arrived() == []
    assert channel.receive(0.1) is None
    peer.sendall(b": 2}\n{}\n")
    assert [channel.receive(), channel.receive()] == [{"b": 2}, {}]
    peer.close()
    channel.socket.close()
