"""The private parts of Snakemake that this executor touches: a release that changes one of them fails here, by its name."""

from __future__ import annotations

import inspect

import pytest
from snakemake.target_jobs import parse_target_jobs_cli_args
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.utils import TargetSpec, encode_target_jobs_cli_args


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


def test_a_wildcard_with_a_comma_cannot_be_read_back_so_this_executor_refuses_it() -> None:
    encoded = encode_target_jobs_cli_args([TargetSpec("a", {"n": "1", "m": "x,y"})])
    assert encoded == ['a:n=1,m="x,y"']
    with pytest.raises(ValueError, match="Unparsable value"):
        parse_target_jobs_cli_args(encoded)
