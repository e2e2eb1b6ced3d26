"""Emulated nodes on one host: network namespaces with links of a stated rate and latency to one switch. Linux only.

Each logical node is a network namespace with one virtual Ethernet link; a token bucket (tc-tbf) limits each direction of
it. The switch is a bridge, or a process that holds each packet for the latency (relay.py). Traffic between ranks of one
node stays in the namespace and is not limited. A namespace is held by a process that dies with this one: nothing is left
behind, however the run ends.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from scalestudy.errors import Skipped

CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWNET = 0x04000000, 0x10000000, 0x40000000
INTERFACE = "net0"
MIN_BURST, WHOLE_PACKET, BURST_S, QUEUE = 2**16, 80 * 2**10, 1 / 512, "8mb"
"""What may pass at once: so many bytes at least, and so many seconds of the link; and what may queue before packets are lost.

The kernel passes up to 64 KiB with their headers as one packet. A bucket that cannot take it splits it into 45, which costs
so much of a core that a link of 10 Gbit/s passes 4; so what reaches the relay is whole. Where the bucket holds a moment of
the link, tokens are not lost while its timer is late: 10 Gbit/s then pass at 0.99 to 1.01 of their rate.
"""
SEND_AHEAD_S, MIN_AHEAD, MAX_AHEAD = 1 / 64, 2**17, 4 * 2**20
"""What a connection may send before it is acknowledged: so many seconds of its link, in bytes at least and at most.

Linux allows 4 to 6 MiB, which is 3 to 5 ms of 10 Gbit/s. On a link a hundred times slower that would be half a second,
in which the messages of a later round share the link with those that a rank waits for (halving-doubling on 8 nodes took
1.3 times as long as with this limit). A connection needs two of the kernel's 64 KiB packets to keep going, and over a link
with a latency what the link carries in two round trips.
"""
IS_ROOT = os.geteuid() == 0
"""Others may make network namespaces in a user namespace of their own."""
RELAY = Path(__file__).with_name("relay.py")
HOLD = ["sh", "-c", "echo; exec sleep infinity"]
DIES_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]
"""Asked for last: entering a user namespace would clear it."""
LIMIT_BUFFERS = "cd /proc/sys/net/ipv4; for way in wmem rmem; do echo 4096 $1 $1 > tcp_$way || exit 1; done"
"""Sizes of TCP's buffers: least, at first, at most."""


@dataclass(frozen=True)
class EmulatedNode:
    """A namespace, named by the process that holds it."""

    keeper: int
    address: str
    relay: int | None = None
    """The process that is the switch; None where it is a bridge."""

    def enter(self) -> None:
        """Move this process, which must have one thread, into the node; gloo will use its link."""
        libc = ctypes.CDLL(None, use_errno=True)
        for kind, flag in (("net", CLONE_NEWNET),) if IS_ROOT else (("user", CLONE_NEWUSER), ("net", CLONE_NEWNET)):
            with open(f"/proc/{self.keeper}/ns/{kind}", "rb") as namespace:
                _succeeded(libc.setns(namespace.fileno(), flag), f"enter the emulated node's {kind} namespace")
        # Horovod looks up the host's name, then the address of that name: it must get the node's.
        _succeeded(libc.unshare(CLONE_NEWUTS), "have a host name of its own")
        _succeeded(libc.sethostname(self.address.encode(), len(self.address)), "name the emulated node")
        os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE


@contextmanager
def emulated_nodes(count: int, mib_per_s: float, latency_s: float = 0.0) -> Iterator[list[EmulatedNode]]:
    """So many nodes on one switch, with links of `mib_per_s` (2^20 bytes of Ethernet frames) in each direction.

    A message between two nodes takes `latency_s` more than its way through the kernel.

    Raises Skipped, with the reason, where this system does not allow it.
    """
    keepers: list[subprocess.Popen[str]] = []
    try:
        yield _made(count, mib_per_s, latency_s, keepers)
    finally:
        for keeper in keepers:
            keeper.kill()
        for keeper in keepers:
            keeper.wait()


def _made(count: int, mib_per_s: float, latency_s: float, keepers: list[subprocess.Popen[str]]) -> list[EmulatedNode]:
    """The nodes; `keepers` gets the processes that hold them."""
    try:
        switch = _keep(["unshare", *([] if IS_ROOT else ["--user", "--map-root-user"]), "--net"], HOLD, keepers)
        held = [_keep([*_into(switch), "unshare", "--net"], HOLD, keepers) for _ in range(count)]
        nodes = [EmulatedNode(keeper, f"10.77.0.{i + 1}") for i, keeper in enumerate(held)]
        rate, burst = int(mib_per_s * 2**20), WHOLE_PACKET if latency_s else MIN_BURST
        limit = f"root tbf rate {8 * rate}bit burst {max(burst, int(rate * BURST_S))} limit {QUEUE}"
        _configure(switch, nodes, limit, is_bridged=not latency_s)
        if latency_s:
            program = [sys.executable, "-IS", str(RELAY), str(latency_s), *(f"node{port}" for port in range(count))]
            relay = _keep(_into(switch), program, keepers)
            nodes = [replace(node, relay=relay) for node in nodes]
        ahead = min(max(MIN_AHEAD, int(rate * max(SEND_AHEAD_S, 4 * latency_s))), MAX_AHEAD)
        for node in nodes:
            _in(node.keeper, ["sh", "-c", LIMIT_BUFFERS, "sh", str(ahead)])
    except FileNotFoundError as error:
        raise Skipped(f"an emulated network needs `{error.filename}` (Debian: util-linux, iproute2)") from None
    except subprocess.CalledProcessError as error:
        remedy = "run as root, or enable unprivileged user namespaces"
        raise Skipped(f"an emulated network cannot be made here: {error.stderr.strip()[-200:]}: {remedy}") from None
    return nodes


def _keep(namespace: list[str], command: list[str], keepers: list[subprocess.Popen[str]]) -> int:
    """Start a process in a namespace, which ends with this one; returns its id once it has written a line."""
    keeper = subprocess.Popen(
        [*namespace, *DIES_WITH_PARENT, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    keepers.append(keeper)
    assert keeper.stdout is not None and keeper.stderr is not None
    if not keeper.stdout.readline():
        raise subprocess.CalledProcessError(keeper.wait(), command, stderr=keeper.stderr.read())
    return keeper.pid


def _configure(switch: int, nodes: list[EmulatedNode], limit: str, is_bridged: bool) -> None:
    """A link from the switch to each node, with a token bucket at both ends, and a bridge between them."""
    lines = ["link add bridge type bridge", "link set bridge up"] if is_bridged else []
    lines += [f"link add node{i} type veth peer name {INTERFACE} netns {node.keeper}" for i, node in enumerate(nodes)]
    lines += [f"link set node{i}{' master bridge' if is_bridged else ''} up" for i in range(len(nodes))]
    _in(switch, ["ip", "-batch", "-"], lines)
    _in(switch, ["tc", "-batch", "-"], [f"qdisc add dev node{i} {limit}" for i in range(len(nodes))])
    for i, node in enumerate(nodes):
        hardware = f"link set {INTERFACE} address 02:00:00:00:00:{i:02x} up"
        address = [hardware, f"addr add {node.address}/24 dev {INTERFACE}", "link set lo up"]
        _in(node.keeper, ["ip", "-batch", "-"], address)
        _in(node.keeper, ["tc", "-batch", "-"], [f"qdisc add dev {INTERFACE} {limit}"])


def command_on(node: EmulatedNode, command: list[str]) -> list[str]:
    """What starts a command on a node; its process ends with the one that starts it."""
    return [*_into(node.keeper), *DIES_WITH_PARENT, *command]


def _into(process: int) -> list[str]:
    """What starts a command in the namespaces of a process."""
    return ["nsenter", "--target", str(process), *([] if IS_ROOT else ["--user", "--preserve-credentials"]), "--net"]


def _in(process: int, command: list[str], lines: Sequence[str] = ()) -> None:
    """Run a command in the namespace of a process; `ip` and `tc` read their commands, one a line."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    subprocess.run(
        [*_into(process), *command],
        input="".join(f"{line}\n" for line in lines),
        text=True,
        capture_output=True,
        check=True,
        env={**os.environ, "PATH": path},
    )


def _succeeded(status: int, what: str) -> None:
    """Raise OSError where a call of the C library did not."""
    if status:
        raise OSError(ctypes.get_errno(), f"a process cannot {what}")
