"""A million small images, indexed where they lie and packed into shards: time and memory.

    python -m tests.soak.prepare_million [FILES]

Takes about 8 GB in the folder for temporary files (TMPDIR) for a million files.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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
MIB = 16
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

    seconds: float
    cpu_s: float
    anonymous_mib: float
    """Largest anonymous memory seen, sampled."""


def prepare(out: Path, spec: dict[str, object]) -> Run:
    """Run it as a process of its own, watched."""
    command = [sys.executable, "-c", "from scalestudy.cli import main; main()", "prepare", "--spec", json.dumps(spec)]
    started, peak = time.monotonic(), 0.0
    with open(out.with_suffix(".log"), "a") as log:
        process = subprocess.Popen([*command, "--out", str(out / "manifest.json")], stdout=log, stderr=log)
    while True:
        found, status, usage = os.wait4(process.pid, os.WNOHANG)
        if found:
            break
        peak = max(peak, anonymous_mib(process.pid))
        time.sleep(POLL_S)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{out}: exit status {process.returncode}"
    return Run(time.monotonic() - started, usage.ru_utime + usage.ru_stime, peak)


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


def told(name: str, run: Run, files: int) -> str:
    """One line of the report."""
    took = f"{run.seconds:8.1f} s  {run.cpu_s:8.1f} s CPU  {run.anonymous_mib:7.0f} MiB anonymous"
    return f"{name:<34} {took}  {files / run.seconds:,.0f} files/s"


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
