"""Time and memory of each step over the number of runs of one study, and of a figure over the files of a results folder.

python benchmarks/load.py runs [100 1000 10000]    every step, in a process of its own, on made results; with --step some
                                                   of them: --step "dry run" --step table
python benchmarks/load.py files [100000]           one figure rebuilt in a small folder and beside so many files
python benchmarks/load.py write                    docs/measured/load.txt and load.svg from what was measured

What is measured is kept in docs/measured/load.json, a step of a size in the place of an earlier measurement of it. The
processor's time is given beside wall time: it says what a step costs on a machine that others use too, and the load says
how much they did. Results are made by benchmarks/load_made.py, and say so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "docs/measured/load.json"
MACHINE, SCALE, NAME = "flow_type2", "paper", "large"
STUDY = """\
question: How many runs may a study have?
base:
  model: resnet50
  data: {{source: image_folder}}
  train: {{epochs: 90}}
  measure: {{warmup_steps: 20, steps: 200}}
vary:
  strategy: [allreduce, ring, halving_doubling, hierarchical, parameter_server]
  ranks: [1, 4, 16, 64]
  batch.per_rank: {batches}
repeats: 5
figures:
  - {{kind: lines, name: batches, x: batch.per_rank, y: throughput_samples_per_s, panel: ranks}}
  - {{kind: throughput_over_ranks, name: throughput, where: {{batch.per_rank: 4}}}}
tables:
  - {{name: rates, values: [throughput_samples_per_s, training_time_s, efficiency]}}
claims:
  - id: ring_is_slower
    statement: A ring is slower than an all-reduce that overlaps, at every batch; the numbers are made.
    source: nobody
    place: nowhere
    kind: direction
    column: throughput_samples_per_s
    where: {{ranks: 16}}
    of: {{strategy: ring}}
    against: {{strategy: allreduce}}
    each: batch.per_rank
    below: 1
    margin_reason: none is needed for numbers that are made
"""
PER_BATCH = 100
"""Runs of one value of the batch: five strategies, four numbers of ranks, five repeats."""
EXPAND = (
    "from scalestudy.spec.config import read_machine; from scalestudy.spec.read_study import read_studies; "
    f"read_studies(['{NAME}'], '{SCALE}', read_machine('{MACHINE}'), machine_name='{MACHINE}')"
)
PROFILE = ("--profile", "profiles/pbs")
CONFIG = ("--config", f"scale={SCALE}")
DRY = ("snakemake", *PROFILE, "--jobs", "1000000", *CONFIG, "-n", "--quiet", "all")
OF_STUDY = ("--machine", MACHINE, "--scale", SCALE, "--study", NAME)
BEFORE: Mapping[str, Sequence[str]] = {
    "expand": (sys.executable, "-c", EXPAND),
    "plan": ("scalestudy", "plan", *PROFILE, *CONFIG),
    "dry run": DRY,
}
"""Steps of a study of which nothing is made."""
HALF: Mapping[str, Sequence[str]] = {"plan, half made": ("scalestudy", "plan", *PROFILE, *CONFIG)}
AFTER: Mapping[str, Sequence[str]] = {
    "summarise": ("scalestudy", "summarise", *OF_STUDY),
    "claims": ("scalestudy", "judge", *OF_STUDY),
    "figure of all runs": ("scalestudy", "figure", *OF_STUDY, "--name", "batches"),
    "figure of 100 runs": ("scalestudy", "figure", *OF_STUDY, "--name", "throughput"),
    "table": ("scalestudy", "table", *OF_STUDY, "--name", "rates"),
    "report": ("scalestudy", "report", "--machine", MACHINE, "--scale", SCALE, "--studies", NAME, "--out", "report.html"),
    "dry run, all made": DRY,
}  # fmt: skip
STEPS = (*BEFORE, *HALF, *AFTER)
GROUPS = {
    "Before any run": ("expand", "plan", "dry run"),
    "With results": ("plan, half made", "dry run, all made", "summarise", "claims"),
    "Drawn from them": ("table", "figure of 100 runs", "figure of all runs", "report"),
}
"""Panels of the drawing."""
LINEAR = 1.1
"""An exponent above this is worse than linear, for times of single measurements."""
FILES_PER_RUN = 10
PAIRS = 5
SIZES = ("small", "large")
LOAD = "load average of the machine, of which about 1 is the measurement's own:"
FIGURE = f"results/{MACHINE}/{SCALE}/figures/{NAME}/throughput.svg"
REBUILD = ("snakemake", "--profile", "profiles/local", FIGURE, "--config", f"machine={MACHINE}", f"scale={SCALE}")
MOST_SLOWER = 1.2

Cell = dict[str, Any]


def project(folder: Path, runs: int) -> None:
    """A copy of the project with one study of so many runs."""
    for name in ("Snakefile", "workflow", "profiles", "envs", "config"):
        source = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "studies")
        shutil.copytree(source, folder / name, ignore=ignore) if source.is_dir() else shutil.copy(source, folder / name)
    (folder / "config/studies").mkdir()
    batches = [4 * number for number in range(1, max(1, runs // PER_BATCH) + 1)]
    (folder / f"config/studies/{NAME}.yaml").write_text(STUDY.format(batches=batches))


def measured(folder: Path, command: Sequence[str]) -> tuple[float, float, float]:
    """Wall seconds, seconds of the processor and MiB of the largest process of a command that ends well."""
    log = folder / "load.log"
    begin = time.perf_counter()
    with open(log, "wb") as said:
        process = subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: status {process.returncode}\n{log.read_text()[-3000:]}")
    return wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def environment(folder: Path) -> dict[str, str]:
    """Locks of its own, so that no step waits for runs that others measure on this machine."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (folder / "locks").mkdir(exist_ok=True)
    return {
        **os.environ,
        "PYTHONPATH": str(folder / "workflow"),
        "PATH": path,
        "SCALESTUDY_LOCKS": str(folder / "locks"),
    }


def make(folder: Path, first: int, last: int) -> None:
    """Made results of the runs FIRST to LAST - 1."""
    made = ROOT / "benchmarks/load_made.py"
    measured(folder, [sys.executable, str(made), MACHINE, SCALE, str(first), str(last)])


def steps(runs: int, chosen: Sequence[str]) -> Iterator[Cell]:
    """What each chosen step takes, as it ends; the summary too where a step needs it."""
    wanted = {*chosen, "summarise"} if {*chosen} & AFTER.keys() else {*chosen}
    with tempfile.TemporaryDirectory(prefix="scalestudy-load-") as name:
        folder, there = Path(name), 0
        project(folder, runs)
        for kind, needed in ((BEFORE, 0), (HALF, runs // 2), (AFTER, runs)):
            now = {step: command for step, command in kind.items() if step in wanted}
            if now and needed > there:
                make(folder, there, needed)
                there = needed
            for step, command in now.items():
                load = os.getloadavg()[0]
                wall_s, cpu_s, memory_mib = measured(folder, command)
                cell = {"wall_s": round(wall_s, 2), "cpu_s": round(cpu_s, 2), "memory_mib": round(memory_mib)}
                yield {"runs": runs, "step": step, **cell, "load": round(load, 1)}


def rebuilt(files: int) -> Cell:
    """Seconds in which Snakemake makes one deleted figure of 100 runs again, in turns in a small and in a large folder."""
    with tempfile.TemporaryDirectory(prefix="scalestudy-load-") as name:
        small, large = Path(name) / "small", Path(name) / "large"
        for folder in (small, large):
            folder.mkdir()
            project(folder, PER_BATCH)
            make(folder, 0, PER_BATCH)
        for number in range(files // FILES_PER_RUN):
            run = large / f"results/{MACHINE}/runs/other.r0-{number:012x}"
            (run / "log").mkdir(parents=True)
            for part in range(FILES_PER_RUN):
                (run / f"log/{part}").write_text("a file of another run\n")
        found: Cell = {"loads": [], **{f"{size}_{kind}_s": [] for size in SIZES for kind in ("wall", "cpu")}}
        for turn in range(PAIRS + 1):
            found["loads"].append(round(os.getloadavg()[0], 1))
            for folder in (small, large):
                (folder / FIGURE).unlink(missing_ok=True)
                wall_s, cpu_s, _ = measured(folder, REBUILD)
                if turn:  # the first makes the summary too
                    found[f"{folder.name}_wall_s"].append(round(wall_s, 2))
                    found[f"{folder.name}_cpu_s"].append(round(cpu_s, 2))
        return {"files": sum(len(names) for _, _, names in os.walk(large / "results")), **found}


# What was measured, in words and drawn


def exponent(cells: Mapping[tuple[int, str], Cell], step: str, column: str, sizes: tuple[int, int]) -> float:
    """The power of the number of runs with which a column grows from the one size to the other."""
    low, high = (cells[size, step][column] for size in sizes)
    return math.log(high / low) / math.log(sizes[1] / sizes[0])


def text(kept: Mapping[str, Any]) -> str:
    """The table, and how the largest sizes compare."""
    cells = {(cell["runs"], cell["step"]): cell for cell in kept["cells"]}
    sizes = sorted({size for size, _ in cells})
    head = "".join(f"{f'{size:,} runs':>27}" for size in sizes)
    units = f"{'wall s':>8}{'CPU s':>9}{'MiB':>10}" * len(sizes)
    loads = [cell["load"] for cell in kept["cells"] if "load" in cell]
    shared = f"; {LOAD} {_span(loads)}" if loads else ""
    lines = [
        f"# {kept['machine']}; one measurement of each{shared}",
        f"{'':20}{head}    exponent",
        f"{'':20}{units}     CPU  MiB",
    ]
    worse = []
    for step in STEPS:
        row = f"{step:20}"
        for size in sizes:
            if (size, step) not in cells:
                row += f"{'not measured':>27}"
                continue
            cell = cells[size, step]
            row += f"{cell['wall_s']:8,.1f}{cell['cpu_s']:9,.1f}{cell['memory_mib']:10,.0f}"
        there = [size for size in sizes if (size, step) in cells]
        if len(there) > 1:
            ends = (there[-2], there[-1])
            powers = [exponent(cells, step, column, ends) for column in ("cpu_s", "memory_mib")]
            row += f"    {powers[0]:4.2f} {powers[1]:4.2f}"
            worse += [step] if max(powers) > LINEAR else []
        lines.append(row)
    if len(sizes) > 1:
        said = ", ".join(worse) or "none"
        lines += [
            "",
            f"Between the two largest sizes measured, worse than linear (an exponent above {LINEAR}): {said}",
        ]
    if found := kept.get("files"):
        lines += ["", f"One figure rebuilt by Snakemake, in turns in a small folder and beside {found['files']:,} files;"
                      f" {LOAD} {_span(found['loads'])}"]  # fmt: skip
        for kind, name in (("cpu", "CPU"), ("wall", "wall")):
            times = [found[f"{size}_{kind}_s"] for size in SIZES]
            small, large = (statistics.median(each) for each in times)
            verdict = "holds" if large <= MOST_SLOWER * small else "MISSED"
            lines.append(f"{name:4} s: {_listed(times[0])} and {_listed(times[1])}; medians {small:.2f} and {large:.2f}: "
                         f"{large / small:.3f} times, at most {MOST_SLOWER}: {verdict}")  # fmt: skip
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _span(loads: Sequence[float]) -> str:
    return f"{min(loads):.1f} to {max(loads):.1f}"


def _listed(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def draw(kept: Mapping[str, Any], file: Path) -> None:
    """Time and memory over the number of runs, in the look of the project's figures."""
    from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
    from scalestudy.figures.render import render
    from scalestudy.figures.style import styled, svg_bytes

    sizes = sorted({cell["runs"] for cell in kept["cells"]})
    panels = []
    for column, label, unit in (("cpu_s", "CPU time", "s"), ("memory_mib", "Peak memory", "MiB")):
        values = [cell[column] for cell in kept["cells"]]
        limits = min(values) / 1.5, max(values) * 1.5
        axes = (Axis("Runs in the study", log=True, ticks=tuple(float(size) for size in sizes)),
                Axis(label, unit, log=True, limits=limits))  # fmt: skip
        for title, names in GROUPS.items():
            lines = []
            for step in names:
                points = [Point(cell["runs"], cell[column]) for cell in kept["cells"] if cell["step"] == step]
                if points:
                    ordered = tuple(sorted(points, key=lambda point: point.x))
                    lines.append(Line(step, ordered, style=STEPS.index(step)))
            start = max(line.points[0].y for line in lines)  # what grows faster ends above it
            end = min(sizes[-1], sizes[0] * limits[1] / start)
            guide = Line("linear", (Point(sizes[0], start), Point(end, start * end / sizes[0])), "ideal")
            panels.append(Panel(title, *axes, (guide, *lines)))
    notes = ("One measurement of each step, in a process of its own; the results that are read are made numbers",)
    with styled():
        file.write_bytes(
            svg_bytes(render(Chart("Time and memory over the number of runs of a study", tuple(panels), notes)))
        )


def read() -> dict[str, Any]:
    """What was measured so far."""
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {"cells": []}
    return kept


def keep(kept: Mapping[str, Any]) -> None:
    """Keep it, with what it was measured on."""
    machine = f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Python {platform.python_version()}"
    KEPT.write_text(json.dumps({**kept, "machine": machine}, indent=1) + "\n")


def main() -> None:
    """Measure, or write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("runs", "files", "write"), nargs="?", default="runs")
    parser.add_argument("sizes", type=int, nargs="*", help="numbers of runs, or of files")
    parser.add_argument("--step", action="append", choices=STEPS, help="one of them alone; may be given several times")
    given = parser.parse_args()
    if given.what == "runs":
        for runs in given.sizes or [100, 1000, 10_000]:
            measure(runs, given.step or STEPS)
    elif given.what == "files":
        keep({**read(), "files": rebuilt(given.sizes[0] if given.sizes else 100_000)})
    else:
        kept = read()
        KEPT.with_suffix(".txt").write_text(text(kept))
        draw(kept, KEPT.with_suffix(".svg"))
        print(text(kept), end="")


def measure(runs: int, chosen: Sequence[str]) -> None:
    """Some steps of a study of so many runs, a line each, and kept as they end."""
    for cell in steps(runs, chosen):
        print(f"{cell['runs']:>7,} {cell['step']:20} {cell['wall_s']:8.1f} s wall {cell['cpu_s']:8.1f} s CPU "
              f"{cell['memory_mib']:7,} MiB", flush=True)  # fmt: skip
        kept = read()
        others = [one for one in kept["cells"] if (one["runs"], one["step"]) != (cell["runs"], cell["step"])]
        keep({**kept, "cells": [*others, cell]})


if __name__ == "__main__":
    main()
