"""Checkpoints: folders that are whole or absent, two of them kept, of safetensors and JSON.

`checkpoint/step-000000120/` in a run's folder holds `state.safetensors` (the complete state of the strategy),
`rank<k>.safetensors` (each rank's random states, step times and losses) and `checkpoint.json` with all else there is
to know and the checksum of every file, including its own.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from scalestudy.errors import UserError
from scalestudy.files import canonical_json, finite, refuse_link, sync_directory
from scalestudy.spec.run import RunSpec
from scalestudy.training.report import CheckpointCost

FORMAT = 1
KEPT = 2
NAME = re.compile(r"step-[0-9]{9}")
FILE_NAME = re.compile(r"(?:state|rank[0-9]{1,6})\.safetensors")
MAX_FACTS_BYTES = 1 << 28
"""Bytes of `checkpoint.json`, which holds the reports of all ranks."""
STATE, FACTS, COST = "state.safetensors", "checkpoint.json", "cost.json"
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class CheckpointPart:
    """One rank's part of a checkpoint."""

    tensors: Tensors
    """Its own: random states, step times, losses."""
    report: dict[str, Any]
    """Its report so far, plain data."""
    state: Tensors
    """The strategy's state; empty but on rank 0."""


def step_folder(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / f"step-{step:09d}"


# Writing


def write(
    folder: Path, step: int, rank: int, part: CheckpointPart, facts: dict[str, Any], gather: Callable[[Any], list[Any]]
) -> int:
    """Write one checkpoint, together with all other ranks; returns its bytes on rank 0, else 0.

    Each rank writes and syncs its own file; rank 0 also writes the state and, when all files are there, the facts, and
    gives the folder its name. `gather` returns every rank's value on rank 0. The call returns on each rank when its own
    part is done: on rank 0 last. Raises UserError where the file system refuses.
    """
    final = step_folder(folder, step)
    partial = folder / f".{final.name}.partial"
    try:
        if rank == 0:
            refuse_link(partial)
            shutil.rmtree(partial, ignore_errors=True)
        gather(None)  # no rank writes while the folder is being cleared
        partial.mkdir(parents=True, exist_ok=True)
        files = _saved(partial / f"rank{rank}.safetensors", part.tensors)
        if rank == 0:
            files |= _saved(partial / STATE, part.state)
        parts = gather((files, part.report))
        if rank > 0:
            return 0
        facts = {**facts, "format": FORMAT, "step": step, "reports": [report for _, report in parts]}
        facts["files"] = {name: entry for files, _ in parts for name, entry in files.items()}
        _write_facts(partial / FACTS, facts)
        sync_directory(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        sync_directory(folder)
        for old in complete(folder)[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        return sum(entry["bytes"] for entry in facts["files"].values())
    except OSError as error:
        what = f"the checkpoint after step {step} cannot be written: {error.strerror or error}"
        raise UserError(
            what, str(folder), "free some space there; the run resumes from the checkpoint before"
        ) from None


def write_cost(folder: Path, cost: CheckpointCost) -> None:
    """Add its cost to a checkpoint: known only once it is written, and not needed to resume."""
    (step_folder(folder, cost.step) / COST).write_text(json.dumps(cost.plain()), encoding="utf-8")


def read_cost(path: Path) -> CheckpointCost | None:
    """The cost of a checkpoint, None where the run ended before that was written."""
    try:
        return CheckpointCost.from_plain(json.loads((path / COST).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _saved(file: Path, tensors: Tensors) -> dict[str, dict[str, Any]]:
    try:
        save_file(tensors, file)
    except SafetensorError as error:
        raise OSError(str(error)) from None
    with open(file, "rb") as written:
        os.fsync(written.fileno())
    return {file.name: {"bytes": file.stat().st_size, "xxh3": _checksum(file)}}


def _write_facts(file: Path, facts: dict[str, Any]) -> None:
    body = canonical_json(finite(facts))
    text = json.dumps({"xxh3": xxhash.xxh3_128_hexdigest(body.encode()), "facts": json.loads(body)}, indent=1)
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(text + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def _checksum(file: Path) -> str:
    digest = xxhash.xxh3_128()
    with open(file, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 22), b""):
            digest.update(block)
    return digest.hexdigest()


# Reading


def complete(folder: Path) -> list[Path]:
    """The checkpoints that got their names, oldest first."""
    return sorted(path for path in folder.glob("step-*") if NAME.fullmatch(path.name) and path.is_dir())


def newest_whole(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint with every byte as written, None where there is none; and sentences about damaged ones.

    A damaged one is renamed to `damaged-step-…`, so that it neither counts as kept nor is used again.
    """
    warnings: list[str] = []
    for path in reversed(complete(folder)):
        damage = damage_of(path)
        if damage is None:
            return path, warnings
        aside = folder / f"damaged-{path.name}"
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
        left = complete(folder)
        instead = f"the one after step {_step_of(left[-1])} is used" if left else "the run starts from the beginning"
        warnings.append(f"the checkpoint after step {_step_of(path)} is damaged ({damage}): {instead}")
    return None, warnings


def clear_partial(folder: Path) -> None:
    """Remove files of a killed writer."""
    for path in folder.glob(".step-*.partial"):
        shutil.rmtree(path, ignore_errors=True)


def damage_of(path: Path) -> str | None:
    """The damage of a checkpoint; None where it is whole."""
    try:
        facts = read_facts(path)
    except UserError as error:
        return error.what
    if NAME.fullmatch(path.name) and _step_of(path) != facts["step"]:
        return f"{FACTS} is of step {facts['step']}"
    damaged = (_damage_of_file(path / name, entry) for name, entry in facts["files"].items())
    return next(filter(None, damaged), None)


def _damage_of_file(file: Path, entry: dict[str, Any]) -> str | None:
    if not file.is_file():
        return f"{file.name} is missing"
    if file.stat().st_size != entry["bytes"]:
        return f"{file.name} has {file.stat().st_size:,} bytes, {entry['bytes']:,} were written"
    if _checksum(file) != entry["xxh3"]:
        return f"{file.name} is not what was written"
    try:
        with safe_open(file, "pt"):
            return None
    except (SafetensorError, OSError) as error:
        return f"{file.name} holds no tensors: {error}"


def read_facts(path: Path) -> dict[str, Any]:
    """Read `checkpoint.json`: step, run, spec, reports of the ranks. Raises UserError where it is damaged."""
    try:
        if (path / FACTS).stat().st_size > MAX_FACTS_BYTES or not (path / FACTS).is_file():
            raise ValueError
        text = json.loads((path / FACTS).read_text(encoding="utf-8"))
        facts: dict[str, Any] = text["facts"]
        whole = xxhash.xxh3_128_hexdigest(canonical_json(facts).encode()) == text["xxh3"]
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{FACTS} is missing", str(path), "name a folder `step-…` of a run's `checkpoint/`") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise UserError(f"{FACTS} is not what was written", str(path), "use another checkpoint")
    if (wrong := _wrong_fact(facts)) is not None:
        raise UserError(f"{FACTS} is not what a run writes: its `{wrong}`", str(path), "use another checkpoint")
    return facts


KINDS: dict[str, type] = {"run": str, "spec": dict, "code": str, "step": int, "ranks": int, "global_batch": int,
                          "format": int, "files": dict, "reports": list}  # fmt: skip
"""What `checkpoint.json` says, and as what."""


def _wrong_fact(facts: Any) -> str | None:
    """The first thing that a run cannot have written; a checksum that fits proves nothing about who made it."""
    for key, kind in KINDS.items():
        if not isinstance(facts, dict) or type(facts.get(key)) is not kind:
            return key
    if facts["format"] != FORMAT:
        return "format"
    if facts["step"] < 0 or facts["ranks"] < 1:
        return "step" if facts["step"] < 0 else "ranks"
    if not all(isinstance(report, dict) for report in facts["reports"]) or len(facts["reports"]) < facts["ranks"]:
        return "reports"
    for name, entry in facts["files"].items():
        kinds = {key: type(value) for key, value in entry.items()} if isinstance(entry, dict) else {}
        if FILE_NAME.fullmatch(name) is None or kinds != {"bytes": int, "xxh3": str}:
            return "files"
    return None if STATE in facts["files"] else "files"


def read_state(path: Path) -> Tensors:
    """The strategy's whole state."""
    return dict(load_file(path / STATE))


def read_rank(path: Path, rank: int) -> Tensors:
    """One rank's own tensors."""
    return dict(load_file(path / f"rank{rank}.safetensors"))


def _step_of(path: Path) -> int:
    return int(path.name.partition("-")[2])


# Random states


def random_states() -> Tensors:
    """The states of torch's, numpy's and Python's generators, and of this process's GPU."""
    _, keys, position, has_gauss, gauss = np.random.get_state()
    version, integers, gauss_next = random.getstate()
    states = {
        "random.torch": torch.get_rng_state(),
        "random.numpy": torch.from_numpy(np.array([*keys, position, has_gauss], dtype=np.int64)),
        "random.numpy_gauss": torch.tensor(float(gauss), dtype=torch.float64),
        "random.python": torch.tensor([version, *integers], dtype=torch.int64),
        "random.python_gauss": torch.tensor(float("nan") if gauss_next is None else gauss_next, dtype=torch.float64),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["random.cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: Tensors) -> None:
    """Put all generators into the states that `random_states` returned."""
    torch.set_rng_state(states["random.torch"])
    numbers = states["random.numpy"].tolist()
    keys = np.array(numbers[:-2], dtype=np.uint32)
    np.random.set_state(("MT19937", keys, numbers[-2], numbers[-1], states["random.numpy_gauss"].item()))
    version, *integers = states["random.python"].tolist()
    gauss_next = states["random.python_gauss"].item()
    random.setstate((version, tuple(integers), None if math.isnan(gauss_next) else gauss_next))
    if "random.cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["random.cuda"])


@contextlib.contextmanager
def untouched_random_states() -> Iterator[None]:
    """Leave every generator as it was."""
    states = random_states()
    try:
        yield
    finally:
        set_random_states(states)


# The checkpoint of another run


def facts_to_init_from(path: Path, spec: RunSpec) -> dict[str, Any]:
    """The facts of another run's checkpoint, from which a run of `spec` can begin.

    The state is unsharded, and the samples of a step are those of the global batch: ranks, nodes, threads, the
    exchange, and where a run is measured and ends may differ. Raises UserError where something else does, or where the
    checkpoint is damaged.
    """
    facts = read_facts(path)
    damage = damage_of(path)
    if damage is not None:
        raise UserError(f"the checkpoint is damaged: {damage}", str(path), "use another one")
    old, new = facts["spec"], spec.plain()
    different = [
        key
        for key in ("model", "data", "dtype", "autocast", "tf32", "seed", "optimiser")
        if old.get(key) != new.get(key)
    ]
    parts = (("loader", "size"), ("loader", "augment"), ("train", "weighted_loss"))
    different += [f"{part}.{key}" for part, key in parts if _of(old, part, key) != _of(new, part, key)]
    if facts["global_batch"] != spec.global_batch:
        different.append(f"the global batch ({facts['global_batch']} samples there, {spec.global_batch} here)")
    if different:
        what = f"a training cannot begin from a checkpoint of a different one: {', '.join(different)} differ"
        raise UserError(what, str(path), "give the same settings; ranks, strategy, train, measure and keep may differ")
    return facts


def _of(plain: dict[str, Any], part: str, key: str) -> Any:
    return plain.get(part, {}).get(key)


def now() -> str:
    """The time of writing, for people."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
