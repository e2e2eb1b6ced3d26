"""How often `scalestudy compare` cries wolf, and how small a slow-down it finds, on runs that were really measured.

    python -m tests.soak.compare_power record [--repeats 20] [--out tests/data/repeats.json]
    python -m tests.soak.compare_power judge [tests/data/repeats.json]

`record` measures five configurations round by round, through the pipeline, in a copy of the project (about ten minutes
on two cores with nothing else to do). It keeps the throughput of every run, what it was measured with, and the load.
`judge` draws both sides of a comparison from the recorded runs of the same configuration, so that nothing differs, and
counts how often anything is called slower or faster; then it divides the speed of one configuration on one side, and
counts how often that is found. pytest holds the first to 5 % of 200 comparisons.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from scalestudy.analysis.comparison import judged
from scalestudy.files import write_json

RECORDING = Path(__file__).resolve().parents[1] / "data" / "repeats.json"
COMPARISONS = 200
REPEATS = (3, 5, 10)
SLOWER = (0.03, 0.05, 0.10)
MARGINS = (0.0, 0.03)
STUDY = """\
question: How much do equal runs differ?
base:
  model: small_cnn
  data: {{source: digits}}
  batch: {{per_rank: 32}}
  optimiser: {{learning_rate: 0.05}}
  train: {{epochs: 15}}
  measure: {{warmup_steps: 20}}
exclude: [{{model: small_cnn}}]
vary: {{model: [small_cnn]}}
include:
  - {{strategy: single}}
  - {{strategy: allreduce, ranks: 2}}
  - {photos}
  - {pixels}
  - {exchange}
repeats: {repeats}
scales: {{mini: {{}}}}
"""
EMULATED = "model: resnet50, train.epochs: 90, measure.warmup_steps: 3, measure.steps: 12"
MADE = "{source: synthetic, samples: 1281167, shape: [3, 64, 64], classes: 1000}"
INCLUDED = {
    "photos": f"{{{EMULATED}, device: 'emulated:a100', strategy: single, loader.workers: 2, data: {{source: synthetic_jpeg, samples: 2000}}}}",
    "pixels": f"{{{EMULATED}, device: 'emulated:p100', strategy: single, data: {MADE}}}",
    "exchange": f"{{{EMULATED}, device: 'emulated:p100', strategy: allreduce, ranks: 2, data: {MADE}}}",
}


def record(repeats: int, out: Path) -> None:
    """Measure, and write the throughput of every run by configuration."""
    from scalestudy.analysis.recorded import read_records
    from tests.integration.project import make_project

    before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="scalestudy-repeats-") as folder:
        project = make_project(Path(folder) / "clone")
        project.study.write_text(STUDY.format(repeats=repeats, **INCLUDED))
        done = project.snakemake("tiny", timeout=7200)
        if done.returncode:
            raise SystemExit(done.stdout)
        records = read_records(str(project.folder / "results/local"))
    configurations: dict[str, list[float | None]] = {}
    for runs in records.by_configuration().values():
        name = runs[0].run.rpartition(".r")[0]
        configurations[name] = [
            runs[repeat].metric("throughput_samples_per_s") if runs[repeat].is_valid else None
            for repeat in sorted(runs)
        ]
    times = sorted(str(run.result["started"]) for run in records.runs)
    found: dict[str, Any] = {
        "made by": "python -m tests.soak.compare_power record",
        "what": "throughput, samples/s, of every repeat, in the order of measurement",
        "instrument": records.runs[0].result["instrument"],
        "started": times[0],
        "ended": times[-1],
        "load before and after": [round(load, 1) for load in (before[0], *os.getloadavg())],
        "throughput_samples_per_s": configurations,
    }
    write_json(out, found)


def recorded(file: Path = RECORDING) -> dict[str, list[float]]:
    """The logarithm of each run's speed, by configuration, in the order of measurement."""
    found = json.loads(file.read_text())["throughput_samples_per_s"]
    return {name: [math.log(value) for value in values if value is not None] for name, values in found.items()}


def drawn(logs: Sequence[float], n: int, rng: random.Random) -> list[float]:
    """Log-ratios of `n` pairs, all drawn from the same runs: what their spread makes of no difference."""
    # Residuals about the mean of n values are too small by this.
    stretch = math.sqrt(len(logs) / (len(logs) - 1))
    return [
        stretch * (after - before) for before, after in zip(rng.choices(logs, k=n), rng.choices(logs, k=n), strict=True)
    ]


def false_alarms(runs: dict[str, list[float]], n: int, margin: float, comparisons: int = COMPARISONS) -> int:
    """In how many comparisons of the same with the same any configuration is called slower or faster."""
    rng = random.Random(f"{n} {margin}")
    count = 0
    for _ in range(comparisons):
        verdicts = {change.verdict for change in judged([drawn(logs, n, rng) for logs in runs.values()], margin)}
        count += bool(verdicts & {"slower", "faster"})
    return count


def found_slower(
    runs: dict[str, list[float]], name: str, slower: float, n: int, margin: float, comparisons: int = COMPARISONS
) -> float:
    """The share of comparisons in which `name`, whose steps take `slower` more, is called slower, the others unchanged."""
    rng = random.Random(f"{name} {slower} {n} {margin}")
    place = list(runs).index(name)
    count = 0
    for _ in range(comparisons):
        ratios = [drawn(logs, n, rng) for logs in runs.values()]
        ratios[place] = [ratio - math.log1p(slower) for ratio in ratios[place]]
        count += judged(ratios, margin)[place].verdict == "slower"
    return count / comparisons


def neighbours(runs: dict[str, list[float]], n: int, margin: float) -> tuple[int, int]:
    """Comparisons of blocks of `n` successive rounds, drift and spells included: how many, and how many false alarms."""
    rounds = min(len(logs) for logs in runs.values())
    blocks = [slice(start, start + n) for start in range(0, rounds - n + 1, n)]
    count = alarms = 0
    for first, second in combinations(blocks, 2):
        ratios = [
            [after - before for before, after in zip(logs[first], logs[second], strict=True)] for logs in runs.values()
        ]
        verdicts = {change.verdict for change in judged(ratios, margin)}
        count, alarms = count + 1, alarms + bool(verdicts & {"slower", "faster"})
    return count, alarms


def spread(logs: Sequence[float]) -> float:
    """Standard deviation of the logarithms: the relative spread of equal runs."""
    mean = math.fsum(logs) / len(logs)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / (len(logs) - 1))


def report(file: Path) -> Iterator[str]:
    """Everything that `judge` says."""
    facts, runs = json.loads(file.read_text()), recorded(file)
    yield f"{file.name}: {sum(map(len, runs.values()))} runs of {len(runs)} configurations, {facts['started']} to {facts['ended']}"
    yield f"{facts['instrument']['cpu']}, {facts['instrument']['cores']} cores; load before, and 1, 5, 15 min at the end: {facts['load before and after']}"
    yield f"\nA/A: {COMPARISONS} comparisons of {len(runs)} configurations, both sides drawn from the same runs; false alarms"
    yield f"{'margin':>8} " + " ".join(f"{f'n = {n}':>12}" for n in REPEATS)
    for margin in MARGINS:
        alarms = [false_alarms(runs, n, margin) for n in REPEATS]
        yield f"{margin:8.0%} " + " ".join(f"{f'{count} ({count / COMPARISONS:.1%})':>12}" for count in alarms)
    yield "\nA/A: blocks of n successive rounds, as they were measured; false alarms of comparisons"
    for margin in MARGINS:
        blocks = [neighbours(runs, n, margin) for n in REPEATS]
        yield f"{margin:8.0%} " + " ".join(f"{f'{alarms} of {count}':>12}" for count, alarms in blocks)
    for margin in MARGINS:
        yield f"\nShare of {COMPARISONS} comparisons in which a configuration made slower is called slower, margin {margin:.0%}"
        yield f"{'':48} {'spread':>7}  " + "   ".join(
            f"{f'+{slower:.0%}, n = ' + '/'.join(map(str, REPEATS)):^20}" for slower in SLOWER
        )
        for name, logs in runs.items():
            shares = [[found_slower(runs, name, slower, n, margin) for n in REPEATS] for slower in SLOWER]
            cells = "   ".join(" ".join(f"{share:6.0%}" for share in row) for row in shares)
            yield f"{name:48} {spread(logs):7.1%}  {cells}"


def main() -> None:
    """`record` or `judge`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("--repeats", type=int, default=20)
    recording.add_argument("--out", type=Path, default=RECORDING)
    verbs.add_parser("judge").add_argument("file", type=Path, nargs="?", default=RECORDING)
    given = parser.parse_args()
    if given.verb == "record":
        record(given.repeats, given.out)
    else:
        print("\n".join(report(given.file)))


if __name__ == "__main__":
    main()
