"""Clients of a warm server: when they use one, and what they print when it is gone."""

from __future__ import annotations

import os

import pytest

from scalestudy import processes
from scalestudy.launch import warm


def test_a_server_is_shared_by_one_drivers_runs_whose_libraries_were_loaded_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = warm._address()
    monkeypatch.setenv("SCALESTUDY_SITE", "x")  # goes with the request
    assert warm._address() == before
    with monkeypatch.context() as patch:
        patch.setenv("OMP_PROC_BIND", "spread")
        assert warm._address() != before
    monkeypatch.setenv(processes.DRIVER, "1:1")
    assert warm._address() != before


def test_only_a_run_under_a_driver_of_this_machine_and_in_no_job_uses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processes.DRIVER, processes.identity(os.getpid()) or "")
    assert warm.is_wanted()
    for name, value in (("SCALESTUDY_WARM", "0"), ("SLURM_JOB_ID", "7"), (processes.DRIVER, "")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert not warm.is_wanted()
