"""This project's loader beside the loaders that people use: images per second and CPU time per image.

    make bench-loader                                   all of it, about 20 minutes: docs/measured/loader.txt
    python benchmarks/loader.py --peers ours dali --repeats 1 --cores 1 --seconds 0.5

Each peer has an environment of its own under the cache folder ($XDG_CACHE_HOME/scalestudy/bench-loader), made here once;
torch comes from this project's. One that cannot be installed, or does not run, is a row with its error. All peers of a
setting (cores, number type) run at once but load in turn, in a shuffled order that changes with each repeat; the page
cache is filled before each round and its residency checked.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import select
import shutil
import statistics
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from scalestudy.data.decode import kernel
from scalestudy.data.pagecache import resident_bytes, warm
from scalestudy.data.prepare.datasets import prepare
from scalestudy.measure.instrument import cpu_name
from scalestudy.spec.config import Site
from scalestudy.spec.run import Data

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.ratios import Estimate, ratio_of

ROOT = Path(__file__).resolve().parent.parent
PEER_SCRIPT = ROOT / "benchmarks" / "loader_peers.py"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scalestudy" / "bench-loader"
PICTURES = {"source": "synthetic_jpeg", "samples": 2048, "width": 500, "height": 375, "mean_kib": 100}
DATA = {
    "files": PICTURES,
    "tar": {**PICTURES, "shard": {"format": "tar", "mib": 16}},
    "raw": {**PICTURES, "preprocess": "raw"},
}
READY_S = 240.0
ANSWER_S = 60.0
Setting = tuple[int, str]
"""Cores, and type of the numbers."""


@dataclass(frozen=True)
class Peer:
    """A loader: its name in loader_peers.py, what it is, what it needs, and what is asked of this project beside it."""

    name: str
    title: str
    needs: tuple[str, ...] = ()
    at_least: float | None = None
    aim: float | None = None
    against: str = "ours"
    """Which loader of ours it is compared with."""

    @property
    def environment(self) -> str:
        """Folder of its environment; empty: this project's."""
        return self.needs[-1].partition("=")[0] if self.needs else ""


PEERS = (
    Peer("ours", "scalestudy, threads"),
    Peer("ours_processes", "scalestudy, processes"),
    Peer("ours_plain", "scalestudy without its kernel, threads"),
    Peer("torchvision_pil", "torchvision PIL + DataLoader", (), 1.5, 2.2),
    Peer("torchvision_io", "torchvision.io + DataLoader", (), 1.15, 1.6),
    Peer("torchcodec", "torchcodec + DataLoader", ("torchcodec==0.17.0",), 1.15, 1.6),
    Peer("webdataset", "WebDataset, its default", ("webdataset==1.0.2",), 1.6, 2.3),
    Peer("webdataset_fast", "WebDataset, decode_jpeg", ("webdataset==1.0.2",), 1.4, 2.0),
    Peer("streaming", "MosaicML streaming", ("mosaicml-streaming==0.13.0",), 1.4, 2.1),
    Peer("dali", "NVIDIA DALI, CPU pipeline", ("nvidia-dali-cuda120==2.4.0",), 1.1, 1.45),
    Peer("ffcv", "FFCV, JPEG", ("opencv-python-headless", "numba", "ffcv==1.0.2"), 1.03, 1.4),
    Peer("spdl", "SPDL, a task per image", ("spdl==0.8.0",), 1.1, 1.45),
    Peer("spdl_batches", "SPDL, a task per batch", ("spdl==0.8.0",), 1.1, 1.45),
    Peer("full_decode", "libjpeg-turbo, full decode alone", (), 0.55, 0.8),
    Peer("ours_raw", "scalestudy, prepared pixels, threads"),
    Peer("ffcv_raw", "FFCV, raw", ("opencv-python-headless", "numba", "ffcv==1.0.2"), 1.6, 3.5, "ours_raw"),
)


# What peers need


def interpreter(peer: Peer) -> Path:
    """Python of the peer's environment, made where it is not there; RuntimeError where it cannot be."""
    if not peer.environment:
        return Path(sys.executable)
    folder = CACHE / "environments" / peer.environment
    python, stamp = folder / "bin" / "python", folder / "installed.json"
    if stamp.is_file() and json.loads(stamp.read_text()) == list(peer.needs):
        return python
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    # This project's packages, torch above all, without a second copy; the peer's own come first.
    (Path(found.stdout.strip()) / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
    options, environment = [], dict(os.environ)
    if peer.environment == "ffcv":  # from source: needs libopencv-imgproc-dev, libturbojpeg0-dev, pkg-config of Debian
        pip(python, environment, "wheel", "setuptools<81")
        options, environment["PKG_CONFIG_PATH"] = ["--no-build-isolation"], str(_opencv_description(folder))
    pip(python, environment, *options, *peer.needs)
    stamp.write_text(json.dumps(peer.needs))
    return python


def pip(python: Path, environment: dict[str, str], *what: str) -> None:
    """Install; RuntimeError with pip's last error line."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if "rror" in line] or ["no reason given"]
        raise RuntimeError(f"cannot be installed: {lines[0][:200]}")


def _opencv_description(folder: Path) -> Path:
    """A pkg-config file and a header with the two parts of OpenCV that FFCV uses; Debian has only the whole, 1 GB."""
    place = folder / "pkgconfig"
    (place / "opencv2").mkdir(parents=True, exist_ok=True)
    (place / "opencv2" / "opencv.hpp").write_text("#include <opencv2/core.hpp>\n#include <opencv2/imgproc.hpp>\n")
    (place / "opencv4.pc").write_text(
        "Name: opencv4\nDescription: core and imgproc\nVersion: 4\n"
        f"Cflags: -I{place} -I/usr/include/opencv4\nLibs: -lopencv_imgproc -lopencv_core\n"
    )
    return place


def make_data(folder: Path) -> list[Path]:
    """The images in all forms that are prepared here; returns the files that must be in the page cache."""
    files: list[Path] = []
    for name, spec in DATA.items():
        manifest = folder / name / "manifest.json"
        if not manifest.is_file():
            prepare(TypeAdapter(Data).validate_json(json.dumps(spec)), manifest, None, Site())
        files += [path for path in (folder / name / "bulk").rglob("*") if path.is_file()]
    return files


# Measuring


@dataclass
class Running:
    """A peer's process, or why there is none."""

    peer: Peer
    process: subprocess.Popen[str] | None = None
    error: str = ""
    results: list[dict[str, float]] = field(default_factory=list)

    def ask(self, line: str, limit_s: float) -> dict[str, Any]:
        """An answer of the process; an error ends it."""
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        answer: dict[str, Any] = {"error": f"no answer for {limit_s:.0f} s"}
        try:
            if line:
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()
            if select.select([self.process.stdout], [], [], limit_s)[0]:
                text = self.process.stdout.readline()
                answer = json.loads(text) if text else {"error": f"it ended with status {self.process.wait()}"}
        except BrokenPipeError:
            answer = {"error": "it is gone"}
        if "error" in answer:
            self.error = answer["error"]
            self.end()
        return answer

    def end(self) -> None:
        """End the process and what it started."""
        if self.process is None:
            return
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


def start(peer: Peer, cores: int, kind: str, folder: Path) -> Running:
    """A peer ready to load, pinned to so many cores."""
    running = Running(peer)
    try:
        python = interpreter(peer)
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        running.error = str(error).splitlines()[0]
        return running
    allowed = ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))
    with open(CACHE / f"{peer.name}.log", "a") as log:
        running.process = subprocess.Popen(
            ["taskset", "-c", allowed, str(python), str(PEER_SCRIPT), peer.name, str(cores), kind, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=CACHE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "workflow"), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    running.ask("", READY_S)
    return running


def measure(setting: Setting, peers: list[Peer], options: argparse.Namespace, files: list[Path]) -> list[Running]:
    """All repeats of one setting, peers in turn."""
    cores, kind = setting
    running: list[Running] = []
    try:
        for peer in peers:
            say(f"{cores} cores, {kind}: starting {peer.title}")
            running.append(start(peer, cores, kind, options.folder))
        files = [*files, *options.folder.glob("*.beton"), *options.folder.glob("mds/*")]
        for repeat in range(options.repeats):
            warm(files)
            resident, size = resident_bytes(files), sum(file.stat().st_size for file in files)
            share = 1.0 if resident is None else min(1.0, resident / size)
            turns = [one for one in running if one.process]
            for one in random.Random(repeat).sample(turns, len(turns)):
                answer = one.ask(str(options.seconds), ANSWER_S)
                if "error" not in answer:
                    one.results.append(answer)
            say(
                f"{cores} cores, {kind}: round {repeat + 1} of {options.repeats}, {share:.1%} of the data in the page cache"
            )
    finally:
        for one in running:
            one.end()
    return running


# The table


def report(options: argparse.Namespace, measured: dict[Setting, list[Running]]) -> str:
    """What is printed and kept."""
    cores = len(os.sched_getaffinity(0))
    lines = [
        "python benchmarks/loader.py",
        f"{datetime.date.today().isoformat()}, {cpu_name()}, {cores} cores, Python {platform.python_version()}; "
        f"images of ours by: {kernel.state()}",
        f"2,048 JPEGs of 500x375, 100 KiB mean; random resized crop to 224, flip, batches of 64; windows of "
        f"{options.seconds:g} s, {options.repeats} repeats, in turn; medians [least .. most]",
        "CPU ms per image: user and system time of the whole process tree. `ratio` is the peer's CPU ms per image over "
        "ours, round by round, with Student's 95 % interval; for full decode, it is the share that it would take of ours. "
        "What is asked holds where the whole interval lies above it. The rounds of a setting are of the same processes: "
        "what differs between processes is not in the interval. `speed` is our images/s over the peer's.",
        "WebDataset resamples its shards (it has no exact epochs); uint8 batches lie as suits each loader best.",
    ]
    for setting, running in measured.items():
        lines += ["", *_table(setting, running)]
    return "\n".join(lines) + "\n"


def _table(setting: Setting, running: list[Running]) -> list[str]:
    cores, kind = setting
    lines = [
        f"{cores} {'core' if cores == 1 else 'cores'}, {kind}",
        f"  {'loader':<42}{'images/s':>26}{'CPU ms/image':>24}{'ratio':>21}{'asked':>7}{'aim':>6}{'speed':>8}",
    ]
    medians = {one.peer.name: _medians(one) for one in running}
    for one in running:
        peer, own = one.peer, medians[one.peer.name]
        if own is None:
            lines.append(f"  {peer.title:<42}{one.error}")
            continue
        speed, cpu = own
        row = f"  {peer.title:<42}{_range(speed, '.0f'):>26}{_range(cpu, '.3f'):>24}"
        reference = medians.get(peer.against)
        if peer.at_least is not None and reference is not None:
            ratio = by_round(cpu, reference[1])
            faster = by_round(reference[0], speed)
            kept = "" if kind != "uint8" else f" {ratio.at_least(peer.at_least)}"
            span = f"{ratio.value:.2f} [{ratio.low:.2f} .. {ratio.high:.2f}]"
            row += f"{span:>21}{peer.at_least:>7g}{peer.aim:>6g}{faster.value:>8.2f}{kept}"
        lines.append(row)
    return lines


def by_round(these: list[float], those: list[float]) -> Estimate:
    """The ratio of two sides, paired round by round."""
    return ratio_of([one / other for one, other in zip(these, those, strict=False)])


def _medians(one: Running) -> tuple[list[float], list[float]] | None:
    rows = one.results
    if not rows:
        return None
    return [row["images"] / row["wall_s"] for row in rows], [row["cpu_s"] / row["images"] * 1e3 for row in rows]


def _range(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} [{min(values):{form}} .. {max(values):{form}}]"


def say(text: str) -> None:
    """A line for the person who waits."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Environments, data, all settings, the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a window")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kinds", nargs="+", choices=["uint8", "float32"], default=["uint8", "float32"])
    parser.add_argument(
        "--peers", nargs="+", choices=[peer.name for peer in PEERS], default=[peer.name for peer in PEERS]
    )
    parser.add_argument("--out", type=Path, default=None, help="also write the table here")
    options = parser.parse_args()
    options.folder = CACHE / "data"
    CACHE.mkdir(parents=True, exist_ok=True)
    if shutil.which("taskset") is None:
        sys.exit("taskset is needed, of Debian's package util-linux")
    files = make_data(options.folder)
    peers = [peer for peer in PEERS if peer.name in options.peers]
    settings = [(cores, kind) for kind in options.kinds for cores in options.cores]
    measured = {setting: measure(setting, peers, options, files) for setting in settings}
    text = report(options, measured)
    print(text, end="")
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
