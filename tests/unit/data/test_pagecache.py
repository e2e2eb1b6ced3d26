from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from scalestudy.data.io_accounting import name_if_uncounted
from scalestudy.data.pagecache import drop, read_bytes, resident_bytes, warm
from scalestudy.emulation.page_cache import CacheLimit

MIB = 1 << 20


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Eight files of 1 MiB on a file system with a page cache that can be dropped."""
    paths = [tmp_path / f"{number}.bin" for number in range(8)]
    for path in paths:
        path.write_bytes(os.urandom(MIB))
    drop(paths)
    if resident_bytes(paths) != 0 or not read_by_this_process(paths):
        pytest.skip(
            "PAGE CACHE NOT TESTED: this file system (tmpfs?) keeps pages that are dropped, or reads go uncounted"
        )
    drop(paths)
    return paths


def read_by_this_process(paths: list[Path]) -> int:
    before = read_bytes()
    warm(paths)
    after = read_bytes()
    return after - before


def test_dropped_files_come_from_the_disk_and_warm_ones_do_not(files: list[Path]) -> None:
    assert read_by_this_process(files) == 8 * MIB
    assert resident_bytes(files) == 8 * MIB
    assert read_by_this_process(files) == 0
    drop(files)
    assert resident_bytes(files) == 0
    assert read_by_this_process(files) == 8 * MIB


def test_what_a_worker_process_reads_is_counted_while_it_lives_and_once_it_has_ended(files: list[Path]) -> None:
    before = read_bytes()
    reader = subprocess.Popen(
        ["sh", "-c", 'cat "$@" >/dev/null; echo done; read line', "sh", *files], stdin=-1, stdout=-1
    )
    reader.stdout.readline()
    # `cat` is reaped, its shell lives; both have read themselves from the disk or not.
    assert 8 * MIB <= (read_bytes() or 0) - before < 12 * MIB
    reader.communicate(b"\n")
    assert 8 * MIB <= (read_bytes() or 0) - before < 12 * MIB


def test_every_pass_over_more_than_the_limit_reads_from_the_disk(files: list[Path]) -> None:
    limit = CacheLimit(3 * MIB)
    for _ in range(3):
        before = read_bytes() or 0
        for path in files:
            warm([path])
            limit.touched(path, MIB)
        assert (read_bytes() or 0) - before == 8 * MIB
    assert resident_bytes(files) == 3 * MIB


@pytest.mark.parametrize(
    ("magic", "major", "name"),
    [
        (0x0BD00BD0, 0, "lustre"), (0x65735546, 0, "fuse"), (0x65735546, 8, "fuse"), (0x01021994, 0, "tmpfs"),
        (0x12345678, 0, "file system 0x12345678"),
        (0xEF53, 8, None), (0x12345678, 8, None), (0x6969, 0, None), (0x9123683E, 0, None),
    ],
)  # fmt: skip
def test_reads_of_block_devices_and_of_nfs_are_counted_and_no_others(magic: int, major: int, name: str | None) -> None:
    assert name_if_uncounted(magic, major) == name
