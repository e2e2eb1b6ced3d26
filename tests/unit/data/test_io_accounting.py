"""File systems whose reads the kernel does not count, and the counters of a Lustre client."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.data.io_accounting import ClientBytes, lustre_bytes, name_if_uncounted

# Recorded: `lctl get_param osc.*.stats` and `llite.*.stats` of Lustre clients, in the form of /proc/fs/lustre.
OSC = """\
snapshot_time             1699887234.123456789 secs.nsecs
req_waittime              24 samples [usec] 210 6345 41211 155623371
req_active                24 samples [reqs] 1 1 24 24
read_bytes                12 samples [bytes] 4096 4194304 25165824 79164837199872
write_bytes               2 samples [bytes] 512 512 1024 524288
ost_read                  12 samples [usec] 210 6345 30211 155623371
"""
LLITE = """\
snapshot_time             1699887234.123456789 secs.nsecs
read_bytes                500 samples [bytes] 4096 1048576 209715200 79164837199872
write_bytes               3 samples [bytes] 1 9 12 83
open                      17 samples [regs]
"""
NOTHING_READ = "snapshot_time             1699887234.123456789 secs.nsecs\nreq_active  2 samples [reqs] 1 1 2 2\n"


def client(root: Path, **stats: str) -> Path:
    """Counters of a client: `osc_a` is the file of device `a` of kind `osc`."""
    for name, text in stats.items():
        kind, _, device = name.partition("_")
        (root / kind / device).mkdir(parents=True)
        (root / kind / device / "stats").write_text(text, encoding="ascii")
    return root


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


def test_what_all_servers_sent_is_the_sum_over_their_devices(tmp_path: Path) -> None:
    root = client(tmp_path, osc_one=OSC, osc_two=OSC, osc_three=NOTHING_READ, mdc_meta=NOTHING_READ, llite_fs=LLITE)

    assert lustre_bytes([tmp_path / "absent", root]) == ClientBytes(2 * 25165824, from_servers=True)


def test_without_counters_of_servers_what_programs_read_is_taken_for_what_it_is(tmp_path: Path) -> None:
    assert lustre_bytes([client(tmp_path, llite_fs=LLITE)]) == ClientBytes(209715200, from_servers=False)
