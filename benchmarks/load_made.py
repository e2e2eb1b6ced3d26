"""Made results for `benchmarks/load.py`: files that pass every check of a result, with numbers that nobody measured.

python benchmarks/load_made.py MACHINE SCALE FIRST LAST    in a copy of the project: results of the runs FIRST to LAST - 1

Each result says that its numbers are made: in its warnings, and as its instrument. They go through the project's own
writers, so that digest and history are those of real ones.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from scalestudy.results.history import append_history
from scalestudy.results.stored import write_result
from scalestudy.spec.config import read_machine
from scalestudy.spec.layout import result_file
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.study import Run

MADE = "made numbers (benchmarks/load_made.py): nothing was measured"
EXCHANGES = {"allreduce": 1.0, "ring": 0.9, "halving_doubling": 0.95, "hierarchical": 0.92, "parameter_server": 0.6}
"""Share of the throughput that each strategy keeps from one rank to the next power of four."""
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
WALL_S = 60.0


def made_result(run: Run, machine: str, number: int) -> dict[str, Any]:
    """A valid result of a run, the `number`-th in the order of the study."""
    spec = run.spec
    digest = hashlib.sha256(run.id.encode()).digest()
    noise = 1 + 0.02 * (int.from_bytes(digest[:4], "big") / 2**32 - 0.5)
    share = EXCHANGES[spec.strategy.name] ** math.log(spec.ranks, 4)
    rate = 300.0 * spec.ranks * share * spec.rank_batch / (spec.rank_batch + 8) * noise
    step_s = spec.global_batch / rate
    begun = BEGIN + timedelta(seconds=WALL_S * number)
    return {
        "run": run.id,
        "machine": machine,
        "status": "valid",
        "reason": None,
        "unchecked": [],
        "spec": spec.plain(),
        "metrics": {
            "throughput_samples_per_s": rate, "step_time_s": step_s, "compute_s": step_s * share,
            "exchange_s": step_s * (1 - share), "epoch_time_s": 1_281_167 / rate, "training_time_s": 90 * 1_281_167 / rate,
            "time_to_train_s": 90 * 1_281_167 / rate, "loss": 2.0 * noise, "memory_mib": 900.0 * spec.ranks,
            "wall_s": WALL_S, "data_stall": 0.05 * noise, "foreign_cpu_share": 0.0,
        },
        "kinds": {"training_time_s": "extrapolated", "time_to_train_s": "extrapolated"},
        "intervals": {"training_time_s": [85 * 1_281_167 / rate, 96 * 1_281_167 / rate]},
        "emulated": False,
        "oversubscribed": False,
        "disturbed": False,
        "window_ended_by": "limit",
        "evaluations": [],
        "instrument": {"code": "made", "torch": "made", "python": "made", "cpu": MADE, "cores": 40, "device_name": "made"},
        "resolved": {"nodes": -(-spec.ranks // 4)},
        "warnings": [MADE],
        "started": begun.isoformat(),
        "ended": (begun + timedelta(seconds=WALL_S)).isoformat(),
    }  # fmt: skip


def main() -> None:
    """Write the results of some runs of every study here, as if each had just ended."""
    os.fsync = lambda _: None  # made results need not survive a crash, and thousands of them would take minutes
    machine, scale, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    for study in read_studies(None, scale, read_machine(machine), machine_name=machine):
        for number, run in list(enumerate(study.runs))[first:last]:
            file, result = result_file(machine, run.id), made_result(run, machine, number)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_result(file, result)
            append_history(file, result)


if __name__ == "__main__":
    main()
