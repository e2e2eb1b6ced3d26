"""The claims of a study at one scale: those in its own file, and those of documents in config/claims/."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.claims.basis import DOCUMENT
from scalestudy.claims.model import AnyClaim, ClaimsOfDocument, Comparison, Exact
from scalestudy.errors import Problem, UserError, raise_all
from scalestudy.spec.base import KeyPath, Spec, parse
from scalestudy.spec.config import checked
from scalestudy.spec.layout import CLAIMS, STUDIES
from scalestudy.spec.machine_axes import MachineCapacity
from scalestudy.spec.sizes import filter_in_bytes
from scalestudy.spec.yamlfile import YamlDocument, read_yaml

SAME_AT_EVERY_SCALE = ("id", "statement", "origin", "source", "place", "study", "scales", "not_testable", "at", "kind")


@dataclass(frozen=True)
class Written:
    """A claim as a file has it at one scale, and its place."""

    document: YamlDocument
    index: int
    scale: str
    data: Mapping[str, Any]
    changes: Mapping[str, Any]

    def where(self, path: KeyPath) -> str:
        """File, line and key of a path below the claim: within `at` where the scale sets the key."""
        at = ("at", self.scale) if path and path[0] in self.changes else ()
        return self.document.where(("claims", self.index, *at, *path))


class _Claims(Spec):
    claims: list[AnyClaim] = []


def written_claims(document: YamlDocument, study: str, scale: str) -> list[Written]:
    """The claims of a study file, then those of documents about this study."""
    found = list(_written(document, scale, {}))
    for file in documents_about(study, Path(document.file).parent.parent / "claims"):
        claims = _document(str(file), file.read_text(encoding="utf-8"))
        more = {"origin": DOCUMENT, "source": claims.data["source"]}
        found += [each for each in _written(claims, scale, more) if each.data.get("study") == study]
    return found


def documents_about(study: str, folder: Path = CLAIMS) -> list[Path]:
    """The files of claims that name a study."""
    names = re.compile(rf"\bstudy: *{re.escape(study)}\b")
    return [file for file in sorted(folder.glob("*.yaml")) if names.search(file.read_text(encoding="utf-8"))]


def claims_of_mistyped_studies(folder: Path = CLAIMS, studies: Path = STUDIES) -> Iterator[str]:
    """Name the claims of documents about a study that is absent while one has nearly its name: no run judges them."""
    names = [file.stem for file in studies.glob("*.yaml")]
    for file in sorted(folder.glob("*.yaml")):
        document = _document(str(file), file.read_text(encoding="utf-8"))
        for index, claim in enumerate(document.data.get("claims") or []):
            study = claim["study"]
            if study not in names and (near := difflib.get_close_matches(study, names, n=1, cutoff=0.8)):
                where = document.where(("claims", index, "study"))
                yield f"{where}: there is no study `{study}`\n    did you mean `{near[0]}`?"


@functools.cache
def _document(file: str, text: str) -> YamlDocument:
    """A checked file of claims; `text` is its content, which a file of the same name may change."""
    document = read_yaml(file)
    checked(ClaimsOfDocument, document)
    return document


def _written(document: YamlDocument, scale: str, more: Mapping[str, Any]) -> Iterator[Written]:
    for index, claim in enumerate(document.data.get("claims") or []):
        changes = claim.get("at", {}).get(scale, {})
        merged = {**claim, **more, **changes}
        data = {key: value for key, value in merged.items() if value is not None and key != "at"}
        yield Written(document, index, scale, data, changes)


def claims_at(written: Sequence[Written]) -> list[AnyClaim]:
    """The claims; raises UserError where one is wrong with its scale's changes."""
    fixed = [
        Problem(("claims", position, key), f"`{key}` is the same at every scale", "move it out of `at`")
        for position, each in enumerate(written)
        for key in each.changes
        if key in SAME_AT_EVERY_SCALE
    ]
    found, problems = parse(_Claims, {"claims": [dict(each.data) for each in written]})
    raise_claim_problems([*fixed, *problems], written)
    assert found is not None
    return found.claims


def raise_claim_problems(problems: Iterable[Problem], written: Sequence[Written]) -> None:
    """Raise UserError with the line of each problem of a claim; nothing where there is none."""
    raise_all([UserError(p.what, written[int(p.path[1])].where(p.path[2:]), p.remedy) for p in problems])


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
        update["checks"] = tuple(check.model_copy(update={"of": resolved(check.of)}) for check in claim.checks)
    return claim.model_copy(update=update)
