"""`python -m tests.soak.plan_hits`, as root: how often what the plan expects of a run holds.

On a private Slurm, for three machine files with another emulated accelerator each, 60 short runs are planned, then made: 18
expected from published step times, 24 from similar runs, 18 from a repeat. Nine runs of another kind come first, from which
the plan learns what a job takes beside its steps. What was expected is what the driver noted before it submitted each job;
what was used is what the job's script noted. Prints every run, hits of P5 to P95 by kind, and totals against P10 to P90.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalestudy.cluster.plan import spread
from tests.cluster.box import Box, Unavailable
from tests.cluster.slurm_box import SlurmBox
from tests.cluster.try_box import ALONE, MACHINE, command_of, copy_of_project
from tests.cluster.workflow import ROOT

WANTED, RUNS = 49, 60
"""At least so many of so many inside P5 to P95: intervals that hold nine times in ten reach that in 98 of 100 series."""
PROFILE = ("--profile", "profiles/slurm")
START_UP = """\
question: What does a job take outside its run?
base:
  model: small_cnn
  data: {source: digits}
  strategy: single
  batch: {per_rank: 32}
  optimiser: {learning_rate: 0.05}
  train: {epochs: 5}
  measure: {warmup_steps: 3, steps: 200}
vary: {ranks: [1]}
repeats: 3
tables:
  - {name: times, values: [throughput_samples_per_s]}
"""
STUDY = """\
question: How long does it take?
base:
  model: resnet50
  device: "emulated:ACCELERATOR"
  data: {source: synthetic, samples: 1281167, shape: [3, 64, 64], classes: 1000}
  loader: {workers: 0}
  ranks_per_node: 2
  batch: {per_rank: 32}
  optimiser: {learning_rate: 0.1}
  train: {epochs: 90}
  measure: {warmup_steps: 3, steps: STEPS}
vary:
  strategy: STRATEGIES
  ranks: [1, 2]
repeats: REPEATS
tables:
  - {name: times, values: [throughput_samples_per_s]}
"""


@dataclass(frozen=True)
class Accelerator:
    """An emulated accelerator: its name, and steps of its first runs, which then take 1 to 5 seconds."""

    name: str
    steps: int

    @property
    def machine(self) -> str:
        """Its machine file."""
        return f"hits_{self.name}"

    def studies(self) -> dict[str, str]:
        """By name, in the order in which they are made: `published`, `neighbours`, `repeats` is what they are expected
        from."""
        first = STUDY.replace("ACCELERATOR", self.name).replace("STEPS", str(self.steps))
        three, two = "[allreduce, halving_doubling, ring]", "[allreduce, ring]"
        longer = STUDY.replace("ACCELERATOR", self.name).replace("STEPS", str(2 * self.steps)).replace("REPEATS", "1")
        longer = longer.replace("STRATEGIES", f"{two}\n  measure.steps: [{2 * self.steps}, {3 * self.steps}]")
        return {
            f"start_up_{self.name}": START_UP,
            f"first_{self.name}": first.replace("STRATEGIES", three).replace("REPEATS", "1"),
            f"longer_{self.name}": longer,
            f"again_{self.name}": first.replace("STRATEGIES", three).replace("REPEATS", "2"),
        }


ACCELERATORS = (Accelerator("p100", 12), Accelerator("v100", 16), Accelerator("k80", 5))


def main() -> int:
    """Bring Slurm up, plan and run, take it down; exit status 1 where less holds than is wanted."""
    try:
        box = SlurmBox(ROOT)
    except Unavailable as why:
        print(f"no box: {why}", file=sys.stderr)
        return 2
    try:
        clone = copy_of_project(box)
        rows = [row for accelerator in ACCELERATORS for row in made(box, clone, accelerator)]
    finally:
        box.stop()
    return 0 if judged(rows) else 1


def made(box: Box, clone: Path, accelerator: Accelerator) -> list[dict[str, Any]]:
    """The runs of one machine file, made and compared with what was expected of them."""
    write(box, clone, accelerator)
    names = list(accelerator.studies())
    where = (*PROFILE, "--config", f"machine={accelerator.machine}", "scale=paper")
    for name in names:
        began = time.monotonic()
        run(box, clone, "snakemake", name, *where, f"studies={name}", *ALONE)
        load = os.getloadavg()[0]
        print(f"{accelerator.machine}: {name} made in {time.monotonic() - began:.0f} s, load {load:.1f}", flush=True)
    run(box, clone, "scalestudy", "plan", *where, f"studies={','.join(names)}", "--actual", "--json", "actual.json")
    rows: list[dict[str, Any]] = json.loads((clone / "actual.json").read_text())["runs"]
    early = planned_before(clone, accelerator.machine)
    for row in rows:
        result = json.loads((clone / "results" / accelerator.machine / "runs" / row["run"] / "result.json").read_text())
        row |= {
            "machine": accelerator.machine,
            "disturbed": bool(result.get("disturbed")),
            "early": row["run"] in early,
        }
    return rows


def planned_before(clone: Path, machine: str) -> set[str]:
    """The runs whose plan was noted before their job was submitted."""
    plans = [json.loads(line) for line in (clone / "results" / machine / "plans.jsonl").read_text().splitlines()]
    submitted = [json.loads(line) for line in (clone / ".scalestudy/jobs.jsonl").read_text().splitlines()]
    at = {line["job"].split()[-1]: line["time_s"] for line in submitted if line["event"] == "submitted"}
    # The plan's time is rounded to tenths of a second.
    return {plan["run"] for plan in plans if plan["time_s"] <= at.get(plan["run"], 0.0) + 0.1}


def write(box: Box, clone: Path, accelerator: Accelerator) -> None:
    """Its machine file and studies."""
    machine = (clone / "config/machines" / f"{MACHINE}.yaml").read_text()
    files = {clone / "config/machines" / f"{accelerator.machine}.yaml": machine}
    files |= {clone / "config/studies" / f"{name}.yaml": text for name, text in accelerator.studies().items()}
    owner = box.home.stat()
    for path, text in files.items():
        path.write_text(text)
        os.chown(path, owner.st_uid, owner.st_gid)


def run(box: Box, clone: Path, *words: str) -> None:
    """A command in the clone as the box's user; what it said is shown where it fails."""
    done = subprocess.run(
        command_of(box, clone, *words),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}")


def judged(rows: Sequence[dict[str, Any]]) -> bool:
    """Print what was expected and used; whether as much holds as is wanted."""
    known = [row for row in rows if row["high_s"] is not None]
    print(f"\n{'machine':10}  {'expected from':13}  {'P5':>6}  {'P95':>6}  {'used':>5}       run")
    for row in known:
        inside = "in" if hit(row) else "OUT"
        marks = ("  disturbed" if row["disturbed"] else "") + ("" if row["early"] else "  NOT PLANNED BEFORE")
        print(
            f"{row['machine']:10}  {row['kind']:13}  {row['low_s']:6.1f}  {row['high_s']:6.1f}  {row['used_s']:5.0f}  "
            f"{inside:3}  {row['run']}{marks}"
        )
    print()
    for kind, of_kind in groups(known, "kind"):
        hits = sum(map(hit, of_kind))
        print(f"expected from {kind}: {hits} of {len(of_kind)} inside P5 to P95 ({hits / len(of_kind):.0%})")
    hits = sum(map(hit, known))
    print(f"all: {hits} of {len(known)} inside P5 to P95; wanted: {WANTED} of {RUNS}")
    print(f"disturbed by other work on the machine: {sum(row['disturbed'] for row in known)} runs")
    print("\nGPU hours, of four fictional GPUs a node:")
    for machine, of_machine in groups(known, "machine"):
        for kind, of_kind in groups(of_machine, "kind"):
            print(total(f"{machine}, {kind}", of_kind)[0])
        print(total(f"{machine}, all", of_machine)[0])
    text, holds = total("total", known)
    print(text)
    early = all(row["early"] for row in known)
    well = len(known) >= RUNS and hits * RUNS >= WANTED * len(known) and holds and early
    print("well" if well else "NOT WELL")
    return well


def hit(row: dict[str, Any]) -> bool:
    """Whether a run took a time between the two ends."""
    return bool(row["low_s"] <= row["used_s"] <= row["high_s"])


def groups(rows: Sequence[dict[str, Any]], key: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Rows by a value, in the order of their first."""
    for value in dict.fromkeys(row[key] for row in rows):
        yield value, [row for row in rows if row[key] == value]


def total(name: str, rows: Sequence[dict[str, Any]]) -> tuple[str, bool]:
    """The sum beside its percentiles, drawn as the plan draws them, and whether it lies between P10 and P90."""
    gpus = np.array([row["gpus"] for row in rows], dtype=float)
    drawn = spread.drawn([(row["kind"], row["low_s"], row["high_s"]) for row in rows]) @ gpus / 3600
    low, middle, high = spread.percentiles(drawn)
    used = float(sum(row["used_s"] * row["gpus"] for row in rows)) / 3600
    inside = low <= used <= high
    said = "inside" if inside else "OUTSIDE"
    return f"{name}: {used:.4f} used, P10 {low:.4f}, P50 {middle:.4f}, P90 {high:.4f}: {said}", inside


if __name__ == "__main__":
    sys.exit(main())
