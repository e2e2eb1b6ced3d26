"""What a study names and its machine does not have: runs that are left out, and claims that cannot be judged without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalestudy.claims.model import AnyClaim, Exact, Sampled
from scalestudy.claims.select import chosen
from scalestudy.errors import Problem, UserError, raise_all
from scalestudy.files import canonical_json
from scalestudy.spec.columns import columns_of
from scalestudy.spec.machine import geometry, machine_problems
from scalestudy.spec.matching import matches
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study import Study
from scalestudy.spec.up_to import KEYS, Extent, is_end

FEW = 3
"""So many sentences about what several studies leave out are said each; of more, only the studies are named."""
LIMITED = (*KEYS, "ranks_per_node")
"""Keys of which a machine has only so many."""


def beyond_problems(run: RunSpec, extent: Extent, workers_of_machine: bool) -> Iterator[Problem]:
    """What of a run the machine does not have.

    Workers count only where they were asked for as many as there are cores: else more of them than cores is a question
    that a study may ask.
    """
    yield from machine_problems(run, extent.machine, extent.name)
    if workers_of_machine:
        on_node = geometry(run, extent.machine, extent.devices)[1]
        if run.loader.workers * on_node > extent.cores:
            of = "" if on_node == 1 else f" for each of {on_node} ranks on a node"
            what = f"{run.loader.workers} workers{of} are more than the {extent.cores} cores of machine `{extent.name}`"
            yield Problem(("loader", "workers"), what, "vary smaller numbers, or exclude this combination")


@dataclass
class LeftOut:
    """The runs that were left out, why, and the errors that they would be if nothing else remained."""

    counts: Counter[str] = field(default_factory=Counter)
    errors: list[UserError] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The columns of what was left out."""

    def add(self, run: RunSpec, repeats: int, problems: Sequence[Problem], errors: Iterable[UserError]) -> None:
        """One configuration."""
        self.counts[problems[0].what] += repeats
        self.errors += errors
        self.rows.append(columns_of(run))

    def raise_errors(self) -> None:
        """Where nothing but these remained: UserError with them; nothing where there are none."""
        raise_all(self.errors)

    @property
    def sentences(self) -> tuple[str, ...]:
        """One per reason."""
        return tuple(f"{count} {'run' if count == 1 else 'runs'}: {what}" for what, count in self.counts.items())


def left_out_of(studies: Iterable[Study]) -> list[str]:
    """What these studies name and their machine does not have: all of one study, of several one line where it is much."""
    found = {study.name: study.left_out for study in studies if study.left_out}
    if len(found) > 1 and sum(map(len, found.values())) > FEW:
        return [f"parts of {', '.join(found)}: they need more than the machine has; `scalestudy plan STUDY` says which"]
    return [f"{name}: {said}" for name, sentences in found.items() for said in sentences]


@dataclass(frozen=True)
class Chosen:
    """What the claims of a study can choose from on one machine."""

    rows: Sequence[Mapping[str, Any]]
    """The columns of its runs."""
    axes: Mapping[str, Sequence[int]]
    """By key, the values of axes that are as many as the machine has."""
    left_out: Sequence[Mapping[str, Any]]
    """The columns of the runs that were left out."""
    extent: Extent

    def lacking(self, claim: AnyClaim) -> str | None:
        """Why a claim cannot be judged on this machine; None where all that it compares is there."""
        wanted = list(sides(claim))
        for side in wanted:
            for key, value in side.items():
                if key in LIMITED and not is_end(key, value) and (reason := self._lacks(key, value)):
                    return reason
        found = [chosen(self.rows, self.extent.filter(side)) for side in wanted]
        alone = next((key for side in wanted for key, value in side.items() if is_end(key, value)), None)
        alone = alone if alone and len(self.axes.get(alone, ())) == 1 else None
        if alone and (not all(found) or (len(found) > 1 and found[0] == found[1])):
            return f"needs more than one of `{alone}`, and machine `{self.extent.name}` has {self._has(alone)}"
        if any(
            not rows and chosen(self.left_out, self.extent.filter(side))
            for rows, side in zip(found, wanted, strict=True)
        ):
            return f"needs runs that are left out: machine `{self.extent.name}` does not have what they ask for"
        return None

    def _lacks(self, key: str, wanted: Any) -> str | None:
        """Why no run has a wanted number: the machine has too few of it."""
        there = self.axes.get(key, ())
        if any(matches(row.get(key), wanted) for row in self.rows):
            return None
        asked_for = any(matches(row.get(key), wanted) for row in self.left_out)
        numbers = [one for one in (wanted if isinstance(wanted, list) else [wanted]) if isinstance(one, int)]
        if asked_for or (there and numbers and max(numbers) > max(there)):
            said = ", ".join(map(str, numbers))
            return f"needs `{key}` {said}, and machine `{self.extent.name}` has {self._has(key)}"
        return None

    def _has(self, key: str) -> str:
        count, noun = self.extent.devices, "device"
        if key == "nodes":
            count, noun = self.extent.nodes("machine"), "node"
        elif key == "loader.workers" or not count:
            count, noun = self.extent.cores, "core"
        each = " on each node" if noun != "node" and self.extent.nodes("machine") > 1 else ""
        return f"{count} {noun}{'' if count == 1 else 's'}{each}"


def sides(claim: AnyClaim) -> Iterator[Mapping[str, Any]]:
    """The choices of runs that a claim makes, one per side or check; none for one of published rows."""
    if isinstance(claim, Exact):
        yield from ({**claim.where, **check.of} for check in claim.checks or ())
    elif isinstance(claim, Sampled):
        yield from ({**claim.where, **side} for side in (claim.of, claim.against) if side is not None)


def on_this_machine(claim: AnyClaim, scale: str, there: Chosen) -> AnyClaim:
    """A claim whose `{to: machine}` is a number; *not testable here* where the machine lacks what it needs."""
    if scale not in claim.scales:
        return claim
    if reason := there.lacking(claim):
        scales = tuple(each for each in claim.scales if each != scale)
        return claim.model_copy(update={"scales": scales, "not_testable": reason})
    update: dict[str, Any] = {}
    for key in ("where", "of", "against"):
        where = getattr(claim, key, None)
        if where and canonical_json(found := there.extent.filter(where)) != canonical_json(where):
            update[key] = found
    if isinstance(claim, Exact):
        checks = (check.model_copy(update={"of": there.extent.filter(check.of)}) for check in claim.checks or ())
        update["checks"] = tuple(checks)
    return claim.model_copy(update=update) if update else claim
