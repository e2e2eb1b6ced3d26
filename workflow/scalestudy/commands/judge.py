"""`scalestudy judge`: the verdicts on a study's claims, as files."""

from __future__ import annotations

import click

from scalestudy.commands.options import MACHINE, SCALE, STUDY


@click.command(name="judge")
@MACHINE
@SCALE
@STUDY
def judge(machine: str, scale: str, study: str) -> None:
    """Judge the claims of one study by its runs; write JSON, CSV, Markdown and LaTeX.

    Example: scalestudy judge --study gpu_scaling
    """
    from scalestudy.analysis.summarise import read_rows, study_rows
    from scalestudy.claims.fixed import fixed_claims
    from scalestudy.claims.judge import judge
    from scalestudy.host_lock import beside_measured_runs
    from scalestudy.report.claim_tables import write_verdicts
    from scalestudy.spec.layout import other_campaigns
    from scalestudy.spec.study_json import expanded_study

    with beside_measured_runs():
        found = expanded_study(machine, scale, study)
        others = [study_rows(found, name) for name in other_campaigns(machine)]
        verdicts = judge(found, read_rows(found, machine), fixed_claims(found, machine), others)
        write_verdicts(found, machine, verdicts)
