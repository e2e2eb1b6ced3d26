"""The executor as Snakemake sees it: jobs go in, successes and failures come out."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shlex
import signal
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase
from snakemake_interface_executor_plugins.utils import encode_target_jobs_cli_args

from snakemake_executor_plugin_multinode import jobscript
from snakemake_executor_plugin_multinode.decide import Limits
from snakemake_executor_plugin_multinode.driverlock import DriverLock, Taken
from snakemake_executor_plugin_multinode.job import MonitoredJob
from snakemake_executor_plugin_multinode.jobscript import requoted
from snakemake_executor_plugin_multinode.monitor import JobMonitor, counted
from snakemake_executor_plugin_multinode.ratelimit import drop_job_rate_limit
from snakemake_executor_plugin_multinode.records import Records, job_key
from snakemake_executor_plugin_multinode.resources import of_group, request_of, state_file
from snakemake_executor_plugin_multinode.schedulers import Request, chosen_scheduler
from snakemake_executor_plugin_multinode.site import read_site
from snakemake_executor_plugin_multinode.software import python_of

FOLDER = ".multinode"
"""Of the working directory: records, job scripts, their output, the driver's lock."""
FOLDER_VARIABLE, BUDGET_VARIABLE = "MULTINODE_FOLDER", "MULTINODE_BUDGET_GPU_HOURS"
"""By these a workflow sets another folder and a budget: its Snakefile is read before this executor is made."""
MIN_POLL_S = 1.0
"""Between two queries of the scheduler, however often Snakemake would have them."""
SUBMISSIONS_PER_S = 10.0
"""Upper limit, also where Snakemake's own limit allows more."""
REMEDY = "Fix this, then run the same command again"
MARKED = {"multinode": True}
"""Marks our log records: the progress display shows them, and hides Snakemake's own."""


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """`--multinode-site` on the command line, `multinode-site` in a profile."""

    site: Path | None = field(
        default=None, metadata={"help": "YAML file whose section `scheduler` says how jobs are submitted", "type": Path}
    )


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_envvar_declarations_to_cmd=False,  # the job script exports them, quoted
    auto_deploy_default_storage_provider=False,
    pass_group_args=True,
)


class Executor(RemoteExecutor):
    """One driver: reads the site, takes the folder's lock, and runs a `JobMonitor`."""

    def __post_init__(self) -> None:
        try:
            self._begin()
        except (Taken, ValueError) as error:  # below a WorkflowError Snakemake would print the frames of a traceback
            raise SystemExit(f"multinode: {error}") from None
        except OSError as error:
            message = f"{self.folder} cannot be written: {error.strerror}; nothing was submitted"
            raise SystemExit(f"multinode: {message}. {REMEDY}") from None

    def _begin(self) -> None:
        settings = self.executor_settings
        self.folder = Path(os.environ.get(FOLDER_VARIABLE) or FOLDER).absolute()
        self.site = read_site(settings.site)
        try:
            self.scheduler = chosen_scheduler(self.site)
        except ValueError as error:
            raise ValueError(f"{settings.site}: {error}" if settings.site else str(error)) from None
        self.folder.mkdir(parents=True, exist_ok=True)
        self.driver_lock = DriverLock(self.folder)
        before = self.driver_lock.take()
        atexit.register(self.driver_lock.release)
        if before is not None:
            self.warn(f"process {before.pid} on {before.host} is gone; what it submitted is adopted")
        rate = self.workflow.scheduling_settings.max_jobs_per_timespan
        latency_s = float(self.workflow.execution_settings.latency_wait)
        limits = Limits(
            poll_s=max(MIN_POLL_S, float(self.next_seconds_between_status_checks)),
            settle_s=max(15.0, latency_s),
            lost_s=max(30.0, latency_s),
            per_s=SUBMISSIONS_PER_S if rate is None else min(SUBMISSIONS_PER_S, rate.max_jobs / rate.timespan),
            budget_gpu_hours=budget(),
        )
        records = Records(self.folder, self.driver_lock.taken_ns)
        self.monitor = JobMonitor(self.scheduler, records, self, limits, str(settings.site))
        self.open: dict[int, SubmittedJobInfo] = {}
        self.prepared = False
        self.interruptible = False
        """Whether this executor handles SIGINT."""

    # what Snakemake calls

    @property
    def tmpdir(self) -> str:
        """Where job scripts lie: they outlive the driver, so not in its own temporary folder."""
        return str(self.folder)

    def get_python_executable(self) -> str:
        """The site's, or this one; quoted, in contrast to Snakemake's own."""
        return shlex.quote(python_of(self.site) or super().get_python_executable())

    def get_jobscript(self, job: JobExecutorInterface) -> str:
        """A path by the job's identity: Snakemake's numbers of jobs change from one driver to the next."""
        folder = self.folder / "jobs" / self._key(job)
        folder.mkdir(exist_ok=True)
        return str(folder / "job")

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Follow these jobs; submissions are made one after the other in the monitor's thread."""
        if not self.prepared:
            self.prepared = True
            drop_job_rate_limit(self.workflow.scheduler)
            self._listen()
        super().run_jobs(jobs)

    def run_job(self, job: JobExecutorInterface) -> None:
        """Adopt an earlier submission of this job, or submit it."""
        info = SubmittedJobInfo(job)
        work = self._work(job, info)
        self.open[id(info)] = info
        self.report_job_submission(info)
        self.waits(work, "to be submitted")
        self.monitor.add(work)

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Check all jobs, independently of Snakemake's own list."""
        if not hasattr(self, "open"):  # Snakemake starts its thread before this executor is ready
            for info in active_jobs:
                yield info
            return
        if not self.driver_lock.keep():
            raise WorkflowError(
                "another driver took this folder over while this one was silent; its jobs continue there"
            )
        self.monitor.round()
        for info in active_jobs:
            if id(info) in self.open:
                yield info

    async def sleep(self) -> None:
        """Wait until something may have changed."""
        if hasattr(self, "open"):
            self.monitor.pause()
        else:
            await asyncio.sleep(0.05)

    def cancel(self) -> None:
        """Ctrl-C: the thread comes to rest, then all followed submissions are deleted, also those unknown to Snakemake.

        Another Ctrl-C would tear the deletion apart: it is ignored until the jobs are deleted.
        """
        if self.interruptible:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if jobs := self.monitor.submitted():
                doing = f"cancelling {counted(len(jobs))}; this may take a while"
                self.warn(f"multinode: {doing}. The same command resumes")
            self._rest()
            self.monitor.cancel_all()
            self.shutdown()
        finally:
            if self.interruptible:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Part of `cancel`."""

    def shutdown(self) -> None:
        """Shut the driver down. Its folder remains: jobs may need it."""
        self._rest()
        self.driver_lock.release()

    def _rest(self) -> None:
        """Stop submitting and deciding; wait for a submission in progress, or its id would be lost."""
        self.monitor.stopping.set()
        with self.lock:
            self.wait = False
        self.monitor.wake.set()
        if threading.current_thread() is not self.wait_thread:
            self.wait_thread.join()

    # what the monitor tells

    def say(self, text: str) -> None:
        """Something a person may want to know."""
        self.logger.info(text, extra=MARKED)

    def warn(self, text: str) -> None:
        """Something a person should know."""
        self.logger.warning(text, extra=MARKED)

    def waits(self, job: MonitoredJob, reason: str) -> None:
        """A job waits, for this reason; without a reason it runs.

        Told to displays that know `multinode_waits`; the message is empty, which Snakemake's own display leaves out.
        """
        job_or_group = job.handle.job
        for member in job_or_group.jobs if job_or_group.is_group() else [job_or_group]:
            self.logger.info("", extra={"multinode_waits": (member.jobid, reason)})

    def succeeded(self, job: MonitoredJob) -> None:
        """A job is done."""
        self.report_job_success(self._done(job))

    def failed(self, job: MonitoredJob, why: str) -> None:
        """A job has failed."""
        info = self._done(job)
        if info.job.is_group():  # Snakemake leaves the message of a group out
            self.logger.error(f"{job.label}: {why}", extra=MARKED)
        self.report_job_error(info, msg=f"{why} ")

    def _done(self, job: MonitoredJob) -> SubmittedJobInfo:
        info: SubmittedJobInfo = job.handle
        info.external_jobid = job.id if job.record.attempts else None
        del self.open[id(info)]
        return info

    # jobs

    def _key(self, job: JobExecutorInterface) -> str:
        outputs = [str(path) for path in job.output]
        if job.is_group():  # its id may be a random one, and its members depend on what is there already
            return job_key("group", outputs, "")
        return job_key(job.name, outputs, str(job.get_target_spec()))

    def _work(self, job: JobExecutorInterface, info: SubmittedJobInfo) -> MonitoredJob:
        """Everything that the monitor needs to know about a job, read here, in Snakemake's own thread."""
        resources, threads = dict(job.resources.items()), job.threads
        members = resources_of_members(job) if job.is_group() else None
        if job.is_group():
            rule = "_".join(sorted({member.name for member in job.jobs}))
            words = sorted(str(path) for path in job.output)[:1]
        else:
            (target,) = job.get_target_spec()
            rule, words = job.name, [str(value) for value in target.wildcards_dict.values()]
        label = " ".join([rule, *words])
        state: Path | None = None
        request: Request | None = None
        refusal = ""
        try:
            if members is None:
                state = state_file(resources, Path(str(job.output[0])).parent if job.output else Path())
            effective_resources = resources if members is None else of_group(resources, members, self.scheduler.kind)
            request = request_of(effective_resources, threads, self.scheduler.kind)
        except ValueError as error:
            refusal = str(error)
        command: str | None = None
        with contextlib.suppress(OSError, ValueError):  # tried again, and told, when it is submitted
            command = self._command(job)

        def write_script(request: Request) -> None:
            environment = dict(self.envvars())
            if "PYTHONPATH" in os.environ:  # by which this driver found its plugins; the job's Snakemake needs them too
                environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
            words = command or self._command(job)
            marks = self.monitor.files.folder
            jobscript.write_script(request, self.site, marks, label, words, environment)

        return MonitoredJob(
            handle=info,
            key=self._key(job),
            label=label,
            rule=rule,
            wildcards=() if job.is_group() else tuple(words),
            request=request,
            refusal=refusal,
            write_script=write_script,
            state_file=state,
            outputs=tuple(str(path) for path in (job.output if members is None else job.expanded_output)),
        )

    def _command(self, job: JobExecutorInterface) -> str:
        """The shell line that runs one job with Snakemake. ValueError where there can be none, OSError for a full disk."""
        for spec in job.get_target_spec():
            for name, value in spec.wildcards_dict.items():
                if "," in str(value):
                    message = f"the wildcard `{name}` of rule {spec.rulename} is {value!r}"
                    raise ValueError(f"{message}: Snakemake cannot hand on a comma to a job")
        values = [str(self.get_snakefile()), self.tmpdir, *encode_target_jobs_cli_args(job.get_target_spec())]
        values += [str(path) for path in job.get_wait_for_files()]
        values += [str(value) for value in self.workflow.config_settings.config_args or ()]
        values += [str(path) for path in self.workflow.overwrite_configfiles or ()]
        return requoted(self.format_job_exec(job), values)

    # signals

    def _listen(self) -> None:
        """TERM, XCPU, and HUP where it is not ignored: leave at once, and let the jobs continue; INT cancels them.

        A driver is sent TERM where its own batch job or its login node ends, and XCPU where a login node limits the time
        of the processor; its jobs have their own walltime, and the same command started again adopts them.
        """
        try:
            signal.signal(signal.SIGTERM, self._leave)
            signal.signal(signal.SIGXCPU, self._leave)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._interrupt_once)
                self.interruptible = True
            if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
                signal.signal(signal.SIGHUP, self._leave)
        except ValueError:  # not the main thread
            pass

    def _interrupt_once(self, number: int, frame: Any) -> None:
        """Handle the first Ctrl-C: `cancel` follows, which no other may interrupt."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.default_int_handler(number, frame)

    def _leave(self, number: int, _frame: Any) -> None:
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)  # it comes again each second
        # At its end Snakemake removes empty folders; a job that goes on may have made its own a moment ago.
        self.workflow.dag.cleanup_workdir = lambda: None
        stopped = DriverStopped(
            f"{signal.Signals(number).name}: this driver exits and leaves {counted(len(self.monitor.submitted()))} "
            "with the scheduler. The same command adopts them."
        )
        # From another thread: the interrupted one may hold the scheduler's lock.
        threading.Thread(target=self.workflow.scheduler.executor_error_callback, args=(stopped,)).start()


def resources_of_members(group: Any) -> list[dict[str, Any]]:
    """The resources of each job of a group, less those that are read off files which the group itself makes."""
    resources = []
    for member in group.jobs:
        with contextlib.suppress(FileNotFoundError):
            resources.append(dict(member.resources.items()))
    return resources


def budget() -> float | None:
    """GPU hours that all jobs of this folder may use, by MULTINODE_BUDGET_GPU_HOURS."""
    text = os.environ.get(BUDGET_VARIABLE)
    try:
        return float(text) if text else None
    except ValueError:
        raise ValueError(f"{BUDGET_VARIABLE} must be a number of GPU hours, not {text!r}") from None


class DriverStopped(WorkflowError):
    """The driver was told to exit."""
