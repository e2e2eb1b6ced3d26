"""Ids: a readable slug and 12 hex digits of all that can change the result."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scalestudy.data.catalogue import DatasetSpec, OwnData
from scalestudy.errors import Problem, UserError
from scalestudy.files import canonical_json, sha256_file, sha256_text
from scalestudy.models.catalogue import OwnModel
from scalestudy.spec.layout import EXTENSIONS
from scalestudy.spec.run import RunSpec
from scalestudy.spec.step_times import emulated_step_time

TRAINER_VERSION = 4
"""Raised by hand when a commit changes what a run computes or measures. 4: parts of a step are means that sum to it over
all ranks; an emulated accelerator waits for no conversion; a window that others disturbed is taken once more."""

KNOWN_VERSIONS = 100
"""Below it lie all trainer versions, also later ones than this, whose results are taken in and compared."""

DATA_VERSION = 1
"""Raised by hand when a commit changes the bytes that a dataset is made of."""


def run_id(spec: RunSpec, extensions: Path = EXTENSIONS) -> str:
    """`small_cnn.digits.allreduce.x2.r0-0123456789ab`: the same for the same question, wherever it is asked."""
    return run_id_with(spec, {target: own_code(target, extensions) for target in _own_targets(spec)})


def run_id_with(spec: RunSpec, own: Mapping[str, str]) -> str:
    """The id of a run with own code of these digests, by its `import`."""
    question: dict[str, Any] = {"trainer_version": TRAINER_VERSION, **spec.plain(), **_emulated_step(_step_time(spec))}
    if own:
        question["own_code"] = dict(own)
    emulated = f".on_{spec.accelerator}" if spec.accelerator else ""
    where = f".at_{'_'.join(spec.hosts)}" if spec.hosts else ""
    what = (
        f"{spec.program.name}.program" if spec.program else f"{spec.model.name}.{spec.data.source}.{spec.strategy.name}"
    )
    slug = f"{what}{emulated}.x{spec.ranks}{where}.r{spec.repeat}"
    return f"{_slug(slug)}-{sha256_text(canonical_json(question))[:12]}"


def _step_time(spec: RunSpec) -> float | None:
    """Seconds of an emulated step by config/reference/step_times.csv; None where none is published."""
    if spec.accelerator is None:
        return None
    try:
        return emulated_step_time(spec.model.name, spec.accelerator, spec.rank_batch)
    except UserError:
        return None  # an error of the study, with its line


def _emulated_step(seconds: float | None) -> dict[str, str]:
    """The published step time as a part of an id, to six digits: powers and logarithms differ in the last ones."""
    return {"emulated_step_s": f"{seconds:.6g}"} if seconds else {}


def is_named(run: str, plain: Mapping[str, Any], step_time_s: float | None = None) -> bool:
    """Whether an id is that of a spec and an emulated step time, as a result holds them, by this version or another.

    Ids also hash extension code. Imported results come without it, so their ids cannot be verified.
    """
    if "program" in plain or any(
        isinstance(part := plain.get(key), Mapping) and "import" in part for key in ("model", "data")
    ):
        return True
    versions = [TRAINER_VERSION, *(version for version in range(1, KNOWN_VERSIONS) if version != TRAINER_VERSION)]
    questions = ({"trainer_version": version, **plain, **_emulated_step(step_time_s)} for version in versions)
    return any(sha256_text(canonical_json(question))[:12] == run[-12:] for question in questions)


def configuration_id(spec: RunSpec) -> str:
    """The same for all repeats of one configuration."""
    plain = {key: value for key, value in spec.plain().items() if key not in ("seed", "repeat")}
    return sha256_text(canonical_json({**plain, "base_seed": spec.seed - spec.repeat}))[:12]


def dataset_id(data: DatasetSpec, extensions: Path = EXTENSIONS) -> str:
    """`synthetic_jpeg-0123456789ab`: the same for the same form of the same data."""
    form: dict[str, Any] = {"data_version": DATA_VERSION, **data.plain()}
    if isinstance(data, OwnData):
        form["own_code"] = own_code(data.import_, extensions)
    source = data.source if isinstance(data, OwnData) else form["source"]
    return f"{_slug(str(source))}-{sha256_text(canonical_json(form))[:12]}"


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", text)[:90]


def own_code_problems(spec: RunSpec, extensions: Path = EXTENSIONS) -> Iterator[Problem]:
    """Check the user's own model, data or program, without running its code."""
    named = [((key, "import"), part.import_) for key, part in (("model", spec.model), ("data", spec.data))
             if isinstance(part, (OwnModel, OwnData))]  # fmt: skip
    named += [(("program", "files"), file) for file in (spec.program.files if spec.program else ())]
    for path, target in named:
        try:
            own_code(target, extensions)
        except UserError as error:
            yield Problem(path, error.what, error.remedy)


def own_code_now(spec: RunSpec, extensions: Path) -> dict[str, str]:
    """By `import`, the SHA-256 of each file of the user's own that a run trains with, as it is now; "" for one that is gone."""
    files = {target: own_file(target, extensions) for target in _own_targets(spec)}
    return {target: sha256_file(file) if file.is_file() else "" for target, file in files.items()}


def _own_targets(spec: RunSpec) -> list[str]:
    imported = [part.import_ for part in (spec.model, spec.data) if isinstance(part, (OwnModel, OwnData))]
    return [*imported, *(spec.program.files if spec.program else ())]


def own_file(target: str, extensions: Path) -> Path:
    """The file that `file:class` names, or a program's file."""
    if ":" not in target:
        return extensions.parents[1] / target
    return extensions / f"{target.partition(':')[0]}.py"


@functools.cache
def own_code(target: str, extensions: Path = EXTENSIONS) -> str:
    """SHA-256 of the file that `file:class` names below config/extensions/, or of a program's file."""
    file = own_file(target, extensions)
    if not file.is_file() and ":" not in target:
        raise UserError(f"`{target}` does not exist", remedy="name a file from the project's folder")
    if not file.is_file():
        found = ", ".join(sorted(path.name for path in extensions.glob("*.py"))) or "no Python file"
        raise UserError(f"`{target}` names {file}, which does not exist", remedy=f"{extensions} holds {found}")
    return sha256_file(file)
