"""The private parts of Snakemake that this executor touches: a release that changes one of them fails here, by its name."""

from __future__ import annotations

import inspect
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from snakemake.scheduling.job_scheduler import JobScheduler
from snakemake.utils import read_job_properties
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.utils import TargetSpec, encode_target_jobs_cli_args, format_cli_arg

from running import Cluster, drive
from snakemake_executor_plugin_multinode.jobscript import Script
from snakemake_executor_plugin_multinode.quoting import requoted
from snakemake_executor_plugin_multinode.resources import OF_SNAKEMAKE, known

SEEN = """
import json, threading

def seen(workflow):
    scheduler, settings = workflow.scheduler, workflow.scheduling_settings
    executor = scheduler._executor
    limit = settings.max_jobs_per_timespan
    return {
        "executor": type(executor).__module__,
        "limited": scheduler.job_rate_limiter is not None,
        "count": "_job_count" in scheduler.resources,
        "releases": callable(scheduler._open_jobs.release),
        "takes errors": callable(scheduler.executor_error_callback),
        "rate": [limit.max_jobs, limit.timespan],
        "latency": workflow.execution_settings.latency_wait,
        "config": list(workflow.config_settings.config_args),
        "config files": [str(file) for file in workflow.overwrite_configfiles],
        "limits": {name: str(value) for name, value in workflow.resource_settings.resources.items()},
        "poll": executor.next_seconds_between_status_checks,
        "thread": executor.wait_thread.is_alive(),
        "waits": executor.wait,
        "lock": hasattr(executor.lock, "acquire"),
        "jobs": [
            {
                "properties": json.loads(job.properties()),
                "resources": sorted(job.resources.keys()),
                "spec": [[spec.rulename, dict(spec.wildcards_dict)] for spec in job.get_target_spec()],
                "group": job.is_group(),
                "log": [str(file) for file in job.log],
            }
            for job in workflow.dag.needrun_jobs()
        ],
        "members": [len(list(workflow.dag._group[job].jobs)) for job in workflow.dag.needrun_jobs() if job.group],
    }

onstart:
    json.dump(seen(workflow), open("seen.json", "w"))

rule all:
    input: "1.b"
rule a:
    output: "{n}.a"
    group: "both"
    shell: "touch {output}"
rule b:
    input: "{n}.a"
    output: "{n}.b"
    log: "{n}.log"
    group: "both"
    resources: mem="300MB", disk="10MB"
    shell: "touch {output}"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the workflow below."""
    return tmp_path_factory.mktemp("contract")


@pytest.fixture
def seen(cluster: Cluster, folder: Path) -> dict[str, Any]:
    """What a running driver holds, noted once."""
    if not (folder / "seen.json").exists():
        (folder / "Snakefile").write_text(SEEN)
        (folder / "config.yaml").write_text("other: 1\n")
        words = (
            "--config",
            "word=2",
            "--configfile",
            "config.yaml",
            "--resources",
            "slots=3",
            "--seconds-between-status-checks",
            "7",
        )
        done = drive(folder, *words)
        assert done.returncode == 0, done.stdout
    return dict(json.loads((folder / "seen.json").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("executor", "snakemake_executor_plugin_multinode.executor"),  # `JobScheduler._executor`
        ("limited", True),  # ratelimit.py takes it away before the first job
        ("count", True),
        ("releases", True),
        ("takes errors", True),  # signals end a driver through it
        ("latency", 10),
        ("config", ["word=2"]),
        ("poll", 7),
        ("thread", True),  # it runs before `__post_init__` has
        ("waits", True),
        ("lock", True),
        ("members", [2, 2]),
    ],
)
def test_a_driver_holds(seen: dict[str, Any], part: str, value: object) -> None:
    assert seen[part] == value


@pytest.mark.slow
def test_a_driver_holds_limits_and_files(seen: dict[str, Any]) -> None:
    assert [Path(file).name for file in seen["config files"]] == ["config.yaml"]
    assert "slots" in seen["limits"]
    assert all(number > 0 for number in seen["rate"])


@pytest.mark.slow
def test_a_job_says_its_rule_its_wildcards_and_its_resources(seen: dict[str, Any]) -> None:
    jobs = {job["properties"]["rule"]: job for job in seen["jobs"] if job["properties"]["rule"] != "all"}
    assert jobs["b"]["properties"]["wildcards"] == {"n": "1"}
    assert jobs["b"]["spec"] == [["b", {"n": "1"}]]
    assert jobs["b"]["log"] == ["1.log"]
    assert {"mem_mb", "disk_mb", "tmpdir", "_cores", "_nodes"} <= set(jobs["b"]["resources"])
    assert {*OF_SNAKEMAKE, "mem_mb", "disk_mb"} >= set(jobs["b"]["resources"])
    assert all(known(name) for job in jobs.values() for name in job["resources"])


def test_a_remote_executor_has_the_members_that_are_overridden() -> None:
    assert isinstance(inspect.getattr_static(RemoteExecutor, "tmpdir"), property)
    assert isinstance(inspect.getattr_static(RemoteExecutor, "next_seconds_between_status_checks"), property)
    assert list(inspect.signature(RemoteExecutor.get_jobscript).parameters) == ["self", "job"]
    assert list(inspect.signature(RemoteExecutor.get_python_executable).parameters) == ["self"]
    assert inspect.iscoroutinefunction(RemoteExecutor.sleep)
    for name in (
        "cancel",
        "shutdown",
        "run_jobs",
        "format_job_exec",
        "envvars",
        "report_job_error",
        "report_job_success",
    ):
        assert callable(getattr(RemoteExecutor, name))


def test_an_error_in_the_executors_thread_reaches_the_scheduler() -> None:
    told: list[Exception] = []
    error = RuntimeError("boom")

    class Broken:
        """What the thread of a remote executor uses."""

        async def _wait_for_jobs(self) -> None:
            raise error

        class workflow:
            class scheduler:
                executor_error_callback = staticmethod(told.append)

    thread = threading.Thread(target=RemoteExecutor._wait_thread, args=(Broken(),))
    thread.start()
    thread.join(10)
    assert told == [error]


def test_the_scheduler_goes_another_round_when_it_is_told_of_free_places() -> None:
    assert list(inspect.signature(JobScheduler.executor_error_callback).parameters) == ["self", "exception"]
    source = inspect.getsource(JobScheduler)
    assert "self._open_jobs.acquire()" in source
    assert "if self.job_rate_limiter is None" in source or "self.job_rate_limiter is not None" in source


@pytest.mark.parametrize("value", ["plain", "it's", "a $HOME `x`", "with \"both' kinds"])
def test_command_lines_are_quoted_by_repr_and_so_can_be_requoted(value: str) -> None:
    assert format_cli_arg("--snakefile", value) == f"--snakefile {value!r}"
    if value != "with \"both' kinds":
        requoted(format_cli_arg("--snakefile", value), [value])


def test_targets_are_encoded_as_their_rule_and_wildcards() -> None:
    assert encode_target_jobs_cli_args([TargetSpec("a", {"n": "1", "m": "x,y"})]) == ['a:n=1,m="x,y"']


def test_snakemake_reads_the_properties_of_a_job_script(tmp_path: Path) -> None:
    text = Script(
        name="job", title="title", properties='{"rule": "a", "threads": 2}', status_files=tmp_path, workdir=tmp_path, command="true",
        environment={}, path_first=Path("/bin"), runtime_min=None, setup=(), wrapper=(), script=tmp_path / "job.sh",
    ).text()  # fmt: skip
    (tmp_path / "job.sh").write_text(text)
    assert read_job_properties(str(tmp_path / "job.sh")) == {"rule": "a", "threads": 2}
