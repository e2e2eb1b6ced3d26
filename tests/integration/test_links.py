"""Emulated nodes: real network namespaces with real token buckets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from scalestudy.emulation.network import EmulatedNode, emulated_nodes
from scalestudy.errors import Skipped

MIB = 1 << 20
SENT = 6 * MIB


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[EmulatedNode]]:
    """Two nodes, with links of 8 MiB/s."""
    try:
        with emulated_nodes(2, 8.0) as made:
            yield made
    except Skipped as reason:
        pytest.skip(str(reason))


def transfer_s(sender: EmulatedNode, receiver: EmulatedNode) -> float:
    """Seconds that 6 MiB take from a process on one node to one on another."""
    ready, ready_end = os.pipe()
    if not (child := os.fork()):
        receiver.enter()
        with socket.create_server((receiver.address, 7777)) as server:
            os.write(ready_end, b".")
            connection, _ = server.accept()
            begin, left = time.perf_counter(), SENT
            while left:
                left -= len(connection.recv(MIB))
            os.write(ready_end, f"{time.perf_counter() - begin:20.6f}".encode())
        os._exit(0)
    os.read(ready, 1)
    if not (other := os.fork()):
        sender.enter()
        with socket.create_connection((receiver.address, 7777)) as connection:
            connection.sendall(bytes(SENT))
        os._exit(0)
    for process in (child, other):
        assert os.waitpid(process, 0)[1] == 0
    return float(os.read(ready, 64))


def test_a_link_carries_what_was_asked_for_and_not_more(nodes: list[EmulatedNode]) -> None:
    # 6 MiB of payload at 8 MiB/s of frames need 0.78 s; 64 KiB may pass at once at either end.
    assert transfer_s(nodes[0], nodes[1]) >= 0.7


def test_what_stays_on_a_node_is_not_limited(nodes: list[EmulatedNode]) -> None:
    assert min(transfer_s(nodes[0], nodes[0]) for _ in range(5)) < 0.7  # the quickest: others may use the processor


def test_nothing_is_left_when_the_process_that_made_them_is_killed(nodes: list[EmulatedNode]) -> None:
    code = (
        "import time; from scalestudy.emulation.network import emulated_nodes\n"
        "with emulated_nodes(2, 8.0) as nodes: print(*(n.keeper for n in nodes), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        keepers = [psutil.Process(int(word)) for word in made.stdout.readline().split()]
        made.kill()
    assert len(keepers) == 2
    assert psutil.wait_procs(keepers, 10)[1] == []
