"""The shape of a result that comes from elsewhere: every part that is read here, however deep it lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from scalestudy.spec.base import shown
from scalestudy.spec.columns import METRICS, SHARES
from scalestudy.spec.layout import machine_and_campaign
from scalestudy.spec.run import RunSpec


def _time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


Number = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Time = Annotated[str, AfterValidator(_time)]
Interval = Annotated[list[Number | None], Field(min_length=2, max_length=2)]


class StoredPart(BaseModel):
    """A part of a stored result. Keys that it does not name are those of another version, and shown nowhere."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Evaluation(StoredPart):
    epoch: Seconds | None = None
    step: Count
    time_s: Seconds
    accuracy: Share | None = None
    auroc: Share | None = None
    loss: Number | None = None


class _Resolved(StoredPart):
    nodes: Count | None = None
    ranks_per_node: Count | None = None
    threads_per_rank: Count | None = None
    device: str | None = None
    backend: str | None = None


class _Launch(StoredPart):
    launcher: str | None = None
    hosts: list[str] | None = None


class RecordedAttempt(StoredPart):
    """One attempt at a run."""

    started: Time | None = None
    ended: Time | None = None
    job: str | None = None
    hours: Seconds | None = None
    steps: Count | None = None
    cause: str | None = None


class _Result(StoredPart):
    status: Literal["valid", "invalid", "skipped"]
    spec: dict[str, Any] = {}
    metrics: dict[str, Number | None] = {}
    machine: str | None = None
    """None: it was measured before this was recorded."""
    reason: str | None = None
    started: Time | None = None
    ended: Time | None = None
    kinds: dict[str, str] = {}
    intervals: dict[str, Interval] = {}
    extrapolation: dict[str, Number] | None = None
    emulated: bool = False
    oversubscribed: bool = False
    disturbed: bool = False
    window_ended_by: Literal["limit", "precision"] | None = None
    """None: the run was the whole training, or was measured before this was recorded."""
    unchecked: list[str] = []
    warnings: list[str] = []
    evaluations: list[_Evaluation] | None = None
    checkpoints: list[dict[str, Any]] | None = None
    steps_done: Count | None = None
    samples_seen: Count | None = None
    resolved: _Resolved | None = None
    stage: list[dict[str, Any]] | None = None
    emulated_storage: dict[str, Any] | None = None
    instrument: dict[str, str | Number | None] = {}
    staleness: dict[str, Count] | None = None
    faults: dict[str, Count] = {}
    launch: _Launch | None = None
    links: list[RecordedAttempt] | None = None


def step_time_of(result: Mapping[str, Any]) -> float | None:
    """Seconds of the emulated step that a run waited; None where compute was real."""
    resolved = result.get("resolved")
    seconds = resolved.get("step_time_s") if isinstance(resolved, Mapping) else None
    return seconds if isinstance(seconds, float) else None


def differences(result: Mapping[str, Any], run: str, spec: RunSpec, machine: str) -> Iterator[str]:
    """How an imported result differs from one that this run would write, the plainest difference first.

    Its campaign may be another, which `scalestudy import --as` gives it.
    """
    if result.get("run") != run:
        yield f"it is the result of {shown(result.get('run'))}"
    try:
        _Result.model_validate(result)
    except ValidationError as error:
        for one in error.errors(include_url=False, include_context=False):
            yield f"its `{'.'.join(map(str, one['loc']))}` is {shown(one['input'])}: {one['msg']}"
        return  # what follows takes every part for what it should be
    measured_on = result.get("machine") or machine
    if machine_and_campaign(measured_on)[0] != machine_and_campaign(machine)[0]:
        yield f"it was measured on machine {shown(measured_on)} and lies below results/{machine}"
    if result.get("spec") != spec.plain():
        yield "its `spec` is not that of the run"
    for name, value in result["metrics"].items():
        if name in METRICS and value is not None and not _is_possible(name, value):
            yield f"its {name} is {shown(value)}"


def _is_possible(name: str, value: float) -> bool:
    """Whether a metric can have that value: not below 0 unless it is a difference, and for shares not above 1."""
    return name == "exposed_exchange_s" or (value >= 0 and not (name in SHARES and value > 1))
