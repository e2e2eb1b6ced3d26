"""The page of an application for computing time, in Markdown: `pandoc page.md -o page.pdf` typesets it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import jinja2

from scalestudy.cluster.plan.hours import Plan, PlannedJob, sources_of
from scalestudy.cluster.plan.show import columns_of, detailed_notes, digits, minutes, notes, rows_of
from scalestudy.errors import UserError
from scalestudy.spec.study import Study

COLUMNS = ("jobs", "p10", "expected", "to_request", "reserved", "makespan")


def proposal(plan: Plan, studies: Sequence[Study], today: date) -> str:
    """The page; `studies` have the questions. UserError where nothing would be submitted."""
    if not plan.submitted:
        raise UserError("nothing would be submitted: all runs and datasets exist", "--proposal", "plan other studies")
    columns = columns_of(plan.unit)
    by_nodes: dict[int, list[PlannedJob]] = {}
    for job in sorted(plan.submitted, key=lambda job: job.resources.nodes):
        by_nodes.setdefault(job.resources.nodes, []).append(job)
    widths = [
        (
            f"{nodes:,}",
            f"{sum(job.resources.links for job in jobs):,}",
            minutes(max(job.resources.runtime or 0 for job in jobs) or None),
            f"{max(job.resources.mem_mb for job in jobs) / 1024:,.0f}",
            digits(plan.hours(jobs, plan.unit)[1]),
        )
        for nodes, jobs in by_nodes.items()
    ]
    template = Path(__file__).with_suffix(".md.j2").read_text(encoding="utf-8")
    page: str = jinja2.Template(template, keep_trailing_newline=True).render(
        plan=plan,
        today=today.isoformat(),
        hours="GPU h" if plan.unit == "gpu" else "node h",
        runs=sum(job.seen.rule == "train" for job in plan.submitted),
        studies=[study for study in studies if study.name in {job.study for job in plan.submitted}],
        request=digits(plan.to_request(plan.submitted, plan.unit)),
        median=digits(plan.hours(plan.submitted, plan.unit)[1]),
        heads=[columns[name][0] for name in COLUMNS],
        rows=[(row["study"], *(columns[name][1](row) for name in COLUMNS)) for row in rows_of(plan)],
        by_nodes=widths,
        sources=sources_of(plan.submitted).replace("+", ", "),
        notes=[*notes(plan), *detailed_notes(plan)],
    )
    return page
