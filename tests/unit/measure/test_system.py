"""What others take of the cores that a run uses."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from scalestudy.measure.system import (
    Sampler,
    anonymous_bytes,
    client_bytes,
    cpu_seconds,
    foreign_share,
    group_members,
    host_row,
    rows_of_rank,
    share_of_time,
    sizes,
    throttled_seconds,
)
from tests.integration.processes import wait_until


def row(clock_s: float, busy_s: float, cpu_s: float) -> dict[str, float]:
    return {"clock_s": clock_s, "busy_s": busy_s, "cpu_s": cpu_s, "cores": 2.0}


ROWS = [row(0, 100.0, 0.0), row(1, 101.0, 1.0), row(2, 102.5, 2.0), row(3, 104.0, 3.0), row(4, 104.5, 3.5)]
"""From 1 to 3 seconds, others take half a core of two."""


@pytest.mark.parametrize(
    ("begin", "end", "share"),
    [(1.0, 3.0, 0.25), (1.2, 2.9, 0.25), (0.0, 4.0, 0.125), (3.0, 4.0, 0.0), (-5.0, 0.9, 0.0), (3.5, 9.0, 0.0)],
)
def test_the_share_is_that_of_the_samples_around_the_window(begin: float, end: float, share: float) -> None:
    assert foreign_share(ROWS, begin, end) == pytest.approx(share)


def test_what_cannot_be_known_is_not_said() -> None:
    assert rows_of_rank(1 << 20, ()) == []  # as where mpirun started each rank of many
    assert foreign_share([], 0.0, 1.0) is None
    assert foreign_share(ROWS[:1], 0.0, 1.0) is None
    assert foreign_share([row(0.0, 1.0, 0.0), row(0.2, 1.2, 0.0)], 0.0, 0.2) is None


BUSY = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"


@contextmanager
def in_own_group(program: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a process group of its own, as a run's ranks are."""
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, process_group=0)
    try:
        yield process
    finally:
        process.kill()
        process.stdin.close()
        process.wait()


@pytest.mark.parametrize("is_beside", [False, True])
def test_a_sampler_counts_what_its_group_and_a_process_beside_it_used_also_when_that_has_ended(is_beside: bool) -> None:
    with in_own_group("input()") as idle, in_own_group(BUSY.format(0.5)) as process:
        rank = idle if is_beside else process
        sampler = Sampler([rank.pid], rank.pid, beside=[process.pid] if is_beside else [])
        sampler.start()
        process.wait()
        sampler.stop()
    used = max(row["cpu_s"] for row in sampler.rows) - sampler.rows[0]["cpu_s"]
    assert 0.2 < used <= cpu_seconds(os.getpid())
    assert sampler.rows[-1]["busy_s"] > sampler.rows[0]["busy_s"]


def test_what_the_whole_host_does_is_recorded_beside_the_run() -> None:
    before = host_row()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.sendall(bytes(1 << 20))
    grown = {name: value - before[name] for name, value in host_row().items()}
    assert grown.get("host_sent_bytes", 0) < 1 << 20, "loopback counts as a network"
    assert grown["host_page_cache_bytes"] > -(1 << 30)
    assert all(name.startswith("host_") and math.isfinite(value) for name, value in grown.items())


MOUNTSTATS = """\
device rootfs mounted on / with fstype rootfs
device server:/export mounted on /data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576,wsize=1048576,proto=tcp
\tage:\t86
\tbytes:\t4096 10 0 0 1048576 20 256 1
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
device server:/home mounted on /home with fstype nfs statvers=1.1
\tbytes:\t0 0 0 0 1000 2 0 0
"""
LLITE = """\
snapshot_time             1764252000.123456789 secs.nsecs
read_bytes                7 samples [bytes] 4096 4194304 12582912
write_bytes               2 samples [bytes] 512 512 1024 524288
open                      3 samples [regs]
"""


def test_bytes_of_clients_of_network_file_systems_are_read_as_their_kernels_write_them(tmp_path: Path) -> None:
    assert client_bytes(tmp_path) == {}
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountstats").write_text(MOUNTSTATS.replace("bytes:", "events:"))
    assert client_bytes(tmp_path) == {}, "no network file system is mounted"
    (tmp_path / "self/mountstats").write_bytes(b"device a mounted on /\xff with fstype ext4\n" + MOUNTSTATS.encode())
    assert client_bytes(tmp_path) == {"client_read_bytes": 1049576, "client_written_bytes": 22}
    (tmp_path / "fs/lustre/llite/scratch-ffff8881").mkdir(parents=True)
    (tmp_path / "fs/lustre/llite/scratch-ffff8881/stats").write_text(LLITE)
    assert client_bytes(tmp_path) == {"client_read_bytes": 1049576 + 12582912, "client_written_bytes": 22 + 1024}


def heat(system: Path, cpu: int, **counters: object) -> None:
    """What the kernel counted for a hardware thread since the machine's start."""
    folder = system / f"devices/system/cpu/cpu{cpu}/thermal_throttle"
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in counters.items():
        (folder / f"{name}_throttle_total_time_ms").write_text(f"{value}\n")


def test_the_time_is_that_of_core_or_socket_and_the_mean_over_the_runs_cores(tmp_path: Path) -> None:
    heat(tmp_path, 0, core=1500, package=500)
    heat(tmp_path, 1, core=0, package=500)
    heat(tmp_path, 2, core=90_000)
    assert throttled_seconds([0, 1], tmp_path) == pytest.approx(1.0)
    assert throttled_seconds([0, 1, 7], tmp_path) == pytest.approx(1.0)


def test_a_kernel_that_does_not_count_it_says_nothing(tmp_path: Path) -> None:
    assert math.isnan(throttled_seconds([0, 1], tmp_path))
    heat(tmp_path, 0, core="broken")
    assert math.isnan(throttled_seconds([0], tmp_path))
    rows = [{"clock_s": float(second), "throttled_s": math.nan} for second in range(3)]
    assert share_of_time(rows, 0.5, 1.5, "throttled_s") is None
    assert share_of_time([{"clock_s": 0.0}, {"clock_s": 1.0}], 0.0, 1.0, "throttled_s") is None
    assert share_of_time([], 0.0, 1.0, "throttled_s") is None


def test_of_cpu_time_the_share_is_that_of_each_core_and_rows_of_ranks_tell_nothing_of_disks() -> None:
    """Two cores are half busy, a disk a quarter of the time; a rank's row at the window's end has no disk."""
    rows = [
        {"clock_s": float(second), "busy_s": 7.0 + second, "cores": 2.0, "host_disk_busy_s": second / 4}
        for second in range(4)
    ]
    rows.insert(3, {"clock_s": 2.5, "busy_s": 9.5, "cores": 2.0})
    assert share_of_time(rows, 0.5, 2.5, "busy_s", "cores") == pytest.approx(0.5)
    assert share_of_time(rows, 0.5, 2.5, "host_disk_busy_s") == pytest.approx(0.25)
    assert share_of_time(rows[3:4], 0.5, 2.5, "host_disk_busy_s") is None


LOOKS_BOUND = """
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
from scalestudy.measure.system import rows_of_rank
print(rows_of_rank(1, ())[0]["cores"])
"""
LEADS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LOOKS_BOUND!r}])"


def test_a_rank_that_is_bound_to_a_core_looks_at_the_cores_of_the_whole_run() -> None:
    done = subprocess.run([sys.executable, "-c", LEADS], stdout=subprocess.PIPE, check=True, process_group=0)
    assert float(done.stdout) == len(os.sched_getaffinity(0))


HOLDS_MEMORY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "x = b'1' * (64 << 20); print(1, flush=True); import time; time.sleep(60)"],
                         stdout=subprocess.PIPE)
child.stdout.readline()
print(1, flush=True)
child.wait()
"""


def test_memory_that_was_returned_between_two_samples_counts() -> None:
    with in_own_group("import mmap; mmap.mmap(-1, 96 << 20).write(bytes(96 << 20)); input()") as process:
        assert wait_until(lambda: sizes("status", process.pid).get("VmHWM", 0) >= 96 << 20, 30)
        assert wait_until(lambda: sizes("status", process.pid)["VmRSS"] < 96 << 20, 30)
        assert wait_until(lambda: anonymous_bytes(process.pid) >= 96 << 20, 30)  # pages go one after the other


def test_memory_of_a_loaders_worker_processes_counts() -> None:
    with in_own_group(HOLDS_MEMORY) as rank:
        assert wait_until(lambda: len(list(group_members(rank.pid))) == 2, 30)
        sampler = Sampler([rank.pid], rank.pid)
        assert wait_until(lambda: sampler._row()["anonymous_bytes"] - anonymous_bytes(rank.pid) >= 64 << 20, 30)


def test_a_sampler_follows_processes_into_sessions_of_their_own() -> None:
    starts = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY.format(60)!r}], start_new_session=True)"
    )
    with in_own_group(starts) as process:
        sampler = Sampler([process.pid], process.pid, has_sessions=True)
        (worker,) = wait_until(psutil.Process(process.pid).children, 30)
        assert wait_until(lambda: list(group_members(process.pid)) == [process.pid], 30)
        sampler.start()
        before_s = worker.cpu_times().user
        assert wait_until(lambda: worker.cpu_times().user - before_s > 0.2, 30)
        sampler.stop()
        worker.kill()
    assert sampler.rows[-1]["cpu_s"] - sampler.rows[0]["cpu_s"] > 0.1
