"""Does `scalestudy explain` name the cause that was put in, and its size? And no cause where there is none?

`python -m tests.soak.bottleneck` explains tests/stand_ins/slow_training.py for each of CASES, in a drawn order, prints
docs/measured/bottleneck.txt and draws docs/measured/bottleneck.svg. Answers are kept in build/bottleneck: called again, it
goes on where it was stopped. No threshold was set by its answers.

A case names the part that grew most against the mean of its workload's clean cases, where it grew by MIN_GROWTH of a clean
step, and by more than one further clean case would: beyond the 95 % prediction interval of the clean cases, over all parts
together. Else it names none. It is right if that is the part of its cause. A clean case is right if it names none.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.special import stdtrit
from scipy.stats import binomtest

ROOT = Path(__file__).resolve().parents[2]
ANSWERS, MEASURED = ROOT / "build/bottleneck", ROOT / "docs/measured"
SCRIPT = ROOT / "tests/stand_ins/slow_training.py"
MINUTES = 2.0
"""The default of `explain`."""
CLEAN, NONE = "", "none"
PARTS = ("loading", "exchange", "straggler", "between_steps", "rest")
CAUSES = {
    "slow item": "loading", "busy item": "loading", "slow collate": "loading", "late worker": "loading",
    "slow line": "rest", "larger model": "rest", "slow evaluation": "between_steps", "slow logging": "between_steps",
    "slow checkpoint": "between_steps", "slow rank": "straggler", "large table": "exchange", "many messages": "exchange",
}  # fmt: skip
"""Causes, and the part of a step that each of them is."""
MULTI_RANK_CAUSES = ("slow rank", "large table", "many messages")
TWO_RANK_CAUSES = tuple(name for name in CAUSES if name != "larger model")
"""A larger model is left out: it has more to exchange as well."""
UNKNOWN_SIZE = ("late worker", "larger model", "large table", "many messages")
"""What these take is not set but found: by how much the whole step grew. A late worker also hands its batches over."""
STRENGTHS = (0.3, 1.0)
"""Of a clean step."""
CLEAN_CASES = 10
"""For each workload."""
MIN_GROWTH = 0.1
SIZE_WITHIN = 0.2


@dataclass(frozen=True)
class Case:
    """A script of so many ranks, with a cause of a strength, or clean."""

    ranks: int
    cause: str
    strength: float
    number: int = 0

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.ranks}_{self.cause.replace(' ', '_') or 'clean'}_{self.strength:g}_{self.number}"

    @property
    def part(self) -> str:
        """The part that has to be named."""
        return CAUSES.get(self.cause, NONE)


def cases() -> Iterator[Case]:
    """Yield the clean cases first, since strengths are shares of their steps; then the others in a drawn order."""
    yield from (Case(ranks, CLEAN, 0.0, number) for number in range(CLEAN_CASES) for ranks in (1, 2))
    slow = [Case(1, cause, strength) for cause in CAUSES if cause not in MULTI_RANK_CAUSES for strength in STRENGTHS]
    slow += [Case(2, cause, strength) for cause in TWO_RANK_CAUSES for strength in STRENGTHS]
    random.Random(20261126).shuffle(slow)
    yield from slow


def explained(case: Case, step_s: float) -> dict[str, Any]:
    """What `scalestudy explain --json` says of a case, and `cause_s`, how long its cause took of each step.

    `step_s` is a clean step of its workload. A late worker costs what it takes longer than that.
    """
    file, hidden_s = ANSWERS / f"{case.name}.json", step_s if case.cause == "late worker" else 0.0
    if not file.exists():
        seconds = case.strength * step_s + hidden_s
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if case.ranks == 2 else []
        command = [sys.executable, *launcher, str(SCRIPT), "--cause", case.cause, "--seconds", f"{seconds:.6f}"]
        with tempfile.TemporaryDirectory() as folder:
            words = ["scalestudy", "explain", "--json", "--minutes", str(MINUTES), "--", *command, "--took", folder]
            done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
            assert done.returncode == 0, f"{case.name}: {done.stderr}"
            took = [tuple(map(float, one.read_text().split())) for one in Path(folder).iterdir()]
        # The median of processes: where explain tries more workers, an evaluation starts some as well.
        longer = statistics.median(one[0] / one[1] for one in took) if took else 1.0
        answer = json.loads(done.stdout) | {"cause_s": longer * seconds - hidden_s}
        file.write_text(json.dumps(answer), encoding="utf-8")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def parts_of(answer: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of each part of a step; 0 for those that were not seen."""
    found = {part["name"]: part["seconds"] for part in answer["parts"]}
    return {name: found.get(name, 0.0) for name in PARTS}


def named(growth: Mapping[str, float], clean: Sequence[Mapping[str, Any]], step_s: float) -> str:
    """The part that grew most, or none."""
    part = max(growth, key=lambda name: growth[name])
    return part if growth[part] >= MIN_GROWTH * step_s and growth[part] > reach_s(part, clean) else NONE


def reach_s(part: str, clean: Sequence[Mapping[str, Any]]) -> float:
    """By how much a part of one more clean case may exceed the mean of n of them: t s √(1 + 1/n), seconds.

    One-sided at 5 % for all parts together, by Bonferroni (Hahn and Meeker, Statistical Intervals, 1991).
    """
    values, n = [parts_of(one)[part] for one in clean], len(clean)
    return float(stdtrit(n - 1, 1 - 0.05 / len(PARTS))) * statistics.stdev(values) * math.sqrt(1 + 1 / n)


def growth_of(answer: Mapping[str, Any], clean: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By how much each part is longer than in the mean of clean cases, in seconds."""
    means = {name: statistics.fmean(parts_of(one)[name] for one in clean) for name in PARTS}
    return {name: seconds - means[name] for name, seconds in parts_of(answer).items()}


def share_text(count: int, of: int) -> str:
    """A share with its 95 % interval (Clopper and Pearson)."""
    interval = binomtest(count, of).proportion_ci()
    return f"{count} of {of} ({count / of:.2f} [{interval.low:.2f}, {interval.high:.2f}])"


def judge() -> dict[tuple[str, str], int]:
    """Explain all cases and print what was found; return how often each part was named for each cause."""
    begun, confusion, clean = time.monotonic(), dict[tuple[str, str], int](), dict[int, list[dict[str, Any]]]()
    right, sized, alarms = [], [], []
    print(f"{'ranks':5} {'cause':16} {'strength':>8}  {'step ms':>8}  {'named':14} {'grew ms':>8}  of ms")
    for case in cases():
        others = clean.get(case.ranks, [])
        step_s = statistics.fmean(one["step_s"] for one in others) if others else 0.0
        answer = explained(case, step_s)
        if case.cause == CLEAN:
            clean.setdefault(case.ranks, []).append(answer)
            continue
        growth = growth_of(answer, others)
        part, whole_s = named(growth, others, step_s), answer["step_s"] - step_s
        size_s = whole_s if case.cause in UNKNOWN_SIZE else answer["cause_s"]
        confusion[case.cause, part] = confusion.get((case.cause, part), 0) + 1
        right.append(part == case.part)
        sized.append(right[-1] and abs(growth[part] - size_s) <= SIZE_WITHIN * size_s)
        print(
            f"{case.ranks:5} {case.cause:16} {case.strength:8.0%}  {1e3 * answer['step_s']:8.1f}  {part:14} "
            f"{1e3 * max(growth.values()):8.1f}  {1e3 * size_s:.1f}{'' if right[-1] else '   WRONG: ' + case.part}",
            flush=True,
        )
    for ranks, answers in clean.items():
        for number, answer in enumerate(answers):
            others = answers[:number] + answers[number + 1 :]
            step_s = statistics.fmean(one["step_s"] for one in others)
            part = named(growth_of(answer, others), others, step_s)
            confusion[CLEAN, part] = confusion.get((CLEAN, part), 0) + 1
            alarms.append(part != NONE)
            print(f"{ranks:5} {'clean':16} {'':8}  {1e3 * answer['step_s']:8.1f}  {part}")
    print(f"\nthe right part: {share_text(sum(right), len(right))}")
    print(f"and its size within {SIZE_WITHIN:.0%}: {share_text(sum(sized), len(sized))}")
    print(f"clean, and a part named: {share_text(sum(alarms), len(alarms))}")
    print(f"{(time.monotonic() - begun) / 60:.0f} minutes, {MINUTES} minutes each", flush=True)
    return confusion


def draw(confusion: Mapping[tuple[str, str], int], file: Path) -> None:
    """The confusion matrix: causes down, named parts across; the right ones have a frame."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    rows, columns = [*CAUSES, CLEAN], [*PARTS, NONE]
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.add_subplot()
    counts = [[confusion.get((cause, part), 0) for part in columns] for cause in rows]
    axes.imshow(counts, cmap="Blues", aspect="auto", vmin=0)
    for y, cause in enumerate(rows):
        for x, part in enumerate(columns):
            shade = "white" if counts[y][x] > max(map(max, counts)) / 2 else "black"
            axes.text(x, y, str(counts[y][x] or ""), ha="center", va="center", color=shade)
            if part == CAUSES.get(cause, NONE):
                axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False))
    axes.set_xticks(range(len(columns)), [name.replace("_", "\n") for name in columns])
    axes.set_yticks(range(len(rows)), [name or "clean" for name in rows])
    axes.set_xlabel("Part that is longer than in clean runs, by explain")
    axes.set_ylabel("Cause that was put in")
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    ANSWERS.mkdir(parents=True, exist_ok=True)
    draw(judge(), MEASURED / "bottleneck.svg")
