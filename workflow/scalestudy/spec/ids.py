"""Ids: a readable slug and 12 hex digits of all that can change the result."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalestudy.data.catalogue import DatasetSpec, OwnData
from scalestudy.errors import Problem, UserError
from scalestudy.files import canonical_json, sha256_file, sha256_text
from scalestudy.models.catalogue import OwnModel
from scalestudy.spec.layout import EXTENSIONS
from scalestudy.spec.run import RunSpec
from scalestudy.spec.step_times import emulated_step_time

TRAINER_VERSION = 6
"""Raised by hand when a commit changes a run's computation or measurement. 6: a stream of one shard is rotated per epoch; a
model is compiled before its first step, and evaluations run it eagerly."""

DATA_VERSION = 2
"""Raised by hand when a commit changes the bytes of a dataset. 2: a pixel array is shuffled when written."""


def run_id(spec: RunSpec) -> str:
    """`small_cnn.digits.allreduce.x2.r0-0123456789ab`: the same for the same question, wherever it is asked."""
    return run_id_with(spec, own_code(spec))


def run_id_with(spec: RunSpec, own: Mapping[str, str]) -> str:
    """The id of a run with own code of these digests, by its `import`."""
    seconds = None
    if spec.accelerator is not None:
        with suppress(UserError):  # an error of the study, with its line
            seconds = emulated_step_time(spec.model.name, spec.accelerator, spec.rank_batch)
    question: dict[str, Any] = {"trainer_version": TRAINER_VERSION, **spec.to_dict()}
    if seconds:  # to six digits: powers and logarithms differ in the last ones
        question["emulated_step_s"] = f"{seconds:.6g}"
    if own:
        question["own_code"] = dict(own)
    what = f"{spec.model.name}.{spec.data.source}.{spec.strategy.name}"
    if spec.program is not None:
        what = f"{spec.program.name}.{'explained' if spec.program.explain else 'program'}"
    emulated = f".on_{spec.accelerator}" if spec.accelerator else ""
    where = f".at_{'_'.join(spec.hosts)}" if spec.hosts else ""
    return f"{_slug(f'{what}{emulated}.x{spec.ranks}{where}.r{spec.repeat}')}-{_digits(question)}"


def _digits(question: Mapping[str, Any]) -> str:
    return sha256_text(canonical_json(question))[:12]


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", text)[:90]


def configuration_id(spec: RunSpec) -> str:
    """The same for all repeats of one configuration."""
    plain = {key: value for key, value in spec.to_dict().items() if key not in ("seed", "repeat")}
    return _digits({**plain, "base_seed": spec.seed - spec.repeat})


def dataset_id(data: DatasetSpec) -> str:
    """`synthetic_jpeg-0123456789ab`: the same for the same form of the same data."""
    form: dict[str, Any] = {"data_version": DATA_VERSION, **data.to_dict()}
    if isinstance(data, OwnData):
        form["own_code"] = _digest(own_file(data.import_))
    return f"{_slug(str(data.source if isinstance(data, OwnData) else form['source']))}-{_digits(form)}"


def own_code_problems(spec: RunSpec) -> Iterator[Problem]:
    """Files of the user's own model, data or program that do not exist."""
    for path, target in _own_targets(spec):
        file = own_file(target)
        if not file.is_file() and ":" in target:
            contents = ", ".join(sorted(each.name for each in EXTENSIONS.glob("*.py"))) or "no Python file"
            yield Problem(path, f"`{target}` names {file}, which does not exist", f"{EXTENSIONS} holds {contents}")
        elif not file.is_file():
            yield Problem(path, f"`{target}` does not exist", "name a file from the project's folder")


def own_code(spec: RunSpec, extensions: Path = EXTENSIONS) -> dict[str, str]:
    """By `import`, the SHA-256 of each file of the user's own that a run trains with, as it is now; "" for one that is gone."""
    return {target: _digest(own_file(target, extensions)) for _, target in _own_targets(spec)}


def _own_targets(spec: RunSpec) -> list[tuple[tuple[str, str], str]]:
    """Key and target of each part of a run that is the user's own."""
    parts = {"model": spec.model, "data": spec.data}
    targets = [((key, "import"), part.import_) for key, part in parts.items() if isinstance(part, (OwnModel, OwnData))]
    return [*targets, *((("program", "files"), file) for file in (spec.program.files if spec.program else ()))]


def own_file(target: str, extensions: Path = EXTENSIONS) -> Path:
    """The file that `file:class` names, or a program's file."""
    return extensions / f"{target.partition(':')[0]}.py" if ":" in target else extensions.parents[1] / target


def _digest(file: Path) -> str:
    if not file.is_file():
        return ""
    stat = file.stat()
    return _digest_of(file.absolute(), stat.st_mtime_ns, stat.st_size)


@functools.cache
def _digest_of(file: Path, *_written: int) -> str:
    """The digest of a file of this time and size: all runs of a study may have one large file."""
    return sha256_file(file)
