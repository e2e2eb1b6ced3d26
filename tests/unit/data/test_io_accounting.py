"""File systems whose reads the kernel does not count."""

from __future__ import annotations

import pytest

from scalestudy.data.io_accounting import name_if_uncounted


@pytest.mark.parametrize(
    ("magic", "major", "name"),
    [
        (0x0BD00BD0, 0, "lustre"), (0x65735546, 0, "fuse"), (0x65735546, 8, "fuse"), (0x01021994, 0, "tmpfs"),
        (0x12345678, 0, "file system 0x12345678"),
    ],
)  # fmt: skip
def test_reads_that_pass_no_block_layer_are_not_counted(magic: int, major: int, name: str) -> None:
    assert name_if_uncounted(magic, major) == name


@pytest.mark.parametrize(
    ("magic", "major"), [(0xEF53, 8), (0x58465342, 259), (0x12345678, 8), (0x6969, 0), (0x9123683E, 0), (0x794C7630, 0)]
)
def test_reads_of_block_devices_and_of_nfs_are_counted(magic: int, major: int) -> None:
    assert name_if_uncounted(magic, major) is None
