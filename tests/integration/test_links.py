"""Emulated nodes: real network namespaces with real token buckets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from scalestudy.emulation import network, relay
from scalestudy.emulation.file_server import file_server
from scalestudy.emulation.network import EmulatedNode, emulated_nodes
from scalestudy.errors import Skipped
from tests.integration.tries import run

MIB = 1 << 20
SENT = 6 * MIB
Exchange = Callable[[socket.socket], float]


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[EmulatedNode]]:
    """Two nodes, with links of 8 MiB/s."""
    try:
        with emulated_nodes(2, 8.0) as made:
            yield made
    except Skipped as reason:
        pytest.skip(str(reason))


def between(sender: EmulatedNode, receiver: EmulatedNode, answer: Exchange, measured: Exchange) -> float:
    """Run `measured` on one node, connected to `answer` on the other; returns its seconds."""
    ready, ready_end = os.pipe()
    if not (child := os.fork()):
        receiver.enter()
        with socket.create_server((receiver.address, 7777)) as server:
            os.write(ready_end, b".")
            answer(server.accept()[0])
        os._exit(0)
    os.read(ready, 1)
    if not (other := os.fork()):
        sender.enter()
        with socket.create_connection((receiver.address, 7777)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            os.write(ready_end, f"{measured(connection):20.6f}".encode())
        os._exit(0)
    for process in (child, other):
        assert os.waitpid(process, 0)[1] == 0
    return float(os.read(ready, 64))


def receive(connection: socket.socket) -> float:
    left = SENT
    while left:
        left -= len(connection.recv(MIB))
    connection.sendall(b".")
    return 0.0


def send(connection: socket.socket) -> float:
    begin = time.perf_counter()
    connection.sendall(bytes(SENT))
    connection.recv(1)
    return time.perf_counter() - begin


def echo(connection: socket.socket) -> float:
    while byte := connection.recv(1):
        connection.sendall(byte)
    return 0.0


def quickest_round_trip(connection: socket.socket) -> float:
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        connection.sendall(b".")
        connection.recv(1)
        times.append(time.perf_counter() - begin)
    return min(times)


def transfer_s(sender: EmulatedNode, receiver: EmulatedNode) -> float:
    """Seconds that 6 MiB take from a process on one node to one on another."""
    return between(sender, receiver, receive, send)


def test_a_link_carries_what_was_asked_for_and_not_more(nodes: list[EmulatedNode]) -> None:
    # 6 MiB of payload at 8 MiB/s of frames need 0.78 s; 64 KiB may pass at once at either end.
    assert transfer_s(nodes[0], nodes[1]) >= 0.7


def test_what_stays_on_a_node_is_not_limited(nodes: list[EmulatedNode]) -> None:
    assert any(transfer_s(nodes[0], nodes[0]) < 0.7 for _ in range(5))  # at once, unless others use the processor


def test_a_message_takes_the_latency_to_the_node_that_it_is_for() -> None:
    try:
        with emulated_nodes(3, 200.0, latency_s=0.02) as made:
            assert 0.04 <= between(made[0], made[2], echo, quickest_round_trip) < 0.06
            assert transfer_s(made[2], made[1]) < 1.0  # its window does not end before the first acknowledgement
    except Skipped as reason:
        pytest.skip(str(reason))


def test_what_waits_in_a_port_of_the_switch_fits_into_the_queue_of_its_link() -> None:
    if os.geteuid() != 0:
        pytest.skip("a socket of packets is for root")
    with relay.port_on("lo") as port:
        assert port.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < int(network.QUEUE.removesuffix("mb")) * MIB


def frame(address: bytes, content: bytes) -> bytes:
    """A frame as the switch reads it, for a port or for all."""
    return bytes(relay.HEADER) + address + content


def test_the_switch_holds_a_frame_for_the_latency_and_loses_none_where_a_port_is_full() -> None:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
    ports, nodes = ([pair[end] for pair in pairs] for end in (0, 1))
    for port in ports:
        port.setblocking(False)

    def until_a_node_is_gone() -> None:
        with suppress(IndexError):  # an empty frame
            relay.relay(ports, 0.02)

    switch = threading.Thread(target=until_a_node_is_gone)
    switch.start()
    begin = time.monotonic()
    nodes[0].send(for_all := frame(b"\xff" * 6, b"who?"))
    assert [node.recv(100) for node in nodes[1:]] == [for_all, for_all]
    assert time.monotonic() - begin >= 0.02
    sent = [frame(bytes([2, 0, 0, 0, 0, 1]), bytes(60_000) + bytes([number])) for number in range(20)]
    for each in sent:  # more than a socket holds: the last ones wait in the switch
        nodes[0].send(each)
    time.sleep(0.1)
    assert [nodes[1].recv(relay.MAX_FRAME) for _ in sent] == sent
    nodes[2].setblocking(False)
    with pytest.raises(BlockingIOError):
        nodes[2].recv(1)
    nodes[0].close()
    switch.join(10)
    assert not switch.is_alive()


@pytest.mark.parametrize(
    ("changed", "value", "reason"),
    [
        ("HOLD", ["sh", "-c", "echo no rights >&2"], "cannot be made here: no rights: run as root"),
        ("QUEUE", "short", "cannot be made here: .*short"),
        ("RELAY", Path("/nowhere/relay.py"), "cannot be made here: .*/nowhere/relay.py"),
        ("PATH", "/nowhere", "needs `unshare`"),
    ],
)
def test_where_no_network_can_be_emulated_the_reason_is_said(
    nodes: list[EmulatedNode], monkeypatch: pytest.MonkeyPatch, changed: str, value: Any, reason: str
) -> None:
    if changed == "PATH":
        monkeypatch.setenv(changed, value)
    else:
        monkeypatch.setattr(network, changed, value)
    with pytest.raises(Skipped, match=reason), emulated_nodes(1, 8.0, latency_s=0.001):
        pass


def test_a_node_that_cannot_be_entered_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "IS_ROOT", False)  # a process cannot enter the user namespace that it is in
    with pytest.raises(OSError, match="cannot enter the emulated node's user namespace"):
        EmulatedNode(os.getpid(), "10.77.0.1").enter()


def test_images_are_read_from_a_server_beyond_the_link(tmp_path: Path, nodes: list[EmulatedNode]) -> None:
    settings = ("data={source: synthetic_jpeg, samples: 24, width: 64, height: 48, mean_kib: 2}", "loader.size=32",
                "loader.origin=nginx", "network.mib_per_s=50", "network.latency_ms=20", "batch.per_rank=4")  # fmt: skip
    made = run(tmp_path / "read", *settings, "measure.warmup_steps=0")
    assert made["metrics"]["training_time_s"] >= 24 * 0.04  # one worker, and a round trip for each image
    assert made["spec"]["loader"]["origin"] == "nginx"
    copied = run(tmp_path / "copied", *settings, "stage.to=scratch", "stage.reuse=false")
    assert copied["metrics"]["stage_s"] >= 24 * 0.04 / 4  # four streams


@pytest.mark.parametrize(
    ("changed", "value", "reason"),
    [
        ("shutil.which", lambda *_, **__: None, "Debian: nginx-light"),
        ("scalestudy.emulation.file_server.CONFIG", "serve;", "nginx does not start here: .*serve"),
    ],
)
def test_a_run_that_nginx_cannot_serve_is_skipped(
    nodes: list[EmulatedNode], monkeypatch: pytest.MonkeyPatch, changed: str, value: Any, reason: str
) -> None:
    monkeypatch.setattr(changed, value)
    with pytest.raises(Skipped, match=reason), file_server(nodes[0], Path()):
        pass


def test_nothing_is_left_when_the_process_that_made_them_is_killed(tmp_path: Path, nodes: list[EmulatedNode]) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from scalestudy.emulation.file_server import file_server\n"
        "from scalestudy.emulation.network import emulated_nodes\n"
        "with emulated_nodes(2, 8.0) as nodes, file_server(nodes[1], Path(sys.argv[1])) as (_, server):\n"
        "    print(*(n.keeper for n in nodes), server, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        keepers = [psutil.Process(int(word)) for word in made.stdout.readline().split()]
        made.kill()
    assert len(keepers) == 3
    assert psutil.wait_procs(keepers, 10)[1] == []
