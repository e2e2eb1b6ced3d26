"""Two tiny studies, made once, and a folder with a copy of them for every case."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import yaml
from PIL import Image
from pydantic import TypeAdapter

from scalestudy.data.catalogue import DatasetSpec
from scalestudy.spec.ids import dataset_id
from scalestudy.spec.layout import manifest_file
from scalestudy.spec.run import Data
from tests.faults.standin import compiled, told
from tests.integration.project import THREADS

ROOT = Path(__file__).resolve().parents[2]
TINY = """\
question: Does a fault change what two runs learn?
base:
  model: {name: mlp, hidden: 8, layers: 2}
  data: {source: digits}
  strategy: allreduce
  batch: {per_rank: 32}
  optimiser: {learning_rate: 0.05}
  train: {epochs: 2}
  measure: {whole_program: true}
  checkpoint: {every_steps: 10}
  keep: weights
vary:
  ranks: [1, 2]
scales:
  mini: {}
figures:
  - {kind: lines, name: ends, x: ranks, y: loss}
tables:
  - {name: ends, values: [loss, accuracy]}
claims:
  - id: learns
    statement: The network learns.
    source: nobody
    place: nowhere
    kind: exact
    checks: [{column: status, equals: valid}]
"""
PICTURES = """\
question: Does a fault change what two runs on stored and staged pictures learn?
base:
  model: {name: mlp, hidden: 8, layers: 2}
  data: {source: image_folder, root: pictures, shard: {format: tar, mib: 0.015625}}
  loader: {size: 32}
  stage: {to: scratch}
  strategy: allreduce
  batch: {per_rank: 4}
  optimiser: {learning_rate: 0.01}
  train: {epochs: 2}
  measure: {whole_program: true}
  checkpoint: {every_steps: 5}
  keep: weights
vary:
  ranks: [1, 2]
scales:
  mini: {}
tables:
  - {name: ends, values: [loss, accuracy]}
"""
STUDIES = {"tiny": TINY, "pictures": PICTURES}
DRIVER = ("snakemake", "--profile", "profiles/local")
DISK_MIB = 96
PREFIX = "scalestudy-faults-"
"""How the name of the folder of all cases begins."""
WHOLE_S = 600.0
"""Both studies, in a fault-free folder."""


class NotHere(Exception):
    """What this machine lacks for a case; the message says what."""


class NotProvoked(Exception):
    """The fault was not met, so that nothing is known: a defect of the test."""


@dataclass(frozen=True)
class How:
    """How a command is started so that it meets a fault."""

    prefix: Sequence[str] = ()
    """A command that starts it."""
    environment: dict[str, str] = field(default_factory=dict)


PLAIN = How()
"""Without any fault."""


@dataclass
class Running:
    """A command that was started."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def said(self) -> str:
        """Standard output and standard error together, so far."""
        return self.output.read_text(errors="replace")

    def ended(self, within_s: float) -> bool:
        """Whether it has ended, at the latest after so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, within_s))
        return self.process.returncode is not None


@dataclass
class Case:
    """A folder like a clone with results, in which a step meets a fault; and what was started in it."""

    world: World
    folder: Path
    control: Path
    """A folder beside it, for what the case itself notes."""
    running: list[Running] = field(default_factory=list)

    @property
    def view(self) -> Path:
        """The folder as this process sees it."""
        return self.folder

    @property
    def mark(self) -> Path:
        """Made by the stand-in when it first acts."""
        return self.control / "mark"

    def start(self, command: Sequence[str], how: How = PLAIN) -> Running:
        """Start a command in the folder."""
        output = self.control / f"said{len(self.running)}"
        with open(output, "wb") as stream:
            process = subprocess.Popen(
                ["env", "--default-signal=INT", *how.prefix, *command],  # a shell's background jobs ignore it
                cwd=self.folder,
                env={**self.environment(), **how.environment},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        self.running.append(Running(process, output))
        return self.running[-1]

    def environment(self) -> dict[str, str]:
        """The library is there in every command, and the number of threads that Snakemake gives its jobs: so all use one
        warm parent. The library acts where it is told to."""
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(self.folder / "tmp"),
            "SCALESTUDY_LOCKS": str(self.world.folder / "locks"),
            "XDG_RUNTIME_DIR": str(self.world.folder / "runtime"),
            "LD_PRELOAD": str(self.world.library),
            **THREADS,
        }

    def sh(self, script: str) -> None:
        """Run a script in the folder, outside any fault."""
        subprocess.run(["sh", "-euc", script], cwd=self.folder, check=True, capture_output=True)

    def pid(self, running: Running) -> int:
        """The process id of a command that was started without a prefix."""
        return running.process.pid

    def go_on(self, running: Running, stopped: int) -> None:
        """Let a process go on that was stopped."""
        os.kill(stopped, signal.SIGCONT)

    def holding(self, files: str) -> How:
        """The first process that writes to a file of this pattern waits before it does, until `release`."""
        return How(environment=told("hold", files, "w", self.mark))

    def held(self, running: Running, within_s: float = 90.0) -> int:
        """The process that waits; NotProvoked where the command ends before one does."""
        end = time.monotonic() + within_s
        while not (self.mark.exists() and self.mark.read_text().endswith("\n")):
            if running.ended(0.02):
                raise NotProvoked(f"the command ended before the moment of the fault: {running.said[-500:]}")
            if time.monotonic() > end:
                raise NotProvoked(f"the moment of the fault did not come within {within_s:.0f} s")
        return int(self.mark.read_text())

    def release(self) -> None:
        """Let the process that waits go on."""
        Path(f"{self.mark}.go").touch()

    def processes(self) -> list[psutil.Process]:
        """Every process that works in the folder; a parent that only waits for commands works nowhere."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                place = str(Path(f"/proc/{process.pid}/cwd").readlink()).removesuffix(" (deleted)")
                if f"{place}/".startswith(f"{self.folder}/") and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def files(self) -> set[str]:
        """Everything that lies in the results, by its path."""
        return {str(path.relative_to(self.view)) for path in (self.view / "results").rglob("*") if path.is_file()}

    def end_processes(self) -> None:
        """End what works in the folder."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)

    def end_all(self) -> None:
        """End everything that was started."""
        self.release()
        self.end_processes()
        for running in self.running:
            with suppress(ProcessLookupError):
                running.process.kill()
            running.process.wait()


@dataclass(frozen=True)
class World:
    """Where all cases lie."""

    folder: Path
    base: Path
    """A project whose two studies have been made; or of the second its data alone."""
    library: Path
    seconds: float = 0.0
    """What making them took."""

    @contextmanager
    def case(self, name: str, *, own_disk: bool = False, leave: bool = False) -> Iterator[Case]:
        """A copy of the finished project; with `own_disk` on a small disk of its own. `leave` keeps it for a look."""
        folder, control = self.folder / name, self.folder / f"{name}.control"
        folder.mkdir()
        control.mkdir(mode=0o777)
        with small_disk(folder) if own_disk else contextlib.nullcontext():
            copy(self.base, folder)
            case = Case(self, folder, control)
            try:
                yield case
            finally:
                case.end_all()
        if not leave:
            for left in (folder, case.folder, control):
                shutil.rmtree(left, ignore_errors=True)


def make_world(folder: Path, base: Path | None = None, *, whole: bool = True) -> World:
    """Make both studies in a new project below `folder`, through the driver as a user does; or take a project that has.

    Where not `whole`, no more than the steps of the matrix begin with: no run of the second study.
    """
    for name in ("locks", "runtime"):
        (folder / name).mkdir()
    world = World(folder, base or folder / "base", compiled(folder))
    if base is not None:
        return world
    new_project(world.base)
    case, begin = Case(world, world.base, folder), time.monotonic()
    made = case.start([*DRIVER, *(["all"] if whole else ["tiny", _manifest_of(PICTURES)])])
    if not made.ended(WHOLE_S) or made.process.returncode != 0:
        case.end_all()
        raise AssertionError(f"the studies cannot be made without any fault:\n{made.said}")
    made.output.unlink()
    return dataclasses.replace(world, seconds=time.monotonic() - begin)


def _manifest_of(study: str) -> str:
    """The manifest of a study's data."""
    data: DatasetSpec = TypeAdapter(Data).validate_python(yaml.safe_load(study)["base"]["data"])
    return str(manifest_file(dataset_id(data)))


def new_project(folder: Path) -> None:
    """What a clone has, with the two studies alone and their pictures; the code is that of this repository."""
    folder.mkdir()
    for name in ("Snakefile", "workflow", "profiles", "envs"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "config", folder / "config", ignore=shutil.ignore_patterns("studies"))
    (folder / "config" / "studies").mkdir()
    for name, text in STUDIES.items():
        (folder / "config" / "studies" / f"{name}.yaml").write_text(text)
    (folder / "tmp").mkdir()
    _draw_pictures(folder / "pictures")


def _draw_pictures(folder: Path) -> None:
    """JPEG files of noise, 40 x 32, in two classes: 48 to train, 12 held out."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 6)):
        for number, name in enumerate(("dark", "light")):
            place = folder / split / name
            place.mkdir(parents=True)
            for picture in range(count):
                pixels = generator.integers(100 * number, 100 * number + 156, (32, 40, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{picture:03}.jpg", quality=90)


def copy(base: Path, folder: Path) -> None:
    """Copy a project with the times of its files, and without what its driver noted."""
    ignore = shutil.ignore_patterns(".snakemake", ".scalestudy", "tmp", "*.control")
    shutil.copytree(base, folder, symlinks=True, copy_function=shutil.copy2, ignore=ignore, dirs_exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system in memory, of DISK_MIB, on the folder; seen by this process and those that it starts."""
    if os.environ.get("TESTS_FAULTS_MOUNTS") != "own":
        raise NotHere("needs root: a small disk is mounted in a mount namespace of the tests' own")
    mounted = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=755", "tmpfs", str(folder)]
    subprocess.run(mounted, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)
