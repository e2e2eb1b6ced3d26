"""A training script of the user's own in place of the project's trainer: its command, placeholders, and problems."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from scalestudy.errors import Problem
from scalestudy.spec.base import Spec, suggest
from scalestudy.spec.columns import MEASURED, ROW_COLUMNS, flat

if TYPE_CHECKING:
    from scalestudy.spec.run import RunSpec

PLACEHOLDER = re.compile(r"\{([a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)*)\}")
LAUNCH_PLACEHOLDERS = ("rank", "node_rank", "master_addr", "master_port", "folder")
"""Placeholders whose values are known at the start of the run."""
COMMON_KEYS = (
    "program", "ranks", "nodes", "hosts", "ranks_per_node", "threads_per_rank", "seed", "repeat", "device", "launch",
    "heartbeat_timeout_s", "measure.warmup_steps", "measure.steps", "measure.minutes", "measure.whole_program",
)  # fmt: skip
"""Keys of a run that hold for a program too; each other one only where the command has it as a placeholder."""
OwnValue = bool | int | float | str


class Program(Spec):
    """A training script of your own, run in place of model, data and strategy."""

    command: Annotated[str, Field(min_length=1)]
    """Its command, started in the project's folder without a shell. A key of the run in braces stands for its value:
    `{ranks_per_node}`, `{batch.per_rank}`; so does any other word, which is a key of your own: `{fsdp}`."""
    files: Annotated[tuple[Annotated[str, Field(pattern=r"^[^/:][^:]*$")], ...], Field(min_length=1)]
    """Its files, from the project's folder: the run's id holds their digests. The first one names the program."""
    keys: dict[str, OwnValue] = {}
    """Values of your own keys. In `vary`, `zip`, `include` and `exclude` they stand without `program.keys.`."""
    once_per: Literal["node", "rank", "job"] = "node"
    """How often the command is started: once on each node (`torchrun`, `accelerate`), for each rank, or on the first node
    alone (`srun`, `mpirun`)."""
    resume: bool = False
    """Whether it can stop and go on: before `SCALESTUDY_DEADLINE` (seconds since 1970), or on SIGTERM, it writes its state to
    the file `SCALESTUDY_STATE` and calls `sys.exit(75)`. Started again, it goes on from that file."""
    explain: bool = False
    """Whether it runs with parts of its steps taken away, as `scalestudy explain` does; set by the study's `explain`."""
    metrics: dict[Literal["step", "samples", "loss", "bytes", "flops"], str] = {}
    """Regular expressions over its output; the first group of each is the number. `step` is needed."""

    @property
    def name(self) -> str:
        """Stem of the first file."""
        return PurePosixPath(self.files[0]).stem

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Names in braces, each once."""
        return tuple(dict.fromkeys(PLACEHOLDER.findall(self.command)))

    def uses(self, key: str) -> bool:
        """Whether a key of the run has a meaning for this program."""
        names = (*COMMON_KEYS, *self.placeholders)
        batch = key.startswith("batch.") and {"batch.per_rank", "batch.global"} & set(names)
        return bool(batch) or any(key == name or key.startswith(f"{name}.") for name in names)

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """Return the command's words with a value for each placeholder, without words that become empty by it."""
        words = shlex.split(self.command)
        made = [PLACEHOLDER.sub(lambda match: _text(values.get(match[1])), word) for word in words]
        return [word for word, before in zip(made, words, strict=True) if word or not before]


def _text(value: Any) -> str:
    """Return a value as a command line has it."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def own_keys(base: Mapping[str, Any], run_keys: tuple[str, ...]) -> set[str]:
    """Return the keys of the user's own: placeholders in the command of a study's `base` that are no keys of a run."""
    program = base.get("program")
    command = program.get("command") if isinstance(program, dict) else None
    names = PLACEHOLDER.findall(command) if isinstance(command, str) else []
    return set(names) - set(run_keys) - set(LAUNCH_PLACEHOLDERS)


def program_problems(spec: RunSpec, run_keys: tuple[str, ...]) -> Iterator[Problem]:
    """Problems of a run that is a program."""
    program = spec.program
    assert program is not None
    try:
        shlex.split(program.command)
    except ValueError as error:
        yield Problem(("program", "command"), f"cannot be split into words: {error}", "close its quotes")
    for name in program.placeholders:
        if name not in (*run_keys, *LAUNCH_PLACEHOLDERS, *program.keys):
            what = f"`{{{name}}}` is no key of a run, and has no value as a key of your own"
            remedy = f"set it in `program.keys` or vary it; {suggest(name, run_keys)}"
            yield Problem(("program", "command"), what, remedy)
    for name in program.keys:
        if name in (*run_keys, *MEASURED, *ROW_COLUMNS):
            what = "is a key of the run" if name in run_keys else "is a column of the results"
            yield Problem(("program", "keys", name), what, "give your own key another name")
        elif name not in program.placeholders:
            what = f"the command does not have `{{{name}}}`"
            yield Problem(("program", "keys", name), what, "add it, or leave it out")
    for name, pattern in program.metrics.items():
        try:
            if not re.compile(pattern).groups:
                yield Problem(("program", "metrics", name), "has no group", "put brackets around the number")
        except re.error as error:
            yield Problem(("program", "metrics", name), f"is no regular expression: {error}")
    if program.metrics and "step" not in program.metrics:
        yield Problem(("program", "metrics"), "has no `step`", "add the pattern of the step's number")
    for key, _ in flat(spec.to_dict()):
        if not program.uses(key):
            what = f"`{key}` is set, and the command of the program does not have it"
            yield Problem(tuple(key.split(".")), what, f"write `{{{key}}}` into the command, or leave it out")
