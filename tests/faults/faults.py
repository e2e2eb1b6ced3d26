"""The faults: how each is provoked, and what is promised beside what holds for all."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tests.faults.standin import told
from tests.faults.steps import Step
from tests.faults.world import Case, How, NotHere, Running

LIMIT_S = 60.0
"""No command may hang for longer."""
DAY_S = 86_400
FILLER = "filler"
OTHER_MACHINE = "scalestudy-other"


@dataclass
class Met:
    """How a command ended that met a fault."""

    running: Running
    killed: bool = False
    """It was killed outright: it can say nothing."""
    hung: bool = False


@dataclass
class Fault:
    """One fault; the plain one is none."""

    name: str
    what: str
    """How it is provoked."""
    words: str = ""
    """Pattern of what a message about it must have."""
    promised: str = ""
    """In addition to what holds for all."""
    own_disk: bool = False
    must_act: bool = False
    """Where the stand-in never acts, nothing was seen."""
    ends_well: bool = False
    """One of the commands has to end well although the fault is there."""
    stop_s: float = LIMIT_S
    """For how long a process is stopped."""

    def not_for(self, step: Step) -> str:
        """Why a step cannot meet it; empty where it can."""
        return step.exempt.get(self.name, "")

    def met_by(self, step: Step) -> Step:
        """The step in the form that can meet it."""
        return step

    def command(self, step: Step) -> tuple[str, ...]:
        """The command that meets it, and that is given again afterwards."""
        return step.command

    def provoke(self, case: Case, step: Step) -> list[Met]:
        """Run the step into the fault; returns how the commands ended."""
        running = case.start(self.command(step), self.how(case, step))
        return [ends(running)]

    def how(self, case: Case, step: Step) -> How:
        """How the command is started."""
        return How()

    def heal(self, case: Case) -> None:
        """The fault is gone."""


def ends(running: Running, within_s: float = LIMIT_S, killed: bool = False) -> Met:
    """Wait for a command's end."""
    return Met(running, killed, hung=not running.ended(within_s))


class AtMoment(Fault):
    """A fault that strikes while a certain file is being written."""

    def provoke(self, case: Case, step: Step) -> list[Met]:
        running = case.start(self.command(step), case.holding(step.writes))
        writer = case.held(running)
        killed = self.strike(case, step, running, writer)
        case.release()
        return [ends(running, killed=killed)]

    def strike(self, case: Case, step: Step, running: Running, writer: int) -> bool:
        """Do it, while the process `writer` waits; whether it kills the command outright."""
        raise NotImplementedError


@dataclass
class Signalled(AtMoment):
    """A signal, to the process that writes or to the command."""

    number: signal.Signals = signal.SIGKILL
    to_writer: bool = False

    def strike(self, case: Case, step: Step, running: Running, writer: int) -> bool:
        command = case.pid(running)
        os.kill(writer if self.to_writer else command, self.number)
        return self.number == signal.SIGKILL and (not self.to_writer or writer == command)


class Stopped(AtMoment):
    """The process that writes is stopped for a while."""

    def strike(self, case: Case, step: Step, running: Running, writer: int) -> bool:
        os.kill(writer, signal.SIGSTOP)
        case.release()
        time.sleep(self.stop_s)
        with suppress(ProcessLookupError):  # a run ends a rank that is stopped for longer than its heartbeat allows
            case.go_on(running, writer)
        return False


class Moved(AtMoment):
    """The project's folder gets another name while a file is written."""

    def strike(self, case: Case, step: Step, running: Running, writer: int) -> bool:
        case.folder = case.folder.rename(case.folder.with_name(f"{case.folder.name}-moved"))
        return False


class DriverGone(AtMoment):
    """The driver is killed while a process that it started writes."""

    def not_for(self, step: Step) -> str:
        return super().not_for(step) or ("" if step.by_driver else "no rule makes it")

    def command(self, step: Step) -> tuple[str, ...]:
        return step.by_driver or step.command

    def strike(self, case: Case, step: Step, running: Running, writer: int) -> bool:
        os.kill(case.pid(running), signal.SIGKILL)
        return True


class Twice(AtMoment):
    """The same is asked for a second time while the first is on its way."""

    prefix: tuple[str, ...] = ()
    WAITS_S = 20.0
    """For so long the second is watched before the first continues: it may be waiting for that."""

    def command(self, step: Step) -> tuple[str, ...]:
        return step.by_driver or step.command

    def provoke(self, case: Case, step: Step) -> list[Met]:
        first = case.start(self.command(step), case.holding(step.writes))
        case.held(first)
        second = case.start(self.command(step), How(prefix=self.prefix))
        second.ended(self.WAITS_S)
        case.release()
        return [ends(first), ends(second)]


class OnTwoMachines(Twice):
    """As above; the second has another host name and other process ids, on the same kernel."""

    prefix = (
        "unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child",
        "sh", "-c", f'hostname {OTHER_MACHINE} && exec "$@"', "sh",
    )  # fmt: skip

    def provoke(self, case: Case, step: Step) -> list[Met]:
        if os.geteuid() != 0:
            raise NotHere("needs root, for another host name")
        return super().provoke(case, step)


@dataclass
class OnFile(Fault):
    """The stand-in acts on calls to files."""

    action: str = ""
    calls: str = "w"
    everywhere: bool = False
    """On all files below the folder."""

    def not_for(self, step: Step) -> str:
        return super().not_for(step) or ("" if self._files(step) else "it reads no file below the folder")

    def how(self, case: Case, step: Step) -> How:
        files = f"{case.folder}/{step.everywhere}" if self.everywhere else self._files(step)
        assert files is not None
        return How(environment=told(self.action, files, self.calls, case.mark))

    def _files(self, step: Step) -> str | None:
        return step.writes if "w" in self.calls else step.reads


class DiskFull(Fault):
    """A file takes the rest of the disk but a little."""

    def how(self, case: Case, step: Step) -> How:
        free = "$(df --output=avail -k . | tail -n 1)"
        case.sh(f"fallocate -l $(({free} - {step.room_kib}))K {FILLER}")
        return How()

    def heal(self, case: Case) -> None:
        case.sh(f"rm {FILLER}")


class ReadOnly(Fault):
    """The disk is mounted read-only before the step begins."""

    def how(self, case: Case, step: Step) -> How:
        case.sh("mount -o remount,ro .")
        return How()

    def heal(self, case: Case) -> None:
        case.sh("mount -o remount,rw .")


@dataclass
class Limited(Fault):
    """A limit of the kernel, by prlimit."""

    option: Callable[[Step], str] = lambda step: ""

    def how(self, case: Case, step: Step) -> How:
        return How(prefix=("prlimit", self.option(step)))


FAULTS: tuple[Fault, ...] = (
    Signalled("sigkill", "SIGKILL to the process that writes", to_writer=True,
              promised="A command that is killed can say nothing; one that waits for the killed process says so."),
    Signalled("sigterm", "SIGTERM to the command", words=r"SIGTERM|stopped", number=signal.SIGTERM),
    Signalled("sigint", "SIGINT (Ctrl-C) to the command", words=r"SIGINT|stopped", number=signal.SIGINT),
    Stopped("sigstop", "SIGSTOP to the process that writes, SIGCONT a minute later", words=r"stopped",
            promised="It continues; a run may end a rank that is silent for longer than its heartbeat allows."),
    DiskFull("disk_full", "a disk that has no room left but a few KiB", words=r"full|[Nn]o space|are free", own_disk=True),
    ReadOnly("read_only", "a disk that is mounted read-only", words=r"[Rr]ead-only", own_disk=True),
    OnFile("quota", "stand-in: the write of one file fails with EDQUOT", words=r"[Qq]uota", must_act=True,
           action=f"errno={errno.EDQUOT}"),
    OnFile("eio_write", "stand-in: the write of one file fails with EIO", words=r"Input/output error", must_act=True,
           action=f"errno={errno.EIO}"),
    OnFile("eio_read", "stand-in: the read of one file fails with EIO", words=r"Input/output error", must_act=True,
           action=f"errno={errno.EIO}", calls="r"),
    OnFile("slow_disk", "stand-in: every read and write below the folder takes 20 ms longer", ends_well=True, must_act=True,
           action="slow=20", calls="rw", everywhere=True, promised="It takes longer, and ends well."),
    OnFile("clock_forwards", "stand-in: the clock jumps a day ahead at the first write", ends_well=True, must_act=True,
           action=f"clock={DAY_S}", everywhere=True, promised="It ends well."),
    OnFile("clock_backwards", "stand-in: the clock jumps a day back at the first write", ends_well=True, must_act=True,
           action=f"clock=-{DAY_S}", everywhere=True, promised="It ends well."),
    Limited("memory", "an address space that is too small (RLIMIT_AS)", words=r"[Mm]emory|address space",
            option=lambda step: f"--as={step.memory_mib << 20}"),
    Limited("descriptors", "a limit of open files that is too low (RLIMIT_NOFILE)", words=r"open files|descriptor",
            option=lambda step: f"--nofile={step.open_files}"),
    DriverGone("driver_gone", "SIGKILL to the driver while a process that it started writes",
               promised="What it started comes to an end by itself within a minute."),
    Moved("folder_moved", "the project's folder is renamed while a file is written",
          promised="The same command in the new place ends well."),
    Twice("two_drivers", "a second driver (of what no rule makes: a second command) while the first is held",
          ends_well=True, words=r"another driver", promised="The second is refused or waits; the first ends well."),
    OnTwoMachines("two_machines", "a second driver with another host name and process ids, on the same folder and kernel",
                  ends_well=True, words=r"another driver", promised="The second is refused or waits; the first ends well."),
)  # fmt: skip
