"""`scalestudy doctor`: features and lacks of a site's nodes, with remedies."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalestudy.cluster.doctor.facts import facts_of
from scalestudy.cluster.doctor.findings import Finding, devices, differences, node_findings
from scalestudy.cluster.doctor.job import probe_in_job, reports_in, write_token
from scalestudy.cluster.doctor.probe import main as probe_here
from scalestudy.errors import UserError
from scalestudy.site_fault import site_file
from scalestudy.spec.config import read_machine, read_site
from scalestudy.spec.layout import machine_file
from snakemake_executor_plugin_multinode.schedulers import chosen_scheduler

Reports = list[dict[str, Any]]


def examine(name: str, profile: str, nodes: int, wait_s: float) -> tuple[Reports, list[Finding]]:
    """Reports of the nodes, and the findings. With a profile without a scheduler, this host is examined."""
    site, machine, file = read_site(), read_machine(name), machine_file(name)
    if site.scheduler is None:
        here = Finding(f"{profile} submits nothing: runs start on this machine, which is examined")
        with tempfile.TemporaryDirectory(prefix="scalestudy-doctor-") as folder:
            probe_here(Path(folder), write_token(Path(folder)), "0")
            reports = reports_in(Path(folder))
        return reports, [here, *node_findings(reports, 1, machine, file)]
    try:
        scheduler = chosen_scheduler(site)
    except ValueError as error:
        remedy = "go to a login node, load the scheduler's module, or use another profile"
        return [], [Finding(str(error), remedy)]
    facts = facts_of(scheduler.kind, scheduler.run, scheduler.on)
    findings, reports = [*differences(machine, file, scheduler.settings, site_file(), facts)], Reports()
    try:
        reports = probe_in_job(scheduler, machine, nodes, wait_s)
    except UserError as error:
        findings.insert(0, Finding(f"{error.where}: {error.what}", error.remedy))
    return reports, [*findings, *(node_findings(reports, nodes, machine, file) if reports else ())]


def text(reports: Sequence[Mapping[str, Any]], findings: Sequence[Finding]) -> str:
    """A paragraph per node, then the remedies."""
    lines = []
    for report in reports:
        torch, scratch, skew = report["torch"], report["scratch"], report["skew_s"]
        gpu = {"name": "none", **(report.get("gpu") or {})}
        parts = [gpu["name"]]
        if "capability" in gpu:
            parts.append(
                "sm_{}{}, torch holds {}".format(*gpu["capability"], " ".join(torch.get("arch") or ["nothing"]))
            )
        if "driver_cuda" in gpu:
            parts.append("driver for CUDA {}.{}".format(*gpu["driver_cuda"]))
        clock = "is not known" if skew is None else f"is {skew:+.1f} s from the storage's"
        lines += [
            f"{report['host']}:",
            f"  Python   {report['python']['version']}, {report['python']['executable']}",
            f"  torch    {torch.get('error') or torch['version']}, CUDA {torch.get('cuda') or 'none'}, NCCL {torch.get('nccl') or 'not in use'}",
            f"  GPUs     {devices(report)} seen by torch; NVML: {', '.join(parts)}",
            f"  MPI      {report['mpi'] or 'none'}; mpi4py {report['mpi4py'] or 'none'}",
            f"  node     {report['cores']} cores for this job, {report['memory_gib']} GiB",
            f"  fabric   {', '.join(report['fabric']) or 'loopback alone'}",
            f"  scratch  {scratch['folder']}: " + (scratch.get("error") or f"{scratch['free_gib']} GiB free"),
            f"  shared   {'sees' if report['shared'] else 'does not see'} this folder; its clock {clock}",
            *(f"  data     {name}: {'there' if there else 'missing'}" for name, there in report["data_roots"].items()),
        ]
    for finding in findings:
        lines.append(f"{'!' if finding.remedy else '-'} {finding.what}")
        lines += [f"    {finding.remedy}"] if finding.remedy else []
    if reports and not any(finding.remedy for finding in findings):
        lines.append("Nothing is missing.")
    return "\n".join(lines)
