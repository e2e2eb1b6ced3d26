"""Assembles the result of a run: result.json, and the tables that accompany it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scalestudy.data.manifest import Manifest
from scalestudy.measure.instrument import debug_warnings, instrument
from scalestudy.results.metrics import Values, intervals, kinds, metrics
from scalestudy.results.records import HostFacts, facts_of_hosts, read_reports, staleness, write_steps
from scalestudy.results.transports import mpi_transports, transports_named
from scalestudy.results.validity import RunEvidence, invalid_reason, unchecked
from scalestudy.results.warnings import pause_warnings, warnings, window_warnings
from scalestudy.spec.columns import columns_of
from scalestudy.spec.run import RunSpec, emulated_parts
from scalestudy.training.job import Job
from scalestudy.training.report import Report


def skipped(spec: RunSpec, reason: str) -> dict[str, Any]:
    """The result of a run that cannot be made here."""
    emulated = bool(emulated_parts([columns_of(spec)]))
    return {"status": "skipped", "reason": reason, "metrics": {}, "kinds": {}, "emulated": emulated}


def measured_result(
    job: Job,
    manifest: Manifest,
    wall_s: float,
    memory_bytes: float | None,
    folder: Path,
    samples: Sequence[Mapping[str, float]] = (),
) -> dict[str, Any]:
    """The result of a run after all processes ended well; writes steps.parquet into `folder`.

    `samples` are the use of the hosts' processes, second by second.
    """
    measured = read_reports(job)
    reports, first = measured.reports, measured.reports[0]
    # Its energy is that of the last attempt's window.
    hosts = facts_of_hosts(job, samples, reports, first.window_usage_steps * job.spec.global_batch)
    at_ends = [row["anonymous_bytes"] for report in reports for row in report.host_rows]
    memory_bytes = max([memory_bytes, *at_ends]) if memory_bytes is not None else None
    values = metrics(job, measured, manifest, wall_s, memory_bytes, hosts.values)
    if job.spec.measure.trace_steps:
        from scalestudy.results.timeline import write_timeline  # imports torch, which this process does without

        values |= write_timeline(job, folder)
    evidence = RunEvidence(job, measured, values, manifest)
    write_steps(measured, folder / "steps.parquet")
    return {
        **outcome(job, invalid_reason(evidence), values, hosts),
        "unchecked": unchecked(evidence),
        "kinds": kinds(job.spec, values),
        "intervals": intervals(job, measured, manifest, hosts.disturbed),
        "emulated": bool(emulated_parts([columns_of(job.spec)])),
        "evaluations": [evaluation.to_dict() for evaluation in first.evaluations],
        "checkpoints": [cost.to_dict() for cost in first.checkpoints],
        "steps_done": first.steps_done,
        "samples_seen": sum(report.samples_seen for report in reports),
        "resolved": resolved_settings(job, first),
        "instrument": {
            **instrument(first.device_name),
            **first.host,
            "decoder": " / ".join(evidence.decoders),
            **transports_named(job, first.backend, first.interface, evidence.transports or mpi_transports(job)),
            "data": manifest.fingerprint[:12],
            **{name: digest[:12] for name, digest in first.imported.items()},
        },
        "affinity": [report.affinity for report in reports],
        "warnings": [
            *warnings(job, reports, evidence.transports),
            *window_warnings(measured),
            *pause_warnings(measured, samples),
            *hosts.warnings,
            *debug_warnings(os.environ),
        ],
        "staleness": staleness(job),
        "faults": dict(sum((Counter(report.faults) for report in reports), Counter())),
    }


def outcome(job: Job, reason: str | None, values: Values, hosts: HostFacts) -> dict[str, Any]:
    """What results of all kinds of runs have in common."""
    return {
        "status": "valid" if reason is None else "invalid",
        "reason": reason,
        "metrics": values,
        "disturbed": hosts.disturbed,
        "oversubscribed": is_oversubscribed(job),
        "faults": {},
    }


def is_oversubscribed(job: Job) -> bool:
    """Whether ranks and servers of a host compute with more threads than it has cores, or ranks share its accelerators."""
    resolved = job.resolved
    if job.shares_devices:
        return True
    if resolved.step_time_s is not None or resolved.device != "cpu":
        return False
    return len(job.on_host(0)) * resolved.threads_per_rank > resolved.cores  # servers are dealt from host 0 on


def resolved_settings(job: Job, report: Report) -> dict[str, Any]:
    """Settings that the machine resolved."""
    network = job.spec.network
    latency = f" and {network.latency_ms:g} ms" if network and network.latency_ms else ""
    return {
        **asdict(job.resolved),
        "tf32": report.tf32,
        "backend": report.backend,
        "network": None if network is None else f"emulated, {network.mib_per_s:g} MiB/s{latency} per node",
    }
