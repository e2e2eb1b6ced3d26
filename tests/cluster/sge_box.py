"""Grid Engine in a box: two execution hosts of 32 slots and 8 GPUs each. Slots and GPUs are a fiction, the hosts are not:
each has a network namespace and a host name of its own, and the daemons talk over a cable between them.
"""

from __future__ import annotations

import math
import re
import time
from pathlib import Path

from tests.cluster.box import Box, Unavailable
from tests.cluster.pbs_box import installation

DAEMONS = Path("/usr/sbin/sge_qmaster"), Path("/usr/sbin/sge_execd")
ROOT = "/var/lib/gridengine"
MASTER_PID = "/var/spool/gridengine/qmaster/qmaster.pid"
MASTER_ENDS_S = 60.0
"""Seconds that the master has to end by itself; it usually takes two."""


class SgeBox(Box):
    """A box with a running Grid Engine."""

    def __init__(self, repository: Path) -> None:
        if not all(path.exists() for path in DAEMONS):
            raise Unavailable("needs Grid Engine (envs/debian-packages.txt)")
        if installation() is not None:
            raise Unavailable("PATH has PBS's commands of the same names first")
        super().__init__(repository, host="sgehead")

    def _start(self) -> None:
        self.environment |= {"SGE_ROOT": ROOT, "SGE_CELL": "default"}
        self.lay_cable("sgetail")
        self.must(["mkdir", "-p", "/run/gridengine"])
        self.must(["chown", "-R", "sgeadmin:", "/run/gridengine", ROOT, "/var/spool/gridengine"])
        self.must(["bash", "-c", f"echo sgehead >{ROOT}/default/common/act_qmaster"])
        self.start_master()
        # Whether these are there already depends on what was installed when.
        self.run(["runuser", "-u", "sgeadmin", "--", "env", f"SGE_ROOT={ROOT}", "qconf", "-am", "root"])
        self.run(["qconf", "-ah", "sgehead,sgetail"])
        self.run(["qconf", "-as", "sgehead"])
        self._configured("-Mc", ["qconf", "-sc"], lambda text: text + COMPLEXES, "complexes")
        for host in ("sgehead", "sgetail"):
            self._configured("-Ae", None, lambda _, host=host: HOST.format(host=host), "host")
        for name, rule in (("mpi", "$fill_up"), ("two", "2")):
            self._configured(
                "-Ap", None, lambda _, name=name, rule=rule: ENVIRONMENT.format(name=name, rule=rule), "pe"
            )
        self._configured("-Ahgrp", None, lambda _: "group_name @allhosts\nhostlist sgehead sgetail\n", "group")
        self._configured("-Aq", ["qconf", "-sq"], _queue, "queue")
        self._configured("-Msconf", ["qconf", "-ssconf"], _scheduler, "sched")
        self._configured("-Mconf", ["qconf", "-sconf", "global"], _global, "global")
        # By these group numbers a host finds the processes of a job that is over; the two hosts see one another's.
        self._configured("-Aconf", None, lambda _: "gid_range 30000-30100\n", "sgetail")
        self.must(["sge_execd"])
        self.must(self.on_second_host("sgetail", "exec sge_execd"))
        self.until(["bash", "-c", "qstat -f | grep -c lx-amd64"], "2")

    def _configured(self, option: str, shown: list[str] | None, change: object, name: str) -> None:
        """Change one of Grid Engine's own configuration texts, without its editor."""
        text = self.must(shown) if shown else ""
        file = self.folder / name
        file.write_text(change(text))  # type: ignore[operator]
        self.must(["qconf", option, str(file)])

    def start_master(self) -> None:
        """Start the master, and wait until it answers."""
        self.must(["sge_qmaster"])
        self.until(["bash", "-c", "qconf -sh >/dev/null 2>&1 && echo up"], "up")

    def limit_jobs_per_user(self, count: int) -> None:
        """Let each user have so many jobs, queued and running; 0 is no limit."""
        self._configured(
            "-Mconf", ["qconf", "-sconf", "global"], lambda text: _set(text, max_u_jobs=str(count)), "global"
        )

    def kill_job_script(self, job: str) -> None:
        """SIGKILL to a job's script alone."""
        self.kill_script(f"/job_scripts/{job}", "sge_shepherd")

    def stop_master(self) -> None:
        """Stop the master; jobs continue. With SIGKILL at once it loses jobs that were submitted a moment before.

        Now and then it does not end by itself. It is killed after MASTER_ENDS_S, as an init system does: by then its
        database has what was submitted before.
        """
        pid = self.must(["cat", MASTER_PID]).strip()
        self.must(["kill", pid])
        deadline = time.monotonic() + MASTER_ENDS_S
        while self._runs(pid):
            if time.monotonic() > deadline:
                print(self.must(["ps", "-L", "-o", "pid,stat,wchan:30,comm", "-p", pid]))
                self.must(["kill", "-KILL", pid])
                deadline = math.inf
            time.sleep(0.2)

    def _runs(self, pid: str) -> bool:
        """Whether a process is there; one that has ended and waits for its parent is not."""
        state = self.run(["ps", "-o", "stat=", "-p", pid], folder=Path("/")).stdout.strip()
        return bool(state) and not state.startswith("Z")


COMPLEXES = """\
gpu gpu INT <= YES YES 0 0
exclusive excl BOOL EXCL YES YES 0 1000
"""
HOST = """\
hostname {host}
load_scaling NONE
complex_values gpu=8,exclusive=true
user_lists NONE
xuser_lists NONE
projects NONE
xprojects NONE
usage_scaling NONE
report_variables NONE
"""
ENVIRONMENT = """\
pe_name {name}
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args /bin/true
stop_proc_args /bin/true
allocation_rule {rule}
control_slaves TRUE
job_is_first_task FALSE
urgency_slots min
accounting_summary TRUE
qsort_args NONE
"""


def _queue(template: str) -> str:
    text = _set(template, qname="all.q", hostlist="@allhosts", slots="32", pe_list="mpi two", shell="/bin/bash")
    return _set(text, load_thresholds="NONE")


def _scheduler(text: str) -> str:
    return _set(text, schedule_interval="0:0:1", flush_submit_sec="1", flush_finish_sec="1")


def _global(text: str) -> str:
    # As where an init system starts the daemons, jobs do not see the environment of whoever runs the tests.
    text = _set(text, min_uid="0", min_gid="0", execd_params="ENABLE_ADDGRP_KILL=true,INHERIT_ENV=false")
    return re.sub(r"flush_time=\S+", "flush_time=00:00:01", text.replace("\\\n", " "))


def _set(text: str, **values: str) -> str:
    for key, value in values.items():
        text = re.sub(rf"^{key}\s+.*$", f"{key} {value}", text, flags=re.MULTILINE)
    return text
