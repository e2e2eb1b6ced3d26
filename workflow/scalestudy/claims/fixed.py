"""What claims were when the first of their runs was made: a claim changed later is marked in its verdict.

A driver writes the digests of its studies' claims when it begins. A digest is replaced as long as none of the claim's runs
has a result, and stays from then on. No run depends on this file.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from scalestudy.claims.model import AnyClaim, Published
from scalestudy.claims.select import Row, rows_of_claim, spec_rows
from scalestudy.errors import UserError
from scalestudy.files import read_json, write_json
from scalestudy.spec.layout import fixed_claims_file, result_file
from scalestudy.spec.study import Study


def fix_claims(studies: Iterable[Study], machine: str) -> None:
    """Write the digest of each claim that no run was made for yet, below results/<machine>/<scale>/claims/."""
    for study in studies:
        rows = spec_rows(study.runs)
        made = {run.id for run in study.runs if result_file(machine, run.id).exists()}
        before = fixed_claims(study, machine)
        known = {claim.id: _fixed(claim, rows, made, before) for claim in study.claims if judged_by_runs(claim, study)}
        found = {name: digest for name, digest in known.items() if digest is not None}
        if found != before:
            content = {"study": study.name, "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "claims": found}
            write_json(fixed_claims_file(machine, study.scale, study.name), content)


def fixed_claims(study: Study, machine: str) -> dict[str, str]:
    """The digests that were fixed, by the claims' ids; none where the file is missing or damaged."""
    try:
        content = read_json(fixed_claims_file(machine, study.scale, study.name))
    except (UserError, OSError):
        return {}
    claims = content.get("claims") if isinstance(content, dict) else None
    return {str(name): str(digest) for name, digest in claims.items()} if isinstance(claims, dict) else {}


def judged_by_runs(claim: AnyClaim, study: Study) -> bool:
    """Whether runs of the study's scale judge a claim."""
    return study.scale in claim.scales and not isinstance(claim, Published)


def _fixed(claim: AnyClaim, rows: list[Row], made: set[str], before: dict[str, str]) -> str | None:
    """The digest that a claim keeps: today's while nothing is measured, then the one that was fixed; None where none was."""
    assert not isinstance(claim, Published)
    if any(row["run"] in made for row in rows_of_claim(claim, rows)):
        return before.get(claim.id)
    return claim.digest
