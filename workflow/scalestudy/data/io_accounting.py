"""Whether the kernel counts a process's reads on a file system, and what a Lustre client counts of its host's.

`/proc/<pid>/io` counts what a process has the block layer read (submit_bio in block/blk-core.c) and what it has NFS read
(nfs_readahead, nfs_read_folio and nfs_file_direct_read in fs/nfs). Other file systems without a block device do not
count at all, count in another process (CIFS's receiver), or count what came from their own cache (OpenZFS).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)

NAMES = {
    0x0BD00BD0: "lustre", 0x65735546: "fuse", 0x01021994: "tmpfs", 0x858458F6: "ramfs", 0xFF534D42: "cifs",
    0xFE534D42: "smb", 0x00C36400: "ceph", 0x01021997: "9p", 0x5346414F: "afs", 0x47504653: "gpfs", 0x19830326: "beegfs",
    0xAAD7AAEA: "panfs", 0x2FC12FC1: "zfs",
}  # fmt: skip
"""By f_type of statfs(2): linux/magic.h, and the sources of those that are not part of Linux."""
COUNTED = {0x6969: "nfs", 0x9123683E: "btrfs", 0x794C7630: "overlayfs", 0xCA451A4E: "bcachefs"}
"""File systems of no single block device whose reads are counted all the same."""
IN_MEMORY = ("tmpfs", "ramfs")
"""File systems whose files are never anywhere but in memory."""
LUSTRE = (Path("/proc/fs/lustre"), Path("/sys/kernel/debug/lustre"))
"""Where Lustre's client keeps its counters; since 2.13 most are in debugfs, which only root may read."""


def uncounted_file_system(path: Path) -> str | None:
    """The name of the file system of a path where the kernel does not count reads, None where it does."""
    # f_type is the first member of struct statfs, a long, on all 64-bit Linux but s390x; the struct has 120 bytes.
    buffer = ctypes.create_string_buffer(256)
    if _LIBC.statfs(os.fsencode(path), buffer):
        return None
    magic = ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF
    return name_if_uncounted(magic, os.major(path.stat().st_dev))


def name_if_uncounted(magic: int, major: int) -> str | None:
    """By `f_type` of statfs(2) and the major number of the device: 0 is no device. None where reads are counted."""
    if magic in NAMES:
        return NAMES[magic]
    if major != 0 or magic in COUNTED:
        return None
    return f"file system 0x{magic:x}"


@dataclass(frozen=True)
class ClientBytes:
    """Bytes that the Lustre client of this host has counted since it was mounted, for all processes together."""

    bytes: int
    from_servers: bool
    """What servers sent; else what programs asked for, of which some came from the client's cache."""


def lustre_bytes(roots: Iterable[Path] = LUSTRE) -> ClientBytes | None:
    """From the first of `roots` that has counters which may be read; None where there are none.

    `osc` and `mdc` count what object and metadata servers sent (ptlrpc_lprocfs_brw in lustre/ptlrpc), `llite` what
    programs read by read(2), cached or not (LPROC_LL_READ_BYTES in lustre/llite/file.c); wiki.lustre.org,
    "Lustre IO Monitoring".
    """
    for devices, from_servers in ((("osc", "mdc"), True), (("llite",), False)):
        for root in roots:
            counts: list[int] = []
            for file in (file for device in devices for file in root.glob(f"{device}/*/stats")):
                with contextlib.suppress(OSError):
                    # `read_bytes N samples [bytes] min max sum …`; a counter that never counted has no line.
                    words = [line.split() for line in file.read_text(encoding="ascii").splitlines()]
                    counts.append(sum(int(line[6]) for line in words if line[:1] == ["read_bytes"] and len(line) > 6))
            if counts:
                return ClientBytes(sum(counts), from_servers)
    return None
