"""Use of the machine by a run's processes and by others: once a second and at the window's ends."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from scalestudy.limits import kernel_text, quota_throttled_seconds
from scalestudy.measure.devices import DeviceMeter
from scalestudy.measure.placement import SYSTEM

INTERVAL_S = 1.0
UNMEASURED = "unmeasured."
"""Beginning of the names of files, in a run's scratch folder, that say what of a host was not measured, and why."""
MAX_FOREIGN = 0.05
"""Share of the cores that others may take during a window before it is disturbed."""
MIN_SPAN_S = 0.5
"""Ticks of 10 ms say little about less time than this: a shorter window is widened."""
MEMORY_SHARE = 0.005
"""Share of the time that reading the memory of processes may take: the kernel looks at each of their pages."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LUSTRE = Path("/sys/kernel/debug/lustre/llite")
"""Statistics of Lustre's clients, a folder per mount."""
THROTTLED = ("core_throttle_total_time_ms", "package_throttle_total_time_ms")
"""Of a hardware thread's core and of its socket, since the machine's start; Intel processors, Linux 5.8 and later
(drivers/thermal/intel/therm_throt.c)."""


def sizes(file: str, pid: int | str = "self") -> dict[str, int]:
    """The sizes in /proc/<pid>/`status` or `smaps_rollup`, bytes; empty where there is no such file or process."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    fields = [line.split() for line in lines if line.endswith(" kB")]
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields}


def anonymous_bytes(pid: int) -> int:
    """Peak of a process's anonymous memory, bytes; 0 when it is gone.

    Shared pages count in proportion (Pss_Anon + Pss_Shmem). The kernel's peak of the resident set (VmHWM) above the present
    one is added: the use between two samples.
    """
    rollup, status = sizes("smaps_rollup", pid), sizes("status", pid)
    above = max(0, status.get("VmHWM", 0) - status.get("VmRSS", 0)) if rollup else 0
    return rollup.get("Pss_Anon", 0) + rollup.get("Pss_Shmem", 0) + above


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its children that it has waited for, seconds; 0 when it is gone."""
    try:
        return float(sum(psutil.Process(pid).cpu_times()[:4]))
    except psutil.Error:
        return 0.0


def busy_seconds(cores: frozenset[int]) -> float:
    """Time since the machine's start that these cores computed, or were taken by the hypervisor, summed.

    Interrupts are left out: they belong to no process, and may be those of the run's own messages.
    """
    ticks, names = 0, {f"cpu{core}" for core in cores}
    for name, *values in map(str.split, Path("/proc/stat").read_text(encoding="ascii").splitlines()):
        if name in names:
            user, nice, system, _idle, _iowait, _irq, _softirq, steal = map(int, values[:8])
            ticks += user + nice + system + steal
    return ticks / TICKS_PER_S


def throttled_seconds(cores: Collection[int], system: Path = SYSTEM) -> float:
    """Time since the machine's start in which heat slowed these cores down, mean over them; NaN: the kernel has none."""
    seconds = []
    for core in cores:
        texts = (kernel_text(system / f"devices/system/cpu/cpu{core}/thermal_throttle" / name) for name in THROTTLED)
        counts = [int(text) for text in texts if text.isdigit()]
        seconds += [max(counts) / 1000] if counts else []
    return sum(seconds) / len(seconds) if seconds else math.nan


def group_members(group: int) -> Iterator[int]:
    """The processes of a process group."""
    for pid in psutil.pids():
        with suppress(OSError):
            if os.getpgid(pid) == group:
                yield pid


def cpu_row(group: int, leader: int, cores: frozenset[int], more: Sequence[int] = ()) -> dict[str, float]:
    """CPU time of a run and of all others so far; the `leader` started the run's process group, `more` have left it."""
    cpu_s = cpu_seconds(leader) + sum(map(cpu_seconds, {*group_members(group), *more}))
    return {"clock_s": time.perf_counter(), "cpu_s": cpu_s, "busy_s": busy_seconds(cores),
            "throttled_s": throttled_seconds(cores), "quota_throttled_s": quota_throttled_seconds(),
            "cores": float(len(cores))}  # fmt: skip


def client_bytes(proc: Path = Path("/proc")) -> dict[str, int]:
    """Bytes that this host's clients of NFS and Lustre exchanged with their servers, summed over mounts; empty without any.

    NFS: the fifth and sixth number of `bytes:` in mountstats (fs/nfs/iostat.h); Lustre: the sums in llite's `stats`, the
    third number after `[bytes]` (lprocfs_stats_seq_show; newer versions add one, and let root alone read it).
    """
    read, written = [], []
    for line in kernel_text(proc / "self/mountstats").splitlines():
        if line.lstrip().startswith("bytes:"):
            read.append(int(line.split()[5]))
            written.append(int(line.split()[6]))
    for file in [*proc.glob("fs/lustre/llite/*/stats"), *LUSTRE.glob("*/stats")]:
        of = {
            name: int(rest[rest.index("[bytes]") + 3])
            for name, *rest in map(str.split, kernel_text(file).splitlines())
            if "[bytes]" in rest
        }
        read += [of.get("read_bytes", 0)]
        written += [of.get("write_bytes", 0)]
    return {"client_read_bytes": sum(read), "client_written_bytes": sum(written)} if read else {}


def host_row() -> dict[str, float]:
    """What the whole host did since its start: bytes of its disks, the time in which they had requests, summed over them;
    bytes of its networks (loopback left out) and of its clients of network file systems, pages read from a disk, CPU
    time that the hypervisor took, busy CPU time (percent, since the last call), and the page cache, bytes.

    Names begin with `host_`; what this system does not tell is absent.
    """
    row: dict[str, Any] = {"cpu_percent": psutil.cpu_percent(), "steal_s": psutil.cpu_times().steal,
                           "page_cache_bytes": psutil.virtual_memory().cached}  # fmt: skip
    with suppress(OSError, NotImplementedError, AttributeError):  # containers without /proc/diskstats, or without disks
        disks: Any = psutil.disk_io_counters(nowrap=False)
        row |= {"disk_read_bytes": disks.read_bytes, "disk_written_bytes": disks.write_bytes}
        row |= {"disk_busy_s": disks.busy_time / 1000}
    with suppress(OSError):  # containers without /proc/net/dev
        networks = psutil.net_io_counters(pernic=True, nowrap=False)
        outside = [counts for name, counts in networks.items() if name != "lo"]
        row |= {"sent_bytes": sum(counts.bytes_sent for counts in outside)}
        row |= {"received_bytes": sum(counts.bytes_recv for counts in outside)}
    row |= client_bytes()
    with suppress(OSError, KeyError):  # containers without the file, or its line
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
        row["major_faults"] = dict(line.split() for line in lines)["pgmajfault"]
    return {f"host_{name}": float(value) for name, value in row.items()}


def memory_of(group: int, more: Sequence[int] = ()) -> float:
    """Sum of `anonymous_bytes` of a process group, but for its leader, which only waits, and of `more` processes."""
    return float(sum(map(anonymous_bytes, {*more, *({*group_members(group)} - {group})})))


def rows_of_rank(processes: int, beside: Sequence[int]) -> list[dict[str, float]]:
    """Such a row as one of the run's `processes` on this host sees it, with their `anonymous_bytes`; `beside` as in `Sampler`.

    Empty where they are not of one group, since mpirun started each: then no single one sees them all.
    """
    group = os.getpgid(0)
    if len(list(group_members(group))) < processes:
        return []
    leader = os.getppid()
    # Its cores, not those that this process is bound to: rows of both are compared.
    row = cpu_row(group, leader, frozenset(os.sched_getaffinity(leader)), beside)
    return [row | {"anonymous_bytes": memory_of(group)}]


def _around(rows: Sequence[Mapping[str, float]], begin: float, end: float) -> dict[str, float]:
    """Growth of each column from the last sample before a stretch of time to the first one after it, as far as there are any.

    Without samples no time has passed.
    """
    if not rows:
        return {"clock_s": 0.0}
    widened_s = max(0.0, MIN_SPAN_S - (end - begin)) / 2
    first = next((row for row in reversed(rows) if row["clock_s"] <= begin - widened_s), rows[0])
    last = next((row for row in rows if row["clock_s"] >= end + widened_s), rows[-1])
    return {name: last[name] - first.get(name, math.nan) for name in last}


def foreign_share(rows: Sequence[Mapping[str, float]], begin: float, end: float) -> float | None:
    """Share of a host's cores that processes outside of the run took between two moments of `perf_counter`, 0 to 1.

    From the last sample before to the first sample after, which ranks take at the window's ends. Only cores count that the
    run may use. None where the samples are too near each other to know.
    """
    grown = _around(rows, begin, end)
    if grown["clock_s"] < MIN_SPAN_S:
        return None
    return min(1.0, max(0.0, (grown["busy_s"] - grown["cpu_s"]) / (grown["clock_s"] * rows[0]["cores"])))


def share_of_time(
    rows: Sequence[Mapping[str, float]], begin: float, end: float, column: str, over: str | None = None
) -> float | None:
    """Growth of a column of seconds between two moments of `perf_counter`, over that time, and over the column `over`; 0 to 1.

    From the last sample before to the first sample after; `rows` are a Sampler's, and those without the column do not count.
    None where the kernel does not say.
    """
    samples = [row for row in rows if not math.isnan(row.get(column, math.nan))]
    grown = _around(samples, begin, end)
    if grown["clock_s"] <= 0:
        return None
    return min(1.0, max(0.0, grown[column] / grown["clock_s"] / (1.0 if over is None else samples[0][over])))


def withheld_share(rows: Sequence[Mapping[str, float]], begin: float, end: float) -> float | None:
    """CPU time that a quota withheld between two moments of `perf_counter`, over what the run would have used, 0 to 1.

    From the last sample before to the first sample after; `rows` are a Sampler's. None where no quota is known.
    """
    grown = _around(rows, begin, end)
    withheld_s, used_s = (grown.get(name, math.nan) for name in ("quota_throttled_s", "cpu_s"))
    if math.isnan(withheld_s) or not withheld_s + used_s > 0:
        return None
    return withheld_s / (withheld_s + used_s)


@dataclass
class Sampler:
    """Samples a run's processes on one host from a thread, from its start to its stop.

    Each row has `time_s` since the start, `clock_s` (of `perf_counter`), `cpu_s` of this process, those of the group and
    all that they have waited for, `busy_s` and `throttled_s` of the `cores` that this process may use, CPU time that
    quotas withheld, anonymous bytes of the group but for its leader, which only waits, as they were last read, and bytes
    that the processes `pids` read from storage; of the whole host, `host_row`; and, of accelerators, the columns of `devices.py`.
    """

    pids: list[int]
    group: int
    """Process group of the run: `pids`, and worker processes of their loaders."""
    devices: Sequence[str | None] = ()
    """PCI addresses of the accelerators that the run uses on this host."""
    has_sessions: bool = False
    """Whether processes of the run leave the group for sessions of their own, as those of a user's launcher do."""
    beside: Sequence[int] = ()
    """Processes of the run outside of its group whose CPU time is its own: the switch of an emulated network."""
    rows: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="system-sampler", daemon=True)
        self._begin = time.perf_counter()
        self._cores = frozenset(os.sched_getaffinity(0))
        self._meter = DeviceMeter(self.devices)
        self._anonymous_bytes, self._memory_due = 0.0, self._begin

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample, and end. Where the processes have ended and were waited for, it has all of their CPU time."""
        self._stop.set()
        self._thread.join(timeout=5 * INTERVAL_S)

    @property
    def unmeasured(self) -> str:
        """Why accelerators were not measured; empty where they were, or the run uses none."""
        return self._meter.unmeasured

    def _sample(self) -> None:
        self.rows.append(self._row())
        while not self._stop.wait(INTERVAL_S):
            self.rows.append(self._row())
        self.rows.append(self._row())
        self._meter.close()

    def _row(self) -> dict[str, float]:
        sessions: list[int] = []  # processes that the run's have started, in whatever session
        read_bytes = 0.0
        for pid in self.pids:
            # AttributeError, RuntimeError: a kernel without /proc/<pid>/io, or without this field of it.
            with suppress(psutil.Error, OSError, AttributeError, RuntimeError):
                process = psutil.Process(pid)
                if self.has_sessions:
                    sessions += [child.pid for child in process.children(recursive=True)]
                read_bytes += process.io_counters().read_bytes
        row = cpu_row(self.group, os.getpid(), self._cores, [*sessions, *self.beside])
        if row["clock_s"] >= self._memory_due:
            begin = time.perf_counter()
            self._anonymous_bytes = memory_of(self.group, [*self.pids, *sessions])
            self._memory_due = begin + (time.perf_counter() - begin) / MEMORY_SHARE
        row |= {"time_s": row["clock_s"] - self._begin, "read_bytes": read_bytes,
                "anonymous_bytes": self._anonymous_bytes}  # fmt: skip
        return row | host_row() | self._meter.row()
