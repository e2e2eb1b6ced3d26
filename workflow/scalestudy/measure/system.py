"""What a run's processes take from the machine, sampled once a second while they run."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

INTERVAL_S = 1.0


def anonymous_bytes(pid: int) -> int:
    """Anonymous memory of a process, shared pages in proportion (Pss_Anon + Pss_Shmem), bytes; 0 when it is gone."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    values = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    return (values.get("Pss_Anon", 0) + values.get("Pss_Shmem", 0)) * 1024


@dataclass
class Sampler:
    """Samples processes from a thread: seconds, CPU seconds, anonymous bytes, bytes read from storage."""

    pids: list[int]
    rows: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="system-sampler", daemon=True)
        self._begin = time.perf_counter()

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """End; nothing is sampled any more after one more interval at most."""
        self._stop.set()
        self._thread.join(timeout=5 * INTERVAL_S)

    def _sample(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            row = {"time_s": time.perf_counter() - self._begin, "cpu_s": 0.0, "anonymous_bytes": 0.0, "read_bytes": 0.0}
            for pid in self.pids:
                try:
                    process = psutil.Process(pid)
                    times = process.cpu_times()
                    row["cpu_s"] += times.user + times.system
                    row["anonymous_bytes"] += anonymous_bytes(pid)
                    row["read_bytes"] += process.io_counters().read_bytes
                except (psutil.Error, OSError):
                    continue
            row["machine_cpu_percent"] = psutil.cpu_percent()
            self.rows.append(row)
