"""Checkpoints: folders that are whole or absent, two of them kept, of safetensors and JSON.

`checkpoint/step-000000120/` in a run's folder holds `state.safetensors` (the complete state of the strategy),
`rank<k>.safetensors` (each rank's random states, step times and losses) and `checkpoint.json` with all other facts and
the checksum of every file, including its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from scalestudy.errors import UserError
from scalestudy.files import canonical_json, finite, sync_directory
from scalestudy.training.report import CheckpointCost

KEPT = 2
NAME = re.compile(r"step-[0-9]{9}")
STATE, FACTS, COST = "state.safetensors", "checkpoint.json", "cost.json"
Tensors = dict[str, torch.Tensor]


def step_folder(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / f"step-{step:09d}"


# Writing


def write(
    folder: Path,
    step: int,
    rank: int,
    tensors: Tensors,
    state: Tensors,
    report: dict[str, Any],
    facts: dict[str, Any],
    gather: Callable[[Any], list[Any]],
) -> int:
    """Write one checkpoint, together with all other ranks; returns its bytes on rank 0, else 0.

    Each rank writes and syncs its own `tensors`; rank 0 also writes the strategy's `state` and, when all files are there,
    the facts with every rank's report, and gives the folder its name. `gather` returns every rank's value on rank 0. The
    call returns on each rank when its own part is done: on rank 0 last. Raises UserError where the file system refuses.
    """
    final = step_folder(folder, step)
    partial = folder / f".{final.name}.partial"
    try:
        if rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        gather(None)  # no rank writes while the folder is being cleared
        partial.mkdir(parents=True, exist_ok=True)
        files = _saved(partial / f"rank{rank}.safetensors", tensors)
        if rank == 0:
            files |= _saved(partial / STATE, state)
        parts = gather((files, report))
        if rank > 0:
            return 0
        files = {name: entry for files, _ in parts for name, entry in files.items()}
        reports = [report for _, report in parts]
        body = canonical_json(finite({**facts, "step": step, "reports": reports, "files": files}))
        with open(partial / FACTS, "w", encoding="utf-8") as stream:
            json.dump({"xxh3": xxhash.xxh3_128_hexdigest(body.encode()), "facts": json.loads(body)}, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        sync_directory(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        sync_directory(folder)
        for old in complete(folder)[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        return sum(entry["bytes"] for entry in files.values())
    except (OSError, SafetensorError) as error:
        what = f"the checkpoint after step {step} cannot be written: {getattr(error, 'strerror', None) or error}"
        remedy = "free some space there; the run resumes from the checkpoint before"
        raise UserError(what, str(folder), remedy) from None


def write_cost(folder: Path, cost: CheckpointCost) -> None:
    """Add its cost to a checkpoint: known only once it is written, and not needed to resume."""
    (step_folder(folder, cost.step) / COST).write_text(json.dumps(cost.to_dict()), encoding="utf-8")


def read_cost(path: Path) -> CheckpointCost | None:
    """The cost of a checkpoint, None where the run ended before that was written."""
    try:
        return CheckpointCost.from_plain(json.loads((path / COST).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _saved(file: Path, tensors: Tensors) -> dict[str, dict[str, Any]]:
    save_file(tensors, file)
    with open(file, "rb") as written:
        os.fsync(written.fileno())
    return {file.name: {"bytes": file.stat().st_size, "xxh3": _checksum(file)}}


def _checksum(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, xxhash.xxh3_128).hexdigest()


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
        try:
            damage = damage_of(path, read_facts(path))
        except UserError as error:
            damage = error.what
        if damage is None:
            return path, warnings
        aside = folder / f"damaged-{path.name}"
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
        left = complete(folder)
        use = f"the one after step {int(left[-1].name[5:])} is used" if left else "the run starts from the beginning"
        warnings.append(f"the checkpoint after step {int(path.name[5:])} is damaged ({damage}): {use}")
    return None, warnings


def clear_partial(folder: Path) -> None:
    """Remove files of a killed writer."""
    for path in folder.glob(".step-*.partial"):
        shutil.rmtree(path, ignore_errors=True)


def read_facts(path: Path) -> dict[str, Any]:
    """Read `checkpoint.json`: step, run, reports of the ranks. Raises UserError where it is missing or damaged."""
    file = path / FACTS
    try:
        text = json.loads(file.read_text(encoding="utf-8"))
        facts: dict[str, Any] = text["facts"]
        if xxhash.xxh3_128_hexdigest(canonical_json(facts).encode()) == text["xxh3"]:
            return facts
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{FACTS} is missing", str(path)) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UserError(f"{FACTS} is not what was written", str(path))


def damage_of(path: Path, facts: dict[str, Any]) -> str | None:
    """The damage of a checkpoint with these facts; None where every file is as it was written."""
    if path.name != step_folder(path.parent, facts["step"]).name:
        return f"{FACTS} is of step {facts['step']}"
    for name, entry in facts["files"].items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if _checksum(file) != entry["xxh3"]:
            return f"{name} is not what was written"
    return None


def read_state(path: Path) -> Tensors:
    """The strategy's whole state."""
    return dict(load_file(path / STATE))


def read_rank(path: Path, rank: int) -> Tensors:
    """One rank's own tensors."""
    return dict(load_file(path / f"rank{rank}.safetensors"))


# Random states


def random_states() -> Tensors:
    """The states of torch's, numpy's and Python's generators, and of this process's GPU."""
    of_numpy: Any = np.random.get_state()
    kind, keys, *more = of_numpy
    plain = json.dumps([random.getstate(), [kind, keys.tolist(), *more]])
    states = {
        "random.torch": torch.get_rng_state(),
        "random.python_and_numpy": torch.frombuffer(bytearray(plain, "ascii"), dtype=torch.uint8),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["random.cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: Tensors) -> None:
    """Put all generators into the states that `random_states` returned."""
    (version, integers, gauss), of_numpy = json.loads(bytes(states["random.python_and_numpy"].tolist()))
    random.setstate((version, tuple(integers), gauss))
    np.random.set_state(tuple(of_numpy))
    torch.set_rng_state(states["random.torch"])
    if "random.cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["random.cuda"])
