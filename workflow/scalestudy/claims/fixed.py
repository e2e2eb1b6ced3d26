"""What claims were when the first of their runs was made: a claim changed later is marked in its verdict.

A driver writes the digests of its studies' claims when it begins, with the rounds at which each is judged. They are replaced
as long as none of the claim's runs has a result, and stay from then on. No run depends on this file.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from scalestudy.claims.model import AnyClaim, Published, Sampled
from scalestudy.claims.select import Row, rows_of_claim, spec_rows
from scalestudy.errors import UserError
from scalestudy.files import read_json, write_json
from scalestudy.spec.layout import claims_file, result_file
from scalestudy.spec.study import Study


@dataclass(frozen=True)
class Fixed:
    """A claim's digest, and the numbers of rounds at which it is judged; none of a claim about facts."""

    digest: str
    looks: tuple[int, ...] = ()


def fix_claims(studies: Iterable[Study], machine: str) -> None:
    """Write the digest of each claim that no run was made for yet, below results/<machine>/<scale>/claims/."""
    for study in studies:
        rows, before = spec_rows(study.runs), fixed_claims(study, machine)
        made = {run.id for run in study.runs if result_file(machine, run.id).exists()}
        digests: dict[str, Fixed] = {}
        for claim in study.claims:
            if isinstance(claim, Published) or study.scale not in claim.scales:
                continue
            if not any(row["run"] in made for row in rows_of_claim(claim, rows)):
                planned = with_plan(claim, rows, {})
                digests[claim.id] = Fixed(planned.digest, getattr(planned, "looks", ()))
            elif claim.id in before:
                digests[claim.id] = before[claim.id]
        if digests != before:
            claims = {name: asdict(fixed) for name, fixed in digests.items()}
            content = {"study": study.name, "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "claims": claims}
            write_json(claims_file(machine, study.scale, study.name, "fixed.json"), content)


def fixed_claims(study: Study, machine: str) -> dict[str, Fixed]:
    """What was fixed, by the claims' ids; nothing where the file is missing."""
    try:
        claims = read_json(claims_file(machine, study.scale, study.name, "fixed.json"))["claims"]
    except (UserError, OSError):
        return {}
    return {name: Fixed(each["digest"], tuple(each["looks"])) for name, each in claims.items()}


def with_plan(claim: AnyClaim, rows: Sequence[Row], fixed: Mapping[str, Fixed]) -> AnyClaim:
    """The claim with the rounds at which it is judged: those that were fixed, its own, or all that the study plans."""
    if not isinstance(claim, Sampled):
        return claim
    before = fixed.get(claim.id)
    counts = Counter(row["configuration"] for row in rows_of_claim(claim, rows))
    looks = before.looks if before and before.looks else claim.looks or tuple(sorted(counts.values())[:1])
    return claim.model_copy(update={"looks": looks})
