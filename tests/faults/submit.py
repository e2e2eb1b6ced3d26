"""The step `submit`: a driver that hands two runs to a Slurm of its own, in a box of namespaces (tests/cluster/box.py)."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.cluster.box import USER, Unavailable
from tests.cluster.slurm_box import SlurmBox
from tests.cluster.workflow import OPTIONS, Workflow, environment_of, python_below
from tests.faults.faults import AtMoment, Fault, Met, ends
from tests.faults.steps import Outcome, Step, digests
from tests.faults.world import DISK_MIB, PLAIN, ROOT, Case, How, NotHere, Running, World

RUNS = {"one": {"steps": 3, "step_s": 0.2}, "two": {"steps": 3, "step_s": 0.2}}


def _submitted(folder: Path) -> Outcome:
    """The results, and how often each run was begun once all are there."""
    names = [str(path.relative_to(folder)) for path in folder.glob("results/*/result.json")]
    found = digests(folder, names)
    starts = folder / "starts.log"
    if len(found) == len(RUNS) and starts.is_file():
        begun = sorted(line.split()[0] for line in starts.read_text().splitlines())
        found["starts of each run"] = json.dumps(begun)
    return found


SUBMIT = Step(
    "submit",
    ("snakemake", *OPTIONS, "--logger", "scalestudy"),  # as profiles/default has it
    None,
    (),
    "*/.multinode/jobs.jsonl",
    "*/site.yaml",
    _submitted,
    memory_mib=300,
    room_kib=0,
    open_files=24,
    everywhere=".[ms]*",  # what the driver writes: jobs, on nodes with clocks of their own, have the stand-in too
    exempt={
        "driver_gone": "the command is the driver: SIGKILL is this fault",
    },
)


class BoxCase(Case):
    """A folder of the box's user, seen through the namespaces of the box."""

    box: SlurmBox

    @property
    def view(self) -> Path:
        return Path(f"/proc/{self.box.init}/root{self.folder}")

    def start(self, command: Sequence[str], how: How = PLAIN) -> Running:
        output = self.control / f"said{len(self.running)}"
        library = {"LD_PRELOAD": str(self.box.home / self.world.library.name)}
        environment = {**environment_of(self.box), **library, **how.environment}
        if how.prefix and how.prefix[0] == "unshare":  # needs root
            words = [*how.prefix, "runuser", "-u", USER, "--", *command]
            words = self.box.command(words, None, self.folder, **environment)
        else:
            words = self.box.command([*how.prefix, *command], USER, self.folder, **environment)
        with open(output, "wb") as stream:
            process = subprocess.Popen(
                ["env", "--default-signal=INT", *words], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
            )
        self.running.append(Running(process, output))
        return self.running[-1]

    def held(self, running: Running, within_s: float = 90.0) -> int:
        super().held(running, within_s)
        return self.pid(running)  # the mark has its id as the box counts

    def sh(self, script: str) -> None:
        self.box.must(["sh", "-euc", f"cd {self.folder} && {script}"])

    def pid(self, running: Running) -> int:
        return python_below(running.process.pid)

    def go_on(self, running: Running, stopped: int) -> None:
        """`runuser` stops itself with its child."""
        started = psutil.Process(running.process.pid)
        for process in (*started.children(recursive=True), started):
            process.resume()

    def processes(self) -> list[psutil.Process]:
        """Drivers; jobs go on without one, and are taken up again."""
        found, box = [], Path(f"/proc/{self.box.init}/ns/pid").readlink()
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                inside = Path(f"/proc/{process.pid}/ns/pid").readlink() == box
                if inside and any(word.endswith("snakemake") for word in process.cmdline()[:3]):
                    found.append(process)
        return found

    def end_all(self) -> None:
        super().end_all()
        self.box.run(["scancel", "--user", USER])


class SubmitWorld(World):
    """Cases in the home of the box's user."""

    box: SlurmBox

    @contextmanager
    def case(self, name: str, *, own_disk: bool = False, leave: bool = False) -> Iterator[Case]:
        folder, control = self.box.home / name, self.box.home / f"{name}.control"
        control.mkdir()
        control.chmod(0o777)
        workflow = Workflow(self.box, name, {"kind": "slurm"}, RUNS)
        case = BoxCase(self, workflow.folder, control)
        case.box = self.box
        if own_disk:
            aside = f"{folder}.aside"
            tmpfs = f"mount -t tmpfs -o size={DISK_MIB}m,mode=755 tmpfs {folder}"
            self.box.must(
                [
                    "sh",
                    "-euc",
                    f"cp -a {folder} {aside} && {tmpfs} && cp -a {aside}/. {folder} && chown -R {USER}: {folder}",
                ]
            )
        try:
            yield case
        finally:
            case.end_all()
            if own_disk:
                self.box.run(["umount", "--lazy", str(folder)], folder=Path("/"))
        if not leave:
            for left in (folder, case.folder, control):
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def submit_world(world: World) -> Iterator[World]:
    """A world whose cases submit to a Slurm; NotHere where there can be none."""
    try:
        box = SlurmBox(ROOT)
    except Unavailable as why:
        raise NotHere(f"no scheduler: {why}") from None
    try:
        shutil.copy(world.library, box.home)
        (box.home / world.library.name).chmod(0o755)
        made = SubmitWorld(world.folder, world.base, world.library)
        object.__setattr__(made, "box", box)
        yield made
    finally:
        box.stop()


class SchedulerGone(AtMoment):
    """The scheduler's controller is stopped while a driver submits, and started again after a while."""

    AWAY_S = 30.0

    def not_for(self, step: Step) -> str:
        return super().not_for(step) or ("" if step.name == "submit" else "no scheduler takes part")

    def provoke(self, case: Case, step: Step) -> list[Met]:
        assert isinstance(case, BoxCase)
        running = case.start(self.command(step), case.holding(step.writes))
        case.held(running)
        case.box.stop_controller(crash=True)
        case.release()
        time.sleep(self.AWAY_S)
        case.box.start_controller()
        return [ends(running, 2 * self.AWAY_S + 60)]


SCHEDULER_GONE: Fault = SchedulerGone(
    "scheduler_gone",
    "the Slurm controller is killed while a driver submits, and started again after 30 s",
    promised="The driver waits for it, and no run is begun twice.",
)
__all__ = ["SCHEDULER_GONE", "SUBMIT", "submit_world"]
