"""The claims of a study at one scale: those of the file, with the changes that the scale makes to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scalestudy.errors import Problem, UserError, raise_all
from scalestudy.spec.base import KeyPath, Spec, parse
from scalestudy.spec.claims import AnyClaim, Comparison, Exact
from scalestudy.spec.machine import Machine
from scalestudy.spec.sizes import filter_in_bytes
from scalestudy.spec.yamlfile import YamlDocument


class _Claims(Spec):
    claims: list[AnyClaim] = []


class ClaimLines:
    """Where each key of each claim is written: in `claims`, or in those of the scale."""

    def __init__(self, scale: str) -> None:
        self.scale = scale
        self._claims: list[tuple[int | None, int | None, frozenset[str]]] = []

    def add(self, base: int | None, change: int | None, changed: Iterable[str]) -> None:
        """The next claim: its positions in the file and in the scale, and the keys that the scale sets."""
        self._claims.append((base, change, frozenset(changed)))

    def of(self, path: KeyPath) -> KeyPath:
        """A path below the claims of this scale as one in the file."""
        if len(path) < 2 or not isinstance(path[1], int):
            return path
        base, change, changed = self._claims[path[1]]
        if base is None or (change is not None and len(path) > 2 and path[2] in changed):
            return ("scales", self.scale, "claims", change or 0, *path[2:])
        return ("claims", base, *path[2:])


def claims_at(document: YamlDocument, scale: str) -> tuple[list[AnyClaim], ClaimLines]:
    """The claims of a study at one scale; raises UserError where a claim with the scale's changes is wrong."""
    given = document.data.get("claims") or []
    changes = ((document.data.get("scales") or {}).get(scale) or {}).get("claims") or []
    by_id = {each.get("id"): at for at, each in enumerate(changes)}
    places, plain = ClaimLines(scale), []
    for at, claim in enumerate(given):
        change = by_id.pop(claim["id"], None)
        places.add(at, change, changes[change] if change is not None else ())
        plain.append(claim if change is None else _changed(claim, changes[change]))
    for at in by_id.values():
        places.add(None, at, ())
        plain.append(changes[at])
    found, problems = parse(_Claims, {"claims": plain})
    raise_problems(problems, places, document)
    assert found is not None
    return found.claims, places


def _changed(claim: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A claim with other values for some keys; null removes a key."""
    return {key: value for key, value in {**claim, **change}.items() if value is not None}


def raise_problems(problems: Iterable[Problem], places: ClaimLines, document: YamlDocument) -> None:
    """Raise UserError with the line of each problem below `claims`; nothing where there is none."""
    raise_all([UserError(p.what, document.where(places.of(p.path)), p.remedy) for p in problems])


def claim_in_bytes(claim: AnyClaim, machine: Machine) -> AnyClaim:
    """A claim whose choices of runs say sizes of data in bytes, as rows do."""
    update: dict[str, Any] = {}
    if isinstance(claim, Comparison):
        sides = {"where": claim.where, "of": claim.of, "against": claim.against}
        update = {key: filter_in_bytes(side, machine) for key, side in sides.items() if side is not None}
    elif isinstance(claim, Exact):
        update = {"where": filter_in_bytes(claim.where, machine)}
        update["checks"] = tuple(
            check.model_copy(update={"of": filter_in_bytes(check.of, machine)}) for check in claim.checks or ()
        )
    return claim.model_copy(update=update)
