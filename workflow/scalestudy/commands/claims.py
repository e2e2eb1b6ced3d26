"""`scalestudy claims`: verdicts on published statements on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from scalestudy.commands.options import MACHINE, SCALE, studies_of
from scalestudy.errors import UserError
from scalestudy.files import read_sealed
from scalestudy.spec.layout import claims_file, other_campaigns

if TYPE_CHECKING:
    from scalestudy.claims.fixed import Fixed
    from scalestudy.spec.study import Study

Verdicts = list[dict[str, Any]]


@click.command(name="claims")
@MACHINE
@SCALE
@click.option("--study", default=None, help="Name of a file in config/studies/; unset: all.")
@click.option("--json", "as_json", is_flag=True, help="Everything that is known of each claim, as JSON.")
def claims(machine: str, scale: str, study: str | None, as_json: bool) -> None:
    """Print each study's answer, the verdict on each claim with its number, and how many could be judged here.

    Example: scalestudy claims --study gpu_scaling
    """
    from scalestudy.report.answers import answer_of

    studies = studies_of(machine, scale, None if study is None else [study])
    found = {each.name: verdicts_of(each, machine) for each in studies}
    questions = {each.name: each for each in studies}
    if as_json:
        click.echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    for name, verdicts in found.items():
        if verdicts:
            click.echo(f"\n{name}: {questions[name].question}")
            for sentence in answer_of(questions[name], machine).sentences:
                click.echo(f"  → {sentence}")
            for line in lines(verdicts):
                click.echo(f"  {line}")
    click.echo("")
    for line in denominator([verdict for verdicts in found.values() for verdict in verdicts]):
        click.echo(line)


def verdicts_of(study: Study, machine: str) -> Verdicts:
    """The stored verdicts on a study's claims; judged now where there are none, or claims or results have changed."""
    from scalestudy.analysis.summarise import is_current, study_rows
    from scalestudy.claims.fixed import fixed_claims
    from scalestudy.claims.judge import judge

    fixed = fixed_claims(study, machine)
    stored = _stored(study, machine, fixed)
    if stored is not None and is_current(study, machine, claims_file(machine, study.scale, study.name)):
        return stored
    from scalestudy.files import finite

    if not study.claims:
        return []
    others = [study_rows(study, name) for name in other_campaigns(machine)]
    verdicts = judge(study, study_rows(study, machine), fixed, others)
    return [finite(asdict(verdict)) for verdict in verdicts]


def _stored(study: Study, machine: str, fixed: Mapping[str, Fixed]) -> Verdicts | None:
    from scalestudy.claims.fixed import with_plan
    from scalestudy.claims.select import spec_rows

    try:
        content = read_sealed(claims_file(machine, study.scale, study.name), "")
    except (OSError, UserError):
        return None
    claims = content.get("claims")
    if not isinstance(claims, list) or not all(isinstance(claim, dict) for claim in claims):
        return None
    rows = spec_rows(study.runs)
    today = [(claim.id, with_plan(claim, rows, fixed).digest) for claim in study.claims]
    return claims if [(claim.get("id"), claim.get("digest")) for claim in claims] == today else None


def lines(verdicts: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line per claim: mark, verdict, number, statement; decided ones come first, and documents' claims before ours."""
    from scalestudy.claims.basis import BASES, MARKS, OURS, label
    from scalestudy.claims.words import interval_text

    verdict_order, basis_order = list(MARKS), list(BASES)

    def place(each: Mapping[str, Any]) -> tuple[int, int, bool]:
        return verdict_order.index(each["verdict"]), basis_order.index(each["basis"]), each["origin"] == OURS

    said = []
    for verdict in sorted(verdicts, key=place):
        word = label(verdict["verdict"], verdict["basis"])
        number = interval_text(verdict["estimate"], verdict["low"], verdict["high"], verdict["unit"])
        mine = "(ours) " if verdict["origin"] == OURS else ""
        why = f" ({verdict['reason']})" if verdict["reason"] else ""
        stand_ins = f" [{'; '.join(verdict['stand_ins'])}]" if verdict["stand_ins"] else ""
        changed = " [changed after measuring]" if verdict["changed_after_measuring"] else ""
        said.append(
            f"{MARKS[verdict['verdict']]} {word:28} {number:>26}  {mine}{verdict['statement']}{why}{stand_ins}{changed}"
        )
    return said


def denominator(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The number of claims, and the bases of their verdicts."""
    from scalestudy.claims.basis import OURS, tallies
    from scalestudy.claims.inference import ERROR, holm

    ours = sum(each["origin"] == OURS for each in verdicts)
    said = [f"{len(verdicts)} claims: {len(verdicts) - ours} of documents, {ours} ours"]
    said += [f"  {tally}" for tally in tallies((each["basis"], each["origin"], each["verdict"]) for each in verdicts)]
    tested = [each for each in verdicts if each["p"] is not None]
    decided = [each["p_holm"] <= ERROR for each in tested]
    over_all = [p <= ERROR for p in holm(each["p"] for each in tested)]
    lost = sum(before and not after for before, after in zip(decided, over_all, strict=True))
    if lost:
        said.append(
            f"Of {sum(decided)} decisions {lost} would not stand if all studies' claims were one family (Holm)."
        )
    if places := dict.fromkeys(place for each in verdicts for place in each.get("measured_on", ())):
        said.append(f"Measured on {'; '.join(places)}.")
    return said
