"""Kills at random moments over the whole pipeline of both studies: `python -m tests.faults kills --count 20`.

A driver makes both studies in a new folder. At a random moment one of its processes, or itself, gets SIGKILL; then the
same command is given again, until everything is made, and then in another folder, until there were as many kills. At
every end, what all runs learned and the tables are compared with those of a folder without a kill, and no result may
have been written twice.

Calls add up: each finished folder is added to FILE.json of `--out`, from which FILE.txt is printed. Without `--count`,
a call goes on until there are 200 in all.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from scalestudy.files import write_json, write_text
from tests.faults.engine import ORPHANS_S
from tests.faults.steps import Outcome, trained
from tests.faults.world import DRIVER, Case, Running, World, new_project

LIMIT_S, LIMIT_TIMES = 300.0, 3.0
"""For one call of the driver: so long, or so many times what both studies take without a kill where that is longer."""
ASKED = 200
"""Kills in all."""


def options(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults kills", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--count", type=int, default=None, help=f"In this call; unset: what {ASKED} in all still lack.")
    parser.add_argument("--seed", type=int, default=0, help="With the number of kills so far it says which come next.")
    parser.add_argument("--minutes", type=float, default=None, help="Kill no more after that.")
    parser.add_argument("--within-s", type=float, default=None, help="Of the driver's life; unset: most of it.")
    parser.add_argument("--base", type=Path, default=None, help="A project whose studies are made.")
    parser.add_argument("--out", type=Path, default=Path("build/fault_kills.json"))
    return parser.parse_args(words)


def main(world: World, given: argparse.Namespace) -> int:
    """All kills of this call; status 1 where an ending differs, something hangs, or a run was made twice."""
    kept = _kept(given.out)
    before = _made(kept)
    count = max(0, ASKED - before) if given.count is None else given.count
    random.seed(f"{given.seed} {before}")
    within_s = given.within_s or 0.7 * world.seconds
    end = None if given.minutes is None else time.monotonic() + 60 * given.minutes
    wanted, rounds, wrong = endings(world.base), 0, 0
    part: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "within_s": round(within_s), "folders": []}
    print(f"{before} of {ASKED} kills so far; a kill within {within_s:.0f} s of each driver's life", flush=True)
    while (made := _made({"parts": [part]})) < count and (end is None or time.monotonic() < end):
        this = Round(world, rounds, within_s)
        rounds += 1
        complaints = this.make(count - made, end) + this.compared(wanted)
        this.case.end_all()
        wrong += len(complaints)
        part["folders"].append({"kills": this.kills, "complaints": complaints})
        _keep(given.out, kept, part)
        print(f"folder {rounds}: finished after {len(this.kills)} kills, {len(complaints)} complaints", flush=True)
    print(summary({**kept, "parts": [*kept["parts"], part]}))
    return 1 if wrong else 0


def _kept(file: Path) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"parts": []}
    return kept


def _keep(file: Path, kept: dict[str, Any], part: dict[str, Any]) -> None:
    """Keep what earlier calls saw and this one has seen so far, and print it beside."""
    whole = {**kept, "parts": [*kept["parts"], part]}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, whole)
    write_text(file.with_suffix(".txt"), text(whole))


def _made(kept: dict[str, Any]) -> int:
    return sum(len(folder["kills"]) for part in kept["parts"] for folder in part["folders"])


def summary(kept: dict[str, Any]) -> str:
    """All calls in one line."""
    folders = [folder for part in kept["parts"] for folder in part["folders"]]
    wrong = [complaint for folder in folders for complaint in folder["complaints"]]
    said = "; ".join(wrong) or "all endings the same, no run made twice"
    calls = len(kept["parts"])
    where = f"{len(folders)} folders and {calls} call{'s' * (calls != 1)}"
    return f"{_made(kept)} of {ASKED} kills in {where}: {said}"


def text(kept: dict[str, Any]) -> str:
    """Every call, folder and kill."""
    lines = [summary(kept)]
    for part in kept["parts"]:
        lines += ["", f"{part['date']}; a kill within {part['within_s']} s of each driver's life"]
        for number, folder in enumerate(part["folders"], 1):
            lines += [f"  kill {count:3}: {kill}" for count, kill in enumerate(folder["kills"], 1)]
            said = "; ".join(folder["complaints"]) or "no complaint"
            lines.append(f"folder {number}: finished after {len(folder['kills'])} kills, {said}")
        lines += [part["note"]] if "note" in part else []
    return "\n".join(lines) + "\n"


class Round:
    """One folder, from nothing to everything."""

    def __init__(self, world: World, number: int, within_s: float) -> None:
        folder, control = world.folder / f"kills{number}", world.folder / f"kills{number}.control"
        new_project(folder)
        control.mkdir()
        self.case = Case(world, folder, control)
        self.kills: list[str] = []
        self.within_s = within_s
        self._results: dict[str, str] = {}

    def make(self, kills: int, end: float | None) -> list[str]:
        """Until everything is there, with so many kills at most; complaints."""
        wrong: list[str] = []
        while not wrong:
            running = self.case.start([*DRIVER, "all"])
            last = len(self.kills) >= kills or (end is not None and time.monotonic() > end)
            victim = None if last else self._kill(running)
            if not running.ended(max(LIMIT_S, LIMIT_TIMES * self.case.world.seconds)):
                wrong.append(f"a driver hung: {running.said[-300:]}")
            elif victim is None and running.process.returncode != 0:
                wrong.append(f"a driver that was not disturbed failed: {running.said[-800:]}")
            wrong += self._left() + self._twice()
            if victim is None:
                break
            self.kills.append(f"{victim}, {len(self._results)} results")
            print(f"  kill {len(self.kills):3}: {self.kills[-1]}", flush=True)
        return wrong

    def _kill(self, running: Running) -> str | None:
        """SIGKILL at a random moment; returns what was killed, None where everything had ended before."""
        if running.ended(random.uniform(0.5, self.within_s)):
            return None
        while not running.ended(0):
            with suppress(psutil.Error, IndexError):  # it has ended, or nothing was begun yet
                victims = self.case.processes()
                victim = random.choice(victims)
                what = "the driver" if victim.pid == running.process.pid else _called(victim)
                victim.kill()
                return f"{what}, one of {len(victims)} processes"
        return None

    def _left(self) -> list[str]:
        end = time.monotonic() + ORPHANS_S
        while (left := self.case.processes()) and time.monotonic() < end:
            time.sleep(0.1)
        return [f"processes are left: {[process.name() for process in left]}"] if left else []

    def _twice(self) -> list[str]:
        """Results whose content is not what it was before: when a run was made stands in it."""
        wrong = []
        for result in self.case.folder.glob("results/local/runs/*/result.json"):
            run, now = result.parent.name, result.read_text(encoding="utf-8")
            if self._results.setdefault(run, now) != now:
                wrong.append(f"{run} was made twice")
        return wrong

    def compared(self, wanted: Outcome) -> list[str]:
        """What at the end is not as without a kill."""
        found = endings(self.case.folder)
        wrong = [
            f"{name} {'differs' if name in found else 'is missing'}"
            for name in sorted(wanted.keys() | found.keys())
            if wanted.get(name) != found.get(name)
        ]
        history = self.case.folder / "results/local/history.jsonl"
        runs = Counter(json.loads(line)["run"] for line in history.read_text().splitlines())
        return wrong + [f"{run} is {count} times in the history" for run, count in runs.items() if count > 1]


def endings(folder: Path) -> Outcome:
    """What all runs learned, and the tables of both studies."""
    found: Outcome = {}
    for run in sorted(folder.glob("results/local/runs/*")):
        found |= {f"{run.name}: {name}": digest for name, digest in trained(run).items()}
    for table in sorted(folder.glob("results/local/mini/tables/*/ends.csv")):
        found[str(table.relative_to(folder))] = _without_load(table)
    return found


def _without_load(table: Path) -> str:
    """A table without the columns that say how many runs were disturbed by other work on the machine."""
    rows = pd.read_csv(table, dtype=str)
    return rows[[column for column in rows.columns if not column.endswith("_disturbed")]].to_csv(index=False)


def _called(process: psutil.Process) -> str:
    """What a process is, by its command line."""
    words = process.cmdline()
    verbs = [word for word in words if word in ("prepare", "train", "summarise", "figure", "table", "judge", "report")]
    if "scalestudy.commands.warm" in words:
        return "a process of a run"
    return f"scalestudy {verbs[0]}" if verbs else process.name()
