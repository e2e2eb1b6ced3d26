"""Kinds of claims and their keys: statements, and the comparison that decides each of them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from scalestudy.files import canonical_json, sha256_text
from scalestudy.spec.base import SCALES, Name, Scale, Spec, refused
from scalestudy.spec.columns import SHARES, on_logarithms
from scalestudy.spec.labels import unit_of

Text = Annotated[str, Field(min_length=1)]
Where = dict[str, Any]

NOT_JUDGED = ("origin", "source", "place", "study", "scales", "at", "not_testable", "margin_reason", "stand_ins")
"""Keys of a claim that do not decide it: they are not part of its digest."""


class Claim(Spec):
    """What every claim has: a statement, where it stands, and at which scales runs can judge it."""

    id: Name
    """Name of the claim, unique in its study."""
    statement: Text
    """What is claimed, in one sentence; the same at every scale."""
    origin: Literal["document", "ours"] = "ours"
    """Whether a document states it, as those in `config/claims/` do unless their `source` is `own`, or it is our own."""
    source: str = ""
    """The document that claims it; in `config/claims/` the `source` of the file."""
    place: str = ""
    """Where in the document: section, figure, table."""
    study: str = ""
    """In `config/claims/`: the study whose runs judge it."""
    scales: Annotated[tuple[Scale, ...], Field(min_length=1)] = SCALES
    """Scales whose runs can judge it; at the others it is *not testable here*."""
    not_testable: str | None = None
    """Why other scales cannot judge it; needed where `scales` leaves one out."""
    at: dict[Scale, dict[str, Any]] = {}
    """Other values of keys at a scale; null removes a key."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.not_testable is None and set(self.scales) != set(SCALES):
            left_out = ", ".join(scale for scale in SCALES if scale not in self.scales)
            raise refused("key `not_testable` is missing", f"say why scale {left_out} cannot judge it", "not_testable")
        return self

    @property
    def digest(self) -> str:
        """Twelve hex digits over everything that decides the claim, its statement included."""
        judged = {key: value for key, value in self.to_dict().items() if key not in NOT_JUDGED}
        return sha256_text(canonical_json(judged))[:12]


class Comparison(Claim):
    """What is compared: one side, or two sides."""

    column: str
    """The measured column whose values are compared."""
    where: Where = {}
    """Only runs with these values, on both sides; a list stands for any of its values."""
    of: Where = {}
    """The side that the claim is about, within `where`."""
    against: Where | None = None
    """The side that it is compared with, within `where`; without it the value itself is judged."""
    margin_reason: Text
    """Why the limit or the margin is what it is."""

    @property
    def sides(self) -> dict[str, Where]:
        """The sides by their keys."""
        return {"of": self.of} if self.against is None else {"of": self.of, "against": self.against}

    @property
    def unit(self) -> str:
        """The unit of what is compared; a ratio has none."""
        return unit_of(self.column) if self.against is None else ""


MAX_LOOKS = 5
"""Times that a claim may be judged: with more, each has too little of the permitted error to decide anything."""
MIN_REPEATS = 3
"""Repeats that an interval needs. With two, t is 12.7: such an interval says only that two are few."""


class _OfRuns(Spec):
    """What claims about runs have."""

    follows_from: Text | None = None
    """The setting of the runs that the number follows from, whatever the machine: then it is an instrument check, which
    passes or fails."""
    stand_ins: tuple[Text, ...] = ()
    """What stands for something else and is no setting of a run, a sentence each."""


class Sampled(_OfRuns, Comparison):
    """A comparison of measured runs, or a slope over an axis, repeated so that it has an interval."""

    per: str | None = None
    """Each value is divided by the same run's value in this column; with `compare: share` see there."""
    compare: Literal["ratio", "difference", "share"] | None = None
    """`of` over `against`, `of` less `against`, or the difference in `column` as a share of the difference in `per`,
    which has to be above 0. Unset: the difference for columns between 0 and 1, such as accuracies, else the ratio."""
    each: str | None = None
    """The claim must hold for each value that this key of the runs has on either side."""
    over: str | None = None
    """With one side: the slope of log `column` over the log of this column, over the side's configurations. With two
    sides: the slope of `column` over this column of `of` over that of `against`."""
    take: Literal["most", "least"] | None = None
    """Of several configurations on a side, the one with the highest or lowest mean; unset: there may be only one."""
    looks: Annotated[tuple[int, ...], Field(max_length=MAX_LOOKS)] = ()
    """Numbers of rounds at which it may be judged, as `[5, 10]`; each time with its part of the permitted error. Unset: once,
    at the rounds that the study plans when the first run is made. Rounds beyond the last decide nothing."""

    @model_validator(mode="after")
    def _has_ascending_looks(self) -> Self:
        if any(few >= more for few, more in pairwise((MIN_REPEATS - 1, *self.looks))):
            what = f"`looks` {list(self.looks)} are not ascending numbers of rounds from {MIN_REPEATS} on"
            raise refused(what, "order them, and leave out what is too few", "looks")
        return self

    @property
    def compared_as(self) -> Literal["ratio", "difference", "share", "value"]:
        """How the sides are compared; `value` where there is one side."""
        if self.against is None:
            return "value"
        return self.compare or ("difference" if self.column in SHARES and self.per is None else "ratio")

    @property
    def unit(self) -> str:
        """The unit of what is compared; a ratio, a share, a slope and a quotient have none."""
        has_none = self.compared_as in ("ratio", "share") or self.over is not None or self.per is not None
        return "" if has_none else unit_of(self.column)

    @property
    def is_log(self) -> bool:
        """Whether its numbers are treated on logarithms: ratios, and values of columns that are times or rates."""
        if self.over is not None:
            return self.against is not None
        if self.compared_as == "value":
            return on_logarithms(self.column)
        return self.compared_as == "ratio"

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval in which its number must lie for the claim to hold."""
        if isinstance(self, Direction):
            return (-math.inf if self.above is None else self.above, math.inf if self.below is None else self.below)
        assert isinstance(self, (Equivalence, Quantity))
        if isinstance(self, Quantity):
            return self.value - self.within, self.value + self.within
        return (1 / (1 + self.within), 1 + self.within) if self.is_log else (-self.within, self.within)


class Direction(Sampled):
    """One side is larger or smaller: *reproduced* where the 95 % interval is beyond the limit, *not reproduced* where it
    is short of it, else *inconclusive*."""

    kind: Literal["direction"]
    """How it is judged."""
    above: float | None = None
    """Limit that the ratio, difference, slope or value must exceed; of a ratio, `1.05` is 5 % more."""
    below: float | None = None
    """Limit that it must stay below."""

    @model_validator(mode="after")
    def _has_one_limit(self) -> Self:
        if (self.above is None) == (self.below is None):
            what = "a claim of kind `direction` needs either `above` or `below`"
            raise refused(what, "give one of them; a range is kind `quantity`")
        return self


class Equivalence(Sampled):
    """Two sides are the same within a margin: *reproduced* where the 90 % interval lies within it (two one-sided tests at
    5 %), *not reproduced* where it lies outside, else *inconclusive*."""

    kind: Literal["equivalence"]
    """How it is judged."""
    against: Where  # type: ignore[assignment]
    """The side that it is compared with, within `where`."""
    within: Annotated[float, Field(gt=0)]
    """Margin. For equivalence: of a ratio as a share, `0.05` is 1/1.05 to 1.05; of a difference in the column's unit. Else
    the tolerance around `value`, in its unit; for published what rounding in the document allows."""


class Quantity(Sampled):
    """A number: *reproduced* where the 95 % interval lies within value ± tolerance, *not reproduced* where it lies outside,
    else *inconclusive*."""

    kind: Literal["quantity"]
    """How it is judged."""
    value: float
    """The claimed number, in the unit of what is compared."""
    within: Annotated[float, Field(gt=0)]
    """Tolerance, in the same unit."""


class Check(Spec):
    """One fact that has to be there in every run of a choice."""

    column: str
    """A measured column, a key of the run, or `status`."""
    of: Where = {}
    """Which runs, within the claim's `where`."""
    equals: Any
    """The value; a list stands for any of its values, a number is met to nine digits."""


class Exact(_OfRuns, Claim):
    """Facts without spread: *reproduced* where every run of every check has the value, else *not reproduced*."""

    kind: Literal["exact"]
    """How it is judged."""
    where: Where = {}
    """Only runs with these values."""
    checks: Annotated[tuple[Check, ...], Field(min_length=1)]
    """What has to be there: each a map of `column`, `of` (which runs) and `equals` (the value, or a list of values)."""


class Published(Comparison):
    """A published number, or the ratio of two: *consistent* or *inconsistent* with what the document says, never
    *reproduced*."""

    kind: Literal["published"]
    """How it is judged."""
    reference: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Names of files in config/reference/, whose rows are put together; `where`, `of` and `against` choose one row each."""
    above: float | None = None
    """Limit that the number must exceed."""
    below: float | None = None
    """Limit that it must stay below."""
    value: float | None = None
    """The number that the document states."""
    within: Annotated[float, Field(gt=0)] | None = None
    """What rounding in the document allows, in the same unit."""

    @model_validator(mode="after")
    def _has_one_test(self) -> Self:
        given = [key for key in ("above", "below", "value") if getattr(self, key) is not None]
        if len(given) != 1 or (self.value is None) != (self.within is None):
            what = "a claim of kind `published` needs `above`, `below`, or `value` with `within`"
            raise refused(what, "give one of them")
        return self


def _of_a_study(claim: Claim) -> Claim:
    if not claim.study:
        raise refused("key is missing", "name the study whose runs judge it", "study")
    return claim


AnyClaim = Annotated[Direction | Equivalence | Quantity | Exact | Published, Field(discriminator="kind")]
OfRuns = Direction | Equivalence | Quantity | Exact


class ClaimsOfDocument(Spec):
    """A file in config/claims/: the statements of one document, or our own."""

    source: Text
    """The document, as verdicts cite it; `own`: the statements are ours."""
    claims: list[Annotated[AnyClaim, AfterValidator(_of_a_study)]] = []
    """Its statements, each with the `study` whose runs judge it."""
