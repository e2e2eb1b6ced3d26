"""OpenPBS in a box: two hosts of 16 cores and 4 GPUs each. Cores and GPUs are a fiction, the hosts are not: each has a
network namespace, a host name and an execution daemon of its own.

OpenPBS has no Debian package: an installation of one's own is found by `qsub`, first in PATH.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from tests.cluster.box import Box, Unavailable

PROGRAMS = ("sbin/pbs_server", "sbin/pbs_sched", "sbin/pbs_comm", "sbin/pbs_mom", "libexec/pbs_habitat")
AUTHENTICATES = "sbin/pbs_iff"
"""The program that tells the server who asks; as `make install` leaves it, it can do so for root alone."""
HOME = Path("/var/spool/pbs")
"""Private to a box; PBS refuses a home below a folder that all may write to."""
OF_A_HOST = ("aux", "checkpoint", "mom_logs", "mom_priv", "pbs_environment", "pbs_version", "spool", "undelivered")


def installation() -> Path | None:
    """Where an OpenPBS is installed, daemons included."""
    qsub = shutil.which("qsub")
    folder = Path(qsub).resolve().parents[1] if qsub else None
    return folder if folder is not None and all((folder / name).exists() for name in PROGRAMS) else None


class PbsBox(Box):
    """A box with a running OpenPBS."""

    hosts = ("pbshead", "pbstail")
    """The nodes."""

    def __init__(self, repository: Path) -> None:
        programs = installation()
        if programs is None:
            raise Unavailable("no OpenPBS is installed, so its tests were not run; recorded answers were replayed")
        if not (programs / AUTHENTICATES).stat().st_mode & stat.S_ISUID:
            raise Unavailable(f"OpenPBS takes nothing from an ordinary user: chmod 4755 {programs / AUTHENTICATES}")
        self.programs = programs
        super().__init__(repository, host="pbshead")

    def _start(self) -> None:
        path = f"{self.programs}/bin:{self.programs}/sbin:{os.environ['PATH']}"
        self.environment |= {"PATH": path, "TMPDIR": "/tmp"}
        head, tail = self.hosts
        self.lay_cable(tail)
        self.must(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"])  # its database leaves files there
        self.must(["mkdir", "-m", "777", "/run/postgresql"])
        roles = "PBS_START_SERVER=1\nPBS_START_SCHED=1\nPBS_START_COMM=1\nPBS_START_MOM=0\n"
        conf = f"PBS_SERVER={head}\nPBS_EXEC={self.programs}\nPBS_HOME={HOME}\n{roles}"
        self.must(["bash", "-c", f"printf '{conf}' >/etc/pbs.conf"])
        # As its installation does: login shells, and so jobs, have its commands in PATH.
        self.must(["cp", str(self.programs / "etc/pbs.sh"), "/etc/profile.d/"])
        self.must(["unshare", "--ipc", str(self.programs / "libexec/pbs_habitat")])
        # Files are copied as on shared storage. Jobs of a box that was killed leave their temporary folders, by whose names
        # PBS would hold the next box's jobs.
        temporary = self.folder / "tmp"
        self.must(["mkdir", "-m", "1777", str(temporary)])
        self.must(["bash", "-c", f"printf '$usecp *:/ /\\n$tmpdir {temporary}\\n' >{HOME}/mom_priv/config"])
        self.must(["sed", "-i", 's/^resources: "/&ngpus, /', f"{HOME}/sched_priv/sched_config"])
        self.must(["pbs_comm"])
        self.start_server()
        self.qmgr("set server job_history_enable = True", "create resource ngpus type=long, flag=nh")
        self.must(["pbs_sched"])
        copies = self.folder / tail
        copied = " ".join(f"{HOME}/{name}" for name in OF_A_HOST)
        self.must(["bash", "-c", f"mkdir -m 755 {copies} && cp -a {copied} {copies}/"])
        self.must(["pbs_mom"])
        own_home = f"mount --bind {copies} {HOME} && exec pbs_mom"
        self.must(self.on_second_host(tail, f"exec unshare --mount sh -c '{own_home}'"))
        for host in self.hosts:
            self.qmgr(f"create node {host}", f"set node {host} resources_available.ncpus = 16")
            self.qmgr(f"set node {host} resources_available.ngpus = 4")
        self.until(["bash", "-c", "pbsnodes -a | grep -c 'state = free'"], "2")

    def qmgr(self, *directives: str) -> None:
        """Change the configuration of the server."""
        for directive in directives:
            self.must(["qmgr", "-c", directive])

    def start_server(self) -> None:
        """Start the server, and wait until it answers. Shared memory of its database ends with it."""
        self.must(["unshare", "--ipc", "pbs_server"])
        self.until(["bash", "-c", "qstat -B >/dev/null 2>&1 && echo up"], "up")

    def stop_server(self) -> None:
        """End the server; jobs go on."""
        self.must(["qterm", "-t", "quick"])
        self.until(["bash", "-c", "qstat -B 2>&1"], "cannot connect")

    def limit_queued_jobs_per_user(self, count: int) -> None:
        """Let each user have so many jobs, queued and running; 0 is no limit."""
        limit = f"set server max_queued = '[u:PBS_GENERIC={count}]'" if count else "unset server max_queued"
        self.qmgr(limit)
