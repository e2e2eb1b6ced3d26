"""Copies to node-local storage beside cp, rsync and a plain copy; small objects over HTTP beside curl and aria2c.

    python benchmarks/staging.py                      about 20 minutes on a quiet machine; docs/measured/staging.txt

All sides of a round copy the same files, warm (read once before), into folders of their own that are removed afterwards;
their order is another one in each round. Ratios are paired by round, with Student's 95 % interval; above 1: this project is
faster. The best of the others is the one of the lowest median, so that chance favours it a little. `sync`
makes each side end with a sync of its file system. The connections over HTTP are as many on all sides; the server is an
nginx on loopback. Needs cp and rsync; nginx, curl and aria2c for the second half: what is not there is said.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.ratios import ratio_of
from tests.unit.data import nginx

from scalestudy.data import disk
from scalestudy.data.pagecache import resident_bytes, warm
from scalestudy.data.stage.copying import Copier
from scalestudy.data.stage.file_set import FileSet
from scalestudy.data.stores import store_at

BLOCK_BYTES = 1 << 20
Copy = Callable[[Path], None]
"""Copies all files into a folder that is there and empty."""


@dataclass(frozen=True)
class Case:
    """Some files of one size."""

    count: int
    size: int

    def __str__(self) -> str:
        unit, word = (2**20, "MiB") if self.size >= 2**20 else (1000, "KB")
        return f"{self.count:,} x {self.size / unit:g} {word}"


LOCAL = (Case(1, 2**30), Case(64, 16 * 2**20), Case(4000, 100_000), Case(20_000, 5_000))
HTTP = (Case(3000, 5_000), Case(1000, 100_000))


def make(case: Case, folder: Path) -> list[str]:
    """The files, of random bytes; their names."""
    folder.mkdir()
    names = [f"{number:06d}" for number in range(case.count)]
    random_bytes = np.random.default_rng(0)
    for name in names:
        with open(folder / name, "wb") as stream:
            for begin in range(0, case.size, 16 * 2**20):
                stream.write(random_bytes.bytes(min(16 * 2**20, case.size - begin)))
    disk.sync(folder)
    return names


def digest_list(folder: Path, names: list[str]) -> np.ndarray:
    """XXH3 of each file."""
    return np.array([xxhash.xxh3_64_intdigest((folder / name).read_bytes()) for name in names], np.uint64)


def ours(origin: str, case: Case, names: list[str], checks: np.ndarray, streams: int) -> Copy:
    """This project, with the checksum of every file compared."""
    wanted = FileSet(names.__getitem__, np.full(case.count, case.size), checks, "xxh3_64")

    def run(folder: Path) -> None:
        store = store_at(origin, kept_open=False)
        Copier(store, wanted, folder, ()).copy(np.arange(case.count), streams)
        store.close()

    return run


def plain(origin: Path, names: list[str]) -> Copy:
    """Blocks of 1 MiB, one file after the other."""

    def run(folder: Path) -> None:
        buffer = memoryview(bytearray(BLOCK_BYTES))
        for name in names:
            with open(origin / name, "rb", buffering=0) as reading, open(folder / name, "wb", buffering=0) as writing:
                while count := reading.readinto(buffer):
                    writing.write(buffer[:count])

    return run


def command(*words: str) -> Copy:
    """A program; `{to}` stands for the folder."""

    def run(folder: Path) -> None:
        subprocess.run([word.replace("{to}", str(folder)) for word in words], check=True, stdout=subprocess.DEVNULL)

    return run


def curl(address: str, names: list[str], connections: int, work: Path) -> Copy:
    """curl --parallel with a file of addresses."""

    def run(folder: Path) -> None:
        listed = work / "curl.txt"
        listed.write_text("".join(f'url="{address}/{name}"\noutput="{folder}/{name}"\n' for name in names))
        words = ["curl", "--silent", "--show-error", "--no-progress-meter", "--parallel", "--parallel-max"]
        subprocess.run([*words, str(connections), "--config", str(listed)], check=True, stderr=subprocess.DEVNULL)

    return run


def aria2c(address: str, names: list[str], connections: int, work: Path) -> Copy:
    """aria2c with a file of addresses, as many downloads at once as connections."""

    def run(folder: Path) -> None:
        listed = work / "aria2c.txt"
        listed.write_text("".join(f"{address}/{name}\n" for name in names))
        options = ["-q", "-j", str(connections), "-x", "1", "--file-allocation=none", "-i", str(listed)]
        subprocess.run(["aria2c", *options, "-d", str(folder)], check=True, stdout=subprocess.DEVNULL)

    return run


def timed(
    sides: dict[str, Copy], origin: Path, names: list[str], work: Path, rounds: int, sync: bool
) -> dict[str, list[float]]:
    """Seconds of each round by side; what a side copied is looked at in its first round."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    files = [origin / name for name in names]
    for number in range(rounds):
        order = list(sides)
        random.Random(number).shuffle(order)
        for side in order:
            target = work / f"{side}.copy"
            target.mkdir()
            disk.sync(work)
            warm(files)
            begin = time.perf_counter()
            sides[side](target)
            if sync:
                disk.sync(work)
            seconds[side].append(time.perf_counter() - begin)
            if number == 0:
                for name in (names[0], names[len(names) // 2], names[-1]):
                    assert (target / name).read_bytes() == (origin / name).read_bytes(), (side, name)
                assert len(list(target.iterdir())) == len(names), side
            shutil.rmtree(target)
    return seconds


def report(title: str, case: Case, seconds: dict[str, list[float]], say: Callable[[str], None]) -> None:
    """A line per side, and the ratio to the best of the others."""
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    best = min((median, side) for side, median in medians.items() if side != "scalestudy")
    say(f"\n{title}: {case}, {case.count * case.size / 2**20:,.0f} MiB")
    for side, median in sorted(medians.items(), key=lambda item: item[1]):
        rate = case.count * case.size / 2**20 / median
        spread = f"({min(seconds[side]):.3f}..{max(seconds[side]):.3f})"
        say(f"  {side:12} {median:8.3f} s {spread:18} {rate:8,.0f} MiB/s {case.count / median:10,.0f} files/s")
    ratio = ratio_of([other / ours for other, ours in zip(seconds[best[1]], seconds["scalestudy"], strict=True)])
    say(f"  best other ({best[1]}) / scalestudy: {ratio.value:.2f} [{ratio.low:.2f} .. {ratio.high:.2f}]")


def local(case: Case, work: Path, rounds: int, streams: int, say: Callable[[str], None]) -> None:
    """From one folder to another of the same file system."""
    origin = work / "origin"
    names = make(case, origin)
    sides = {
        "scalestudy": ours(str(origin), case, names, digest_list(origin, names), streams),
        "plain": plain(origin, names),
    }
    for program, words in (
        ("cp", ("cp", "-r", f"{origin}/.", "{to}")),
        ("rsync", ("rsync", "-a", "-W", f"{origin}/", "{to}")),
    ):
        if shutil.which(program):
            sides[program] = command(*words)
        else:
            say(f"{program}: not installed")
    for sync in (False, True):
        seconds = timed(sides, origin, names, work, rounds, sync)
        report("local, with sync" if sync else "local, without sync", case, seconds, say)
    resident = resident_bytes([origin / name for name in names])
    say(f"  of the source {100 * (resident or 0) / (case.count * case.size):.0f} % in the page cache at the end")
    shutil.rmtree(origin)


def http(case: Case, work: Path, rounds: int, connections: int, say: Callable[[str], None]) -> None:
    """From an nginx on loopback."""
    origin = work / "origin"
    names = make(case, origin)
    checks = digest_list(origin, names)
    with nginx.serving(origin, work / "nginx", workers=1) as address:
        sides = {"scalestudy": ours(address, case, names, checks, connections)}
        if shutil.which("curl"):
            sides["curl"] = curl(address, names, connections, work)
        if shutil.which("aria2c"):
            sides["aria2c"] = aria2c(address, names, connections, work)
        if len(sides) == 1:
            say("neither curl nor aria2c is installed")
        else:
            report(f"http, {connections} connections", case, timed(sides, origin, names, work, rounds, False), say)
    shutil.rmtree(origin)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--streams", type=int, default=2, help="threads that copy locally")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--out", type=Path, default=Path("docs/measured/staging.txt"))
    options = parser.parse_args()
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    say(f"python benchmarks/staging.py, {now}; {len(os.sched_getaffinity(0))} cores, load {load} at the start")
    say(
        f"{options.rounds} rounds, alternated; medians (lowest..highest); {options.streams} threads of ours copy locally"
    )
    with tempfile.TemporaryDirectory(prefix="scalestudy-staging-") as name:
        for case in LOCAL:
            local(case, Path(name), options.rounds, options.streams, say)
        if nginx.program() is None:
            say("nginx: not installed")
        else:
            for case in HTTP:
                for connections in options.connections:
                    http(case, Path(name), options.rounds, connections, say)
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
