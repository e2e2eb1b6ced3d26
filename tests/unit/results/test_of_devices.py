"""Energy, power and utilisation of a run's window, from samples of its hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scalestudy.results import result
from scalestudy.results.records import HostFacts, facts_of_hosts
from scalestudy.training.job import Job
from scalestudy.training.report import Report
from tests.unit import test_training as training


def job(folder: Path, hosts: tuple[str, ...] = ("a",)) -> Job:
    run = training.spec(strategy="allreduce", ranks=2, batch={"per_rank": 8})
    return training.job(run, folder, hosts, device="cuda", devices=2)


TRAINED = 8 * 2 * 8
"""Samples of eight steps."""
QUIET = {"busy_s": 0.0, "cpu_s": 0.0, "cores": 2.0}


def reports(clocks: tuple[float, float] | None = (1.0, 3.0)) -> list[Report]:
    return [Report(rank, window_clock=clocks) for rank in range(2)]


def samples(node: int, watts: float, throttle: float = 0.0) -> list[dict[str, float]]:
    """One a second for five seconds, at a constant power."""
    return [
        {**QUIET, "node": node, "clock_s": float(second), "devices": 1.0, "device_utilisation": 0.9, "device_power_w": watts,
         "device_energy_j": 1000.0 + watts * second, "device_throttle": throttle}
        for second in range(5)
    ]  # fmt: skip


OF_DEVICES = ("device_utilisation", "device_power_w", "j_per_sample")


def of_devices(
    job: Job, rows: list[dict[str, float]], reports: list[Report]
) -> tuple[dict[str, float | None], list[str]]:
    found: HostFacts = facts_of_hosts(job, rows, reports, TRAINED)
    return {name: found.values[name] for name in OF_DEVICES}, found.warnings


def test_the_energy_of_the_window_is_divided_by_the_samples_trained_in_it(tmp_path: Path) -> None:
    values, warnings = of_devices(job(tmp_path), samples(0, 320.0), reports())
    # 320 W for 2 s, over 8 steps of 16 samples.
    assert values == {"device_utilisation": 0.9, "device_power_w": 320.0, "j_per_sample": pytest.approx(5.0)}
    assert warnings == []


def test_the_energy_of_a_resumed_run_is_divided_by_the_samples_of_its_last_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 24 steps in the window, 8 were made after the stop; the host's clock is that of these."""

    class Seen(Exception):
        pass

    def metrics(*given: Any) -> None:
        raise Seen(given[-1])

    made = [replace(report, window_usage_steps=8) for report in reports()]
    measured = SimpleNamespace(reports=made, in_window=np.ones(24, bool))
    monkeypatch.setattr(result, "read_reports", lambda job: measured)
    monkeypatch.setattr(result, "metrics", metrics)
    with pytest.raises(Seen) as seen:
        result.measured_result(job(tmp_path), None, 1.0, None, tmp_path, samples(0, 320.0))  # type: ignore[arg-type]
    assert seen.value.args[0]["j_per_sample"] == pytest.approx(5.0)


def test_of_utilisation_the_share_of_seconds_counts_not_the_mean_alone(tmp_path: Path) -> None:
    rows = samples(0, 320.0)
    for row, used in zip(rows, (0.0, 0.95, 0.1, 0.6, 0.0), strict=True):
        row |= {"device_utilisation": used, "device_memory_bytes": used * 2**30}
        row |= {"device_processes": 4.0 if used == 0.6 else 1.0}
        row |= {"busy_s": row["clock_s"], "host_disk_busy_s": row["clock_s"] / 4}
    values, warnings = vars(facts_of_hosts(job(tmp_path), rows, reports(), TRAINED)).values()
    assert warnings == [
        "disturbed: other processes took 50% of the cores during the window, more than 5%",
        "2 other processes computed on the run's devices in the window",
    ]
    # The window is from second 1 to second 3.
    assert values["device_utilisation"] == pytest.approx(0.55)
    assert values["device_idle_share"] == values["device_busy_share"] == pytest.approx(1 / 3)
    assert values["device_processes"] == 4
    assert values["device_used_mib"] == pytest.approx(0.95 * 1024)
    # One of two cores, and a disk for a quarter of the time.
    assert (values["cpu_utilisation"], values["disk_utilisation"]) == pytest.approx((0.5, 0.25))


@pytest.mark.parametrize(("withheld_per_s", "words"), [(0.0, []), (0.004, []), (0.25, ["withheld 20%"])])
def test_cpu_time_that_a_quota_withheld_in_the_window_is_warned_of(
    tmp_path: Path, withheld_per_s: float, words: list[str]
) -> None:
    rows = [
        row | {"cpu_s": row["clock_s"], "quota_throttled_s": 7 + withheld_per_s * row["clock_s"]}
        for row in samples(0, 1.0)
    ]
    warnings = facts_of_hosts(job(tmp_path), rows, reports(), TRAINED).warnings
    assert [word in warning for word, warning in zip(words, warnings, strict=True)] == [True] * len(words)


def test_without_samples_or_window_or_of_one_host_that_does_not_know_nothing_is_known(tmp_path: Path) -> None:
    assert set(of_devices(job(tmp_path), [], reports())[0].values()) == {None}
    assert set(of_devices(job(tmp_path), samples(0, 1.0), reports(None))[0].values()) == {None}
    rows = [*samples(0, 320.0), *({**QUIET, "node": 1, "clock_s": float(second)} for second in range(5))]
    values, _ = of_devices(job(tmp_path, ("a", "b")), rows, reports())
    assert set(values.values()) == {None}


def test_a_clock_that_was_held_down_and_devices_that_were_not_measured_are_said(tmp_path: Path) -> None:
    (tmp_path / "unmeasured.0").write_text("not measured: there is no library", encoding="utf-8")
    _, warnings = of_devices(job(tmp_path), samples(0, 320.0, throttle=4.0), reports())
    assert warnings == [
        "the device clocks were throttled in the window: power cap (100% of samples)",
        "not measured: there is no library",
    ]
