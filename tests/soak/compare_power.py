"""How often `scalestudy compare` cries wolf, and how small a slow-down it finds, on runs that were really measured.

    python -m tests.soak.compare_power record [--repeats 20] [--out tests/data/repeats_busy.json]
    python -m tests.soak.compare_power keep RESULTS --out FILE
    python -m tests.soak.compare_power judge [FILE...]

`record` measures five configurations round by round, through the pipeline, in a copy of the project (about ten minutes
on two cores with nothing else to do); `keep` takes what a folder of results holds. Both keep the throughput of every
run and what it was measured with. `judge` draws both sides of a comparison from the recorded runs, so that nothing
differs, and counts how often anything is called slower or faster; then it divides the speed of one configuration on one
side, and counts how often that is found. What is drawn are distances from the mean of a configuration's runs, of all
configurations of one kind together. pytest holds the false alarms to 5 % of 200 comparisons.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from scalestudy.analysis.comparison import judged
from scalestudy.files import write_json

DATA = Path(__file__).resolve().parents[1] / "data"
RECORDINGS = (DATA / "repeats_quiet.json", DATA / "repeats_busy.json")
CONFIGURATIONS = 5
"""Compared together in every drawn comparison."""
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
    from tests.integration.project import make_project

    with tempfile.TemporaryDirectory(prefix="scalestudy-repeats-") as folder:
        project = make_project(Path(folder) / "clone")
        project.study.write_text(STUDY.format(repeats=repeats, **INCLUDED))
        done = project.snakemake("tiny", timeout=7200)
        if done.returncode:
            raise SystemExit(done.stdout)
        keep(project.folder / "results/local", out, "python -m tests.soak.compare_power record")


def keep(results: Path, out: Path, made_by: str) -> None:
    """Write the throughput of the valid runs in a folder of results, by configuration."""
    from scalestudy.analysis.recorded import read_records

    records = read_records(str(results))
    configurations = {}
    for key, runs in records.by_configuration().items():
        values = [runs[repeat].metric("throughput_samples_per_s") for repeat in sorted(runs) if runs[repeat].is_valid]
        if len(values) > 1:
            configurations[f"{next(iter(runs.values())).run.rpartition('.r')[0]} {key}"] = values
    times = sorted(str(run.result["started"]) for run in records.runs)
    found: dict[str, Any] = {
        "made by": made_by,
        "what": "throughput, samples/s, of every valid repeat, in the order of measurement",
        "instrument": records.runs[0].result["instrument"],
        "started": times[0],
        "ended": times[-1],
        "throughput_samples_per_s": configurations,
    }
    write_json(out, found)


def recorded(file: Path) -> dict[str, list[float]]:
    """The logarithm of each run's speed, by configuration, in the order of measurement."""
    found = json.loads(file.read_text())["throughput_samples_per_s"]
    return {name: [math.log(value) for value in values] for name, values in found.items()}


def kind_of(name: str) -> str:
    """What of a run is real on this machine, by its configuration's name."""
    if ".on_" not in name:
        return "trained on the CPU"
    return "emulated compute, one rank" if ".x1 " in name else "emulated compute, real exchange"


def pools(runs: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """By kind, how far each run lies from the mean of its configuration, in logarithms."""
    found: dict[str, list[float]] = {}
    for name, logs in runs.items():
        mean = math.fsum(logs) / len(logs)
        # Distances from the mean of n values are too small by this.
        stretch = math.sqrt(len(logs) / (len(logs) - 1))
        found.setdefault(kind_of(name), []).extend(stretch * (value - mean) for value in logs)
    return found


def drawn(pool: Sequence[float], n: int, rng: random.Random) -> list[float]:
    """Log-ratios of `n` pairs of runs between which there is no difference."""
    return [after - before for before, after in zip(rng.choices(pool, k=n), rng.choices(pool, k=n), strict=True)]


def false_alarms(pool: Sequence[float], n: int, margin: float, comparisons: int = COMPARISONS) -> int:
    """In how many comparisons of the same with the same any configuration is called slower or faster."""
    rng = random.Random(f"{n} {margin}")
    count = 0
    for _ in range(comparisons):
        changes = judged([drawn(pool, n, rng) for _ in range(CONFIGURATIONS)], margin)
        count += any(change.verdict in ("slower", "faster") for change in changes)
    return count


def found_slower(pool: Sequence[float], slower: float, n: int, margin: float, comparisons: int = COMPARISONS) -> float:
    """The share of comparisons in which the one whose steps take `slower` more is called slower; the others are unchanged."""
    rng = random.Random(f"{slower} {n} {margin}")
    count = 0
    for _ in range(comparisons):
        ratios = [drawn(pool, n, rng) for _ in range(CONFIGURATIONS)]
        ratios[0] = [ratio - math.log1p(slower) for ratio in ratios[0]]
        count += judged(ratios, margin)[0].verdict == "slower"
    return count / comparisons


def neighbours(runs: Mapping[str, Sequence[float]], n: int, margin: float) -> tuple[int, int]:
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


def spread(pool: Sequence[float]) -> float:
    """Standard deviation of the distances: the relative spread of equal runs."""
    return math.sqrt(math.fsum(value**2 for value in pool) / len(pool))


def report(file: Path) -> Iterator[str]:
    """Everything that `judge` says of one recording."""
    facts, runs = json.loads(file.read_text()), recorded(file)
    cpu, cores = facts["instrument"]["cpu"], facts["instrument"]["cores"]
    yield f"{file.name}: {sum(map(len, runs.values()))} runs of {len(runs)} configurations on {cpu}, {cores} cores"
    yield f"made by {facts['made by']}, {facts['started']} to {facts['ended']}"
    heads = [f"n = {n}" for n in REPEATS]
    for kind, pool in pools(runs).items():
        yield f"\n{kind}: {len(pool)} runs, spread {spread(pool):.1%}"
        columns = ["A/A", *(f"+{slower:.0%}" for slower in SLOWER)]
        yield f"{'margin':>8}   " + "   ".join(f"{column:^23}" for column in columns)
        yield f"{'':8}   " + "   ".join(["".join(f"{head:>8}" for head in heads)] * len(columns))
        for margin in MARGINS:
            alarms = "".join(f"{false_alarms(pool, n, margin) / COMPARISONS:8.1%}" for n in REPEATS)
            found = ["".join(f"{found_slower(pool, slower, n, margin):8.0%}" for n in REPEATS) for slower in SLOWER]
            yield f"{margin:8.0%}   " + "   ".join([alarms, *found])
    blocks = {(n, margin): neighbours(runs, n, margin) for n in REPEATS for margin in MARGINS}
    said = [
        f"{alarms} of {count} (n = {n}, margin {margin:.0%})"
        for (n, margin), (count, alarms) in blocks.items()
        if count
    ]
    if said:
        yield "\nBlocks of n successive rounds as they were measured, false alarms of comparisons: " + ", ".join(said)


def main() -> None:
    """`record` or `judge`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("--repeats", type=int, default=20)
    recording.add_argument("--out", type=Path, default=RECORDINGS[1])
    keeping = verbs.add_parser("keep")
    keeping.add_argument("results", type=Path)
    keeping.add_argument("--out", type=Path, required=True)
    keeping.add_argument("--made-by", required=True)
    verbs.add_parser("judge").add_argument("files", type=Path, nargs="*", default=RECORDINGS)
    given = parser.parse_args()
    if given.verb == "record":
        record(given.repeats, given.out)
    elif given.verb == "keep":
        keep(given.results, given.out, given.made_by)
    else:
        head = f"Shares of {COMPARISONS} drawn comparisons of {CONFIGURATIONS} configurations. A/A: any is called slower or faster, and none is."
        print(head, "+3%, +5%, +10%: one configuration's steps take so much longer, and it is called slower.", sep="\n")
        for file in given.files:
            print("", *report(file), sep="\n")


if __name__ == "__main__":
    main()
