"""The claims of a study file at one scale: those of the file, with the changes that the scale makes to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scalestudy.claims.model import AnyClaim, Comparison, Exact
from scalestudy.errors import Problem, UserError, raise_all
from scalestudy.spec.base import KeyPath, Spec, parse
from scalestudy.spec.machine_axes import MachineCapacity
from scalestudy.spec.sizes import filter_in_bytes
from scalestudy.spec.yamlfile import YamlDocument


class _Claims(Spec):
    claims: list[AnyClaim] = []


def claims_at(document: YamlDocument, scale: str) -> list[AnyClaim]:
    """The claims of a study at one scale; raises UserError where a claim with the scale's changes is wrong."""
    given, changes, added = _written(document, scale)
    plain = [_changed(claim, changes.get(claim["id"], {})) for claim in given]
    found, problems = parse(_Claims, {"claims": [*plain, *added]})
    raise_claim_problems(problems, document, scale)
    assert found is not None
    return found.claims


def _written(document: YamlDocument, scale: str) -> tuple[list[Any], dict[str, Any], list[Any]]:
    """The claims of the file, the scale's changes to them by id, and the claims that the scale adds."""
    given = document.data.get("claims") or []
    of_scale = ((document.data.get("scales") or {}).get(scale) or {}).get("claims") or []
    ids = {claim["id"] for claim in given}
    changes = {each["id"]: each for each in of_scale if each.get("id") in ids}
    return given, changes, [each for each in of_scale if each.get("id") not in ids]


def _changed(claim: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A claim with other values for some keys; null removes a key."""
    return {key: value for key, value in {**claim, **change}.items() if value is not None}


def raise_claim_problems(problems: Iterable[Problem], document: YamlDocument, scale: str) -> None:
    """Raise UserError with the line of each problem below `claims`; nothing where there is none."""
    raise_all([UserError(p.what, document.where(_place(p.path, document, scale)), p.remedy) for p in problems])


def _place(path: KeyPath, document: YamlDocument, scale: str) -> KeyPath:
    """A path below the claims of a scale as one in the file: among the scale's changes where they set the key."""
    if len(path) < 2 or not isinstance(path[1], int):
        return path
    given, changes, added = _written(document, scale)
    index, rest = path[1], path[2:]
    is_added = index >= len(given)
    change = added[index - len(given)] if is_added else changes.get(given[index]["id"], {})
    if is_added or (rest and rest[0] in change):
        of_scale = document.data["scales"][scale]["claims"]
        return ("scales", scale, "claims", next(at for at, each in enumerate(of_scale) if each is change), *rest)
    return ("claims", index, *rest)


def claim_on(claim: AnyClaim, capacity: MachineCapacity) -> AnyClaim:
    """A claim with numbers for `{to: machine}` and bytes for sizes of data, as rows have them."""

    def resolved(where: Mapping[str, Any]) -> dict[str, Any]:
        return filter_in_bytes(capacity.resolve(where), capacity.machine)

    update: dict[str, Any] = {}
    if isinstance(claim, Comparison):
        sides = {"where": claim.where, "of": claim.of, "against": claim.against}
        update = {key: resolved(side) for key, side in sides.items() if side is not None}
    elif isinstance(claim, Exact):
        update = {"where": resolved(claim.where)}
        if claim.checks is not None:
            update["checks"] = tuple(check.model_copy(update={"of": resolved(check.of)}) for check in claim.checks)
    return claim.model_copy(update=update)
