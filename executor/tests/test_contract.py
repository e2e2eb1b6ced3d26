"""The private parts of Snakemake that this executor touches: a release that changes one of them fails here, by its name."""

from __future__ import annotations

import inspect
import json
import shlex
import threading
from pathlib import Path
from typing import Any

import pytest
from snakemake.jobs import GroupJob, Job
from snakemake.scheduling.job_scheduler import JobScheduler
from snakemake.target_jobs import parse_target_jobs_cli_args
from snakemake.utils import read_job_properties
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.utils import TargetSpec, encode_target_jobs_cli_args, format_cli_arg

from running import Cluster, drive
from snakemake_executor_plugin_multinode.jobscript import Script
from snakemake_executor_plugin_multinode.quoting import requoted

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
        "poll": executor.next_seconds_between_status_checks,
        "thread": executor.wait_thread.is_alive(),
        "waits": executor.wait,
        "lock": hasattr(executor.lock, "acquire"),
        "snakefile": str(executor.get_snakefile()),
        "main snakefile": str(workflow.main_snakefile),
        "jobs": [
            {
                "properties": json.loads(job.properties()),
                "resources": sorted(job.resources.keys()),
                "spec": [[spec.rulename, dict(spec.wildcards_dict)] for spec in job.get_target_spec()],
                "group": job.is_group(),
                "log": [str(file) for file in job.log],
                "waits for": [str(path) for path in job.get_wait_for_files()],
                "line": executor.format_job_exec(job),
            }
            for job in workflow.dag.needrun_jobs()
        ],
        "groups": [
            {
                "members": len(list(group.jobs)),
                "group": group.is_group(),
                "id": group.groupid,
                "output": sorted(str(path) for path in group.output),
                "all outputs": sorted(str(path) for path in group.expanded_output),
                "waits for": [str(path) for path in group.get_wait_for_files()],
                "spec": sorted([spec.rulename, dict(spec.wildcards_dict)] for spec in group.get_target_spec()),
                "line": executor.format_job_exec(group),
            }
            for group in {workflow.dag._group[job] for job in workflow.dag.needrun_jobs() if job.group}
        ],
    }

onstart:
    json.dump(seen(workflow), open("seen.json", "w"))

rule all:
    input: "1.b", "it's $x.c"
rule c:
    output: "{n}.c"
    shell: "touch {output:q}"
rule a:
    input: "of a.txt"
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
        (folder / "of a.txt").touch()
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
    ],
)
def test_a_driver_holds(seen: dict[str, Any], part: str, value: object) -> None:
    assert seen[part] == value


@pytest.mark.slow
def test_a_job_says_its_rule_its_wildcards_and_its_resources(seen: dict[str, Any]) -> None:
    jobs = {job["properties"]["rule"]: job for job in seen["jobs"] if job["properties"]["rule"] != "all"}
    assert jobs["b"]["properties"]["wildcards"] == {"n": "1"}
    assert jobs["b"]["spec"] == [["b", {"n": "1"}]]
    assert jobs["b"]["log"] == ["1.log"]
    assert {"mem_mb", "disk_mb", "tmpdir", "_cores", "_nodes"} <= set(jobs["b"]["resources"])


@pytest.mark.slow
def test_a_group_has_an_id_that_lasts_all_outputs_of_its_members_and_waits_for_what_it_reads(
    seen: dict[str, Any],
) -> None:
    [group] = seen["groups"]
    assert (group["members"], group["group"], group["id"]) == (2, True, "both")
    assert group["output"] == ["1.b"]
    assert group["all outputs"] == ["1.a", "1.b"]
    assert group["waits for"] == ["of a.txt"]
    assert group["spec"] == [["a", {"n": "1"}], ["b", {"n": "1"}]]


def words(line: str, known: list[str]) -> list[str]:
    """The words of a command line, as a shell reads them, after the values in it are quoted anew."""
    return shlex.split(requoted(line, known))


@pytest.mark.slow
def test_a_jobs_command_line_has_its_snakefile_and_its_target_as_values_that_can_be_requoted(
    seen: dict[str, Any],
) -> None:
    assert seen["snakefile"] == seen["main snakefile"]
    known = [seen["snakefile"], "word=2", str(Path(seen["snakefile"]).parent / "config.yaml"), *seen["config files"]]
    lines = {job["properties"]["rule"]: job for job in seen["jobs"]}
    encoded = encode_target_jobs_cli_args([TargetSpec("c", {"n": "it's $x"})])
    assert encoded == ["c:n=it's $x"]
    found = words(lines["c"]["line"], [*known, *encoded])
    assert found[found.index("--snakefile") + 1] == seen["snakefile"]
    assert found[found.index("--target-jobs") + 1] == encoded[0]
    assert found[found.index("--config") + 1] == "word=2"
    with pytest.raises(ValueError, match="cannot be handed on safely"):
        requoted(lines["c"]["line"], known)
    [group] = seen["groups"]
    found = words(group["line"], [*known, *group["waits for"]])
    at = found.index("--target-jobs")
    assert sorted(found[at + 1 : at + 3]) == ["a:n=1", "b:n=1"]


def test_a_rule_prints_the_message_of_its_failure_and_a_group_does_not(caplog: pytest.LogCaptureFixture) -> None:
    assert "msg" in inspect.signature(Job.log_error).parameters
    assert "self.get_log_error_info(msg, " in inspect.getsource(Job.log_error)
    group = inspect.getsource(GroupJob.log_error)
    assert "msg" not in group.partition("):")[2]  # so the executor says it


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
    spec = TargetSpec("a", {"n": "1", "m": "x=y"})
    assert encode_target_jobs_cli_args([spec]) == ["a:n=1,m=x=y"]
    assert parse_target_jobs_cli_args(encode_target_jobs_cli_args([spec])) == [spec]


def test_a_wildcard_with_a_comma_cannot_be_read_back_so_this_executor_refuses_it() -> None:
    encoded = encode_target_jobs_cli_args([TargetSpec("a", {"n": "1", "m": "x,y"})])
    assert encoded == ['a:n=1,m="x,y"']
    with pytest.raises(ValueError, match="Unparsable value"):
        parse_target_jobs_cli_args(encoded)


def test_snakemake_reads_the_properties_of_a_job_script(tmp_path: Path) -> None:
    text = Script(
        name="job", title="title", properties='{"rule": "a", "threads": 2}', status_files=tmp_path, workdir=tmp_path, command="true",
        environment={}, path_first=Path("/bin"), runtime_min=None, setup=(), wrapper=(), script=tmp_path / "job.sh",
    ).text()  # fmt: skip
    (tmp_path / "job.sh").write_text(text)
    assert read_job_properties(str(tmp_path / "job.sh")) == {"rule": "a", "threads": 2}
