"""A network that is lost between ranks: what a process sends is sent again and again, and nobody acknowledges it.

TCP alone would try for 13 to 30 minutes (tcp(7), tcp_retries2), and a rank that waits for a message sends none, so
that it never learns of it. The kernel of a machine that is only slow, or whose process is stopped, acknowledges.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

LOOK_S = 5.0
"""How often is looked."""
ESTABLISHED, RETRANSMITS, PROBES = "01", "01", "04"
"""State of a connection, and of its timer, in /proc/net/tcp (Linux: Documentation/networking/proc_net_tcp.rst)."""


class Unanswered:
    """Watches the connections of some processes of this machine."""

    def __init__(self) -> None:
        self._silent_s: dict[int, dict[str, float]] = {}
        """Of each process, seconds by the address that does not answer."""
        self._elapsed_s = 0.0

    def look(self, processes: Sequence[int], elapsed_s: float) -> None:
        """Called again and again, `elapsed_s` after the last call; looks every LOOK_S.

        A gap counts as two looks at most: a job that is suspended as a whole and resumed has lost no network.
        """
        self._elapsed_s += elapsed_s
        if self._elapsed_s < LOOK_S:
            return
        passed_s, self._elapsed_s = min(self._elapsed_s, 2 * LOOK_S), 0.0
        before, self._silent_s = self._silent_s, {}
        for process in processes:
            known = before.get(process, {})
            now = {peer: known[peer] + passed_s if peer in known else 0.0 for peer in unanswered(process)}
            self._silent_s[process] = now

    def longest(self, process: int) -> tuple[str, float]:
        """The address that has not answered a process for the longest time, and how long, seconds; empty where all do."""
        return max(self._silent_s.get(process, {}).items(), key=lambda item: item[1], default=("", 0.0))


def unanswered(process: int) -> set[str]:
    """Addresses to which a process has sent what is not acknowledged, and has been sent again."""
    own = _sockets(process)
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):  # the process has ended, or this is no Linux
            text = Path(f"/proc/{process}/net/{table}").read_text(encoding="ascii")
            found |= {peer for inode, peer in retransmitting(text) if inode in own}
    return found


def retransmitting(table: str) -> Iterator[tuple[str, str]]:
    """Inode and peer's address of the connections in a table of /proc/net whose last bytes were sent more than once.

    Or whose probes stay without an answer: they take the place of bytes that this machine has no route for, and ask for
    room at a peer that does not read, which answers each.
    """
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10:
            continue
        timer, retransmits, probes = fields[5].partition(":")[0], int(fields[6], 16), int(fields[8])
        again = (timer == RETRANSMITS and retransmits > 0) or (timer == PROBES and probes > 1)
        if fields[3] == ESTABLISHED and again:
            yield fields[9], _address(fields[2].partition(":")[0])


def _address(digits: str) -> str:
    """An address as /proc/net has it: words of 32 bits in the machine's order of bytes (here little-endian)."""
    words = [bytes.fromhex(digits[begin : begin + 8])[::-1] for begin in range(0, len(digits), 8)]
    packed = b"".join(words)
    text = socket.inet_ntop(socket.AF_INET6 if len(packed) == 16 else socket.AF_INET, packed)
    return text.removeprefix("::ffff:")


def _sockets(process: int) -> set[str]:
    """Inodes of the sockets that a process has open."""
    found = set()
    with suppress(OSError):
        for link in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                target = str(link.readlink())
                if target.startswith("socket:["):
                    found.add(target[len("socket:[") : -1])
    return found
