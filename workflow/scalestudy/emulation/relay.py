"""A switch of which each message takes a stated time to pass: frames are read from its ports, held, and sent on.

Started by `network.emulated_nodes` inside the switch's namespace: `python -IS relay.py SECONDS PORT...`. The last byte of a
node's hardware address is the number of its port. The kernel's own delay (tc-netem) is not built into every kernel, and an
ordinary user cannot load it; raw sockets need no more than the namespace.
"""

from __future__ import annotations

import ctypes
import select
import socket
import sys
import time
from collections import deque

SOL_PACKET, PACKET_VNET_HDR, ETH_P_ALL = 263, 15, 3
"""Constants of Linux's <linux/if_packet.h> and <linux/if_ether.h>."""
HEADER = 10
"""Bytes of struct virtio_net_hdr before each frame: with it, the kernel's packets of 64 KiB pass unsplit."""
MAX_FRAME = HEADER + 2**17
PR_SET_TIMERSLACK = 29
BATCH = 16
"""Frames that are read from a port before the next one's turn."""


def port_on(interface: str) -> socket.socket:
    """A socket that reads what a node sends, and through which frames are sent to it."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**23)
    # Linux doubles it. With more than the queue of the port's link (network.QUEUE) a full queue is an error of `send`.
    port.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**21)
    port.bind((interface, ETH_P_ALL))
    port.setblocking(False)
    return port


def relay(ports: list[socket.socket], latency_s: float) -> None:
    """Pass frames on, each `latency_s` after it was read, until this process is ended."""
    held: list[deque[tuple[float, bytes]]] = [deque() for _ in ports]
    while True:
        now, wait = time.monotonic(), None
        full = []
        for port, frames in zip(ports, held, strict=True):
            try:
                while frames and frames[0][0] <= now:
                    port.send(frames[0][1])
                    frames.popleft()
            except BlockingIOError:
                full.append(port)
                continue
            if frames:
                wait = min(frames[0][0] - now, latency_s if wait is None else wait)
        for port in select.select(ports, full, [], wait)[0]:
            due = time.monotonic() + latency_s
            for frame in _read(port):
                is_for_all = frame[HEADER] & 1
                for number, other in enumerate(ports):
                    if other is not port and (is_for_all or frame[HEADER + 5] == number):
                        held[number].append((due, frame))


def _read(port: socket.socket) -> list[bytes]:
    frames = []
    try:
        for _ in range(BATCH):
            frames.append(port.recv(MAX_FRAME))
    except BlockingIOError:
        pass
    return frames


if __name__ == "__main__":
    # Timers of a process may be 50 us late unless it asks for less.
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    opened = [port_on(interface) for interface in sys.argv[2:]]
    print("ready", flush=True)
    relay(opened, float(sys.argv[1]))
