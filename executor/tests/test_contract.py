"""The private parts of Snakemake that this executor touches: a release that changes one of them fails here, by its name."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path

import pytest
from snakemake.jobs import GroupJob, Job
from snakemake.target_jobs import parse_target_jobs_cli_args
from snakemake.utils import read_job_properties
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.utils import TargetSpec, encode_target_jobs_cli_args, format_cli_arg

from snakemake_executor_plugin_multinode.jobscript import Script
from snakemake_executor_plugin_multinode.quoting import requoted


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


@pytest.mark.parametrize("value", ["plain", "it's", "a $HOME `x`", "with \"both' kinds"])
def test_command_lines_are_quoted_by_repr_and_so_can_be_requoted(value: str) -> None:
    assert format_cli_arg("--snakefile", value) == f"--snakefile {value!r}"
    if value != "with \"both' kinds":
        requoted(format_cli_arg("--snakefile", value), [value])


def test_a_wildcard_with_a_comma_cannot_be_read_back_so_this_executor_refuses_it() -> None:
    encoded = encode_target_jobs_cli_args([TargetSpec("a", {"n": "1", "m": "x,y"})])
    assert encoded == ['a:n=1,m="x,y"']
    with pytest.raises(ValueError, match="Unparsable value"):
        parse_target_jobs_cli_args(encoded)


def test_snakemake_reads_the_properties_of_a_job_script(tmp_path: Path) -> None:
    text = Script(
        name="job", title="title", properties='{"rule": "a", "threads": 2}', status_files=tmp_path, workdir=tmp_path, command="true",
        environment={}, path_first=Path("/bin"), runtime_min=None, setup=(), script=tmp_path / "job.sh",
    ).text()  # fmt: skip
    (tmp_path / "job.sh").write_text(text)
    assert read_job_properties(str(tmp_path / "job.sh")) == {"rule": "a", "threads": 2}
