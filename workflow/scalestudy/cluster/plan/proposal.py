"""The page of an application for computing time, in Markdown: `pandoc page.md -o page.pdf` typesets it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path

import jinja2

from scalestudy.cluster.plan.planned import Plan, PlannedJob, Unit
from scalestudy.cluster.plan.show import minutes, notes
from scalestudy.errors import UserError
from scalestudy.spec.study import Study


def proposal(plan: Plan, studies: Sequence[Study], today: date) -> str:
    """The page; `studies` have the questions. UserError where nothing would be submitted."""
    if not plan.submitted:
        raise UserError("nothing would be submitted: all runs and datasets exist", "--proposal", "plan other studies")
    unit: Unit = "gpu" if plan.total.gpu[0] else "node"
    _, median, high = plan.percentiles(plan.submitted, unit)
    unknown = plan.hours(sum(getattr(job.amounts, unit)[0] for job in plan.unknown))
    by_study: dict[str, list[PlannedJob]] = {}
    by_nodes: dict[int, list[PlannedJob]] = {}
    for job in plan.submitted:
        by_study.setdefault(job.study, []).append(job)
        by_nodes.setdefault(job.resources.nodes, []).append(job)
    template = jinja2.Template(
        Path(__file__).with_suffix(".md.j2").read_text(encoding="utf-8"), keep_trailing_newline=True
    )
    page: str = template.render(
        plan=plan,
        today=today.isoformat(),
        hours="GPU h" if unit == "gpu" else "node h",
        runs=sum(job.seen.rule == "train" for job in plan.submitted),
        studies=[study for study in studies if study.name in by_study],
        request=rounded(high + unknown),
        median=rounded(median + unknown),
        by_study=[_by_study(plan, unit, *group) for group in (*by_study.items(), ("total", plan.submitted))],
        by_nodes=[_by_nodes(plan, unit, *group) for group in sorted(by_nodes.items())],
        sources=plan.kind.replace("+", ", "),
        notes=list(notes(plan, unit)),
    )
    return page


def _by_study(plan: Plan, unit: Unit, name: str, jobs: Sequence[PlannedJob]) -> tuple[str, ...]:
    requested = plan.hours(sum(getattr(job.amounts, unit)[0] for job in jobs))
    max_nodes = max(job.resources.nodes for job in jobs)
    hours = (*plan.percentiles(jobs, unit), requested)
    return name, f"{len(jobs):,}", f"{max_nodes:,}", *map(rounded, hours)


def _by_nodes(plan: Plan, unit: Unit, nodes: int, jobs: Sequence[PlannedJob]) -> tuple[str, ...]:
    """Jobs of one number of nodes, further jobs of a chain included."""
    requests = [job.resources for job in jobs]
    longest = minutes(max((one.runtime or 0 for one in requests), default=0) or None)
    gib = max(one.mem_mb for one in requests) / 1024
    count = sum(one.links for one in requests)
    return f"{nodes:,}", f"{count:,}", longest, f"{gib:,.0f}", rounded(plan.percentiles(jobs, unit)[1])


def rounded(hours: Decimal) -> str:
    """Hours without meaningless digits: whole ones from a hundred on, else two that count."""
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.1f}" if hours >= 1 else f"{hours:.2g}" if hours else "0"
