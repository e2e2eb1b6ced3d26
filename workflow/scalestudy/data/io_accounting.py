"""Whether the kernel counts a process's reads on a file system.

`/proc/<pid>/io` counts what a process has the block layer read (submit_bio in block/blk-core.c) and what it has NFS read
(nfs_readahead, nfs_read_folio and nfs_file_direct_read in fs/nfs). Other file systems without a block device do not
count at all, count in another process (CIFS's receiver), or count what came from their own cache (OpenZFS).
"""

from __future__ import annotations

import ctypes
import os
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
