"""A million small images, indexed where they lie and packed into shards, with kills: time, memory, what was left.

    python -m tests.soak.prepare_million [FILES]

Takes about 8 GB in the folder for temporary files (TMPDIR) for a million files.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from scalestudy.data.manifest import read_manifest

PER_CLASS = 1000
HELD_OUT = 10
"""Classes of which one image is held out."""
PATTERNS = 64
"""Distinct images; each file has besides its number behind the end of the image, so that no two are equal."""
KILLS, MIB = 4, 16
POLL_S = 0.25


def make_files(root: Path, count: int, per_class: int = PER_CLASS) -> int:
    """`count` JPEG files of about 1 KB in folders of classes; returns their bytes."""
    patterns, size = [], 0
    for number in range(PATTERNS):
        stream = io.BytesIO()
        pixels = np.random.default_rng(number).integers(0, 256, (12, 12, 3), np.uint8)
        Image.fromarray(pixels).resize((32, 32)).save(stream, "JPEG", quality=80)
        patterns.append(stream.getvalue())
    for label in range(-(-count // per_class)):
        folder = root / "train" / f"class_{label:05d}"
        folder.mkdir(parents=True)
        for number in range(label * per_class, min(count, (label + 1) * per_class)):
            data = patterns[number % PATTERNS] + b"%012d" % number
            (folder / f"{number:09d}.jpg").write_bytes(data)
            size += len(data)
    for label in range(min(HELD_OUT, -(-count // per_class))):
        (root / "val" / f"class_{label:05d}").mkdir(parents=True)
        (root / "val" / f"class_{label:05d}" / "held_out.jpg").write_bytes(patterns[label])
    return size


@dataclass
class Run:
    """What one `scalestudy prepare` took."""

    status: int
    seconds: float
    cpu_s: float
    anonymous_mib: float
    """Largest anonymous memory seen, sampled."""


def prepare(out: Path, spec: dict[str, object], kill_when: Callable[[], bool] = lambda: False) -> Run:
    """Run it as a process of its own, watched; SIGKILL as soon as `kill_when` says so."""
    command = [sys.executable, "-c", "from scalestudy.cli import main; main()", "prepare", "--spec", json.dumps(spec)]
    started, peak = time.monotonic(), 0.0
    with open(out.with_suffix(".log"), "a") as log:
        process = subprocess.Popen([*command, "--out", str(out / "manifest.json")], stdout=log, stderr=log)
    while True:
        found, status, usage = os.wait4(process.pid, os.WNOHANG)
        if found:
            break
        peak = max(peak, anonymous_mib(process.pid))
        if kill_when():
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(POLL_S)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Run(process.returncode, time.monotonic() - started, usage.ru_utime + usage.ru_stime, peak)


def anonymous_mib(process: int) -> float:
    """Anonymous memory of a process now, MiB; 0 where it has just ended."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/smaps_rollup") as stream:
        return sum(int(line.split()[1]) for line in stream if line.startswith("Anonymous:")) / 1024
    return 0.0


def without_data(folder: Path) -> Run:
    """Prepare eight images of two classes: the memory that this takes is that of the imports."""
    root = folder / "eight"
    make_files(root, 8, per_class=4)
    return prepare(folder / "small", {"source": "image_folder", "root": str(root)})


def tars(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of each shard, by name."""
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in folder.glob("*.tar")}


def told(name: str, run: Run, files: int) -> str:
    """One line of the report."""
    assert run.status in (0, -signal.SIGKILL), f"{name}: exit status {run.status}"
    rate = f"{files / run.seconds:,.0f} files/s" if run.status == 0 else "killed"
    return f"{name:<34} {run.seconds:8.1f} s  {run.cpu_s:8.1f} s CPU  {run.anonymous_mib:7.0f} MiB anonymous  {rate}"


def measured(folder: Path, files: int) -> Iterator[str]:
    """Lines of the report, as they come."""
    started = time.monotonic()
    size = make_files(folder / "pictures", files)
    yield f"{files:,} files, {size / 1e6:,.0f} MB, {files // PER_CLASS:,} classes; made in {time.monotonic() - started:.0f} s"
    spec: dict[str, object] = {"source": "image_folder", "root": str(folder / "pictures")}
    yield told("eight images (imports)", without_data(folder), 8)
    yield told("indexed where they lie", prepare(folder / "index", spec), files)
    spec |= {"shard": {"format": "tar", "mib": MIB}}
    yield told(f"packed into tar shards of {MIB} MiB", prepare(folder / "whole", spec), files)
    whole = read_manifest(folder / "whole/manifest.json")
    yield (
        f"  {whole.train.samples:,} samples in {whole.train.shards} shards, {whole.bulk_bytes / 1e6:,.0f} MB; "
        f"manifest: {whole.seconds:.1f} s, {whole.cpu_s:.1f} s CPU"
    )
    yield from killed(folder, spec, whole.train.shards, whole.fingerprint)


def killed(folder: Path, spec: dict[str, object], shards: int, fingerprint: str) -> Iterator[str]:
    """Kill it again and again, evenly spread over the shards, then let it end; what was whole must stay."""
    work, files = folder / "killed/.bulk.making-kept", 0
    before: dict[str, tuple[int, int]] = {}
    for number in range(1, KILLS + 1):
        wanted = shards * number // (KILLS + 1)
        run = prepare(folder / "killed", spec, lambda wanted=wanted: len(list(work.glob("train-*.tar"))) > wanted)
        left = tars(work)
        lost = [name for name, state in before.items() if left.get(name) != state]
        records = len(list((work / "parts").glob("*.npz")))
        begun = len(list(work.glob(".*.tar")))
        yield told(f"kill {number} of {KILLS}, after {wanted} shards", run, files)
        yield (
            f"  left: {len(left)} whole shards, {records} recorded, {begun} begun; of those whole before, "
            f"{len(before) - len(lost)} of {len(before)} untouched"
        )
        recorded = {f"train-{int(file.stem.split('-')[1]):06d}.tar" for file in (work / "parts").glob("train-*.npz")}
        before = {name: state for name, state in left.items() if name in recorded}
    run = prepare(folder / "killed", spec)
    after, manifest = tars(folder / "killed/bulk"), read_manifest(folder / "killed/manifest.json")
    kept = sum(after.get(name) == state for name, state in before.items())
    yield told("the rest", run, manifest.train.samples)
    same = "the same" if manifest.fingerprint == fingerprint else "ANOTHER"
    yield f"  {kept} of {len(before)} recorded shards untouched; the fingerprint is {same} as without kills"
    assert same == "the same" and kept == len(before), "a kill changed the data, or lost whole shards"


def main() -> None:
    """Print the report."""
    with tempfile.TemporaryDirectory(prefix="prepare-million-") as folder:
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        print(
            f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.system()}, load before: {load}", flush=True
        )
        for line in measured(Path(folder), int(sys.argv[1]) if sys.argv[1:] else 1_000_000):
            print(line, flush=True)


if __name__ == "__main__":
    main()
