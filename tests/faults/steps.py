"""The steps of the pipeline: what each is called by, at which moment a fault strikes, and what counts as its outcome."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from tests.faults.world import World

Outcome = dict[str, str]
"""Digests of what later steps would take for done, by name; empty where nothing is."""
TIMES_OF_DATA = ("seconds", "cost", "digest")
"""What differs between two manifests of the same data; the digest is over the others too."""
NAMES = ("prepare", "shard", "stage", "train", "summarise", "figures", "claims", "plan", "submit")


@dataclass(frozen=True)
class Step:
    """One step."""

    name: str
    command: tuple[str, ...]
    """As a person, or a rule, gives it."""
    target: str | None
    """The file by which the driver is asked for the same; None where no rule makes it."""
    removed: tuple[str, ...]
    """Patterns of what a finished project lacks before the step."""
    writes: str
    """Pattern of a file that the step is writing at the moment of a fault; errors of writing are on it."""
    reads: str | None
    """Pattern of a file that it reads by calls of the C library; None where it reads none below the folder."""
    outcome: Callable[[Path], Outcome]
    """What is done in a folder. Times are left out, and everything else is in it."""
    memory_mib: int
    """Address space in which it begins and does not come to its end."""
    room_kib: int = 4
    """What is left on a full disk: less than it needs."""
    open_files: int = 5
    """So many, and no more, is too few."""
    everywhere: str = "*"
    """Pattern, below the folder, of the files that faults of all files act on."""
    exempt: dict[str, str] = field(default_factory=dict)
    """Faults that it cannot meet, with the reason."""

    def begin(self, folder: Path) -> None:
        """Bring a copy of a finished project to where the step is the next one."""
        for pattern in self.removed:
            for path in sorted(folder.glob(pattern)):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    @property
    def by_driver(self) -> tuple[str, ...] | None:
        """The command by which a driver makes it."""
        return None if self.target is None else ("snakemake", "--profile", "profiles/local", self.target)


NO_SCHEDULER = {"scheduler_gone": "no scheduler takes part"}
NO_DRIVER = {"driver_gone": "it has no driver: a person gives the command"}


def steps_of(world: World) -> dict[str, Step]:
    """All steps but `submit`, for copies of this project."""
    base = world.base
    [digits] = (path.name for path in base.glob("results/data/digits-*"))
    [pictures] = (path.name for path in base.glob("results/data/image_folder-*"))
    [run] = (path.name for path in base.glob("results/local/runs/mlp.digits.allreduce.x2.r0-*"))
    steps = [
        _prepare(digits), _shard(pictures), _stage(pictures), _train(run), _summarise(), _figures(), _claims(), _plan(run),
    ]  # fmt: skip
    return {step.name: step for step in steps}


def _prepare(dataset: str) -> Step:
    manifest = f"results/data/{dataset}/manifest.json"
    return Step(
        "prepare",
        ("scalestudy", "prepare", "--spec", '{"source": "digits"}', "--out", manifest),
        manifest,
        (f"results/data/{dataset}",),
        "*/.bulk.making-*/.manifest.*",
        None,
        lambda folder: _data(folder, dataset),
        memory_mib=140,
        exempt={**NO_SCHEDULER, "eio_read": "the digits come with scikit-learn: nothing is read below the folder"},
    )


def _shard(dataset: str) -> Step:
    manifest = f"results/data/{dataset}/manifest.json"
    spec = '{"source": "image_folder", "root": "pictures", "shard": {"format": "tar", "mib": 0.015625}}'
    return Step(
        "shard",
        ("scalestudy", "prepare", "--spec", spec, "--out", manifest),
        manifest,
        (f"results/data/{dataset}",),
        "*/.bulk.making-*/train-000002.part",
        "*/pictures/train/light/007.jpg",
        lambda folder: _data(folder, dataset),
        memory_mib=160,
        room_kib=24,
        exempt=NO_SCHEDULER,
    )


def _stage(dataset: str) -> Step:
    return Step(
        "stage",
        ("scalestudy", "stage", f"results/data/{dataset}/manifest.json"),
        None,
        ("tmp/*",),
        "*/scalestudy-staged-*/train-000002.tar",
        "*/bulk/train-000002.tar",
        _copies,
        memory_mib=120,
        room_kib=40,
        exempt={
            **NO_SCHEDULER, **NO_DRIVER,
            "two_machines": "copies are on a node's own disk: two machines have two",
        },
    )  # fmt: skip


def _train(run: str) -> Step:
    result = f"results/local/runs/{run}/result.json"
    return Step(
        "train",
        ("scalestudy", "train", "--out", result),
        result,
        (result, f"results/local/runs/{run}/*.parquet", f"results/local/runs/{run}/*.safetensors"),
        "*/checkpoint/.step-*.partial/checkpoint.json",
        "*/data/digits-*/manifest.json",
        lambda folder: trained(folder / f"results/local/runs/{run}"),
        memory_mib=600,
        open_files=16,
        exempt={"scheduler_gone": "no scheduler takes part"},
    )


def _summarise() -> Step:
    folder = "results/local/mini/studies/tiny"
    return Step(
        "summarise",
        ("scalestudy", "summarise", "--study", "tiny"),
        f"{folder}/runs.parquet",
        (f"{folder}/*",),
        "*/studies/tiny/.summary.*",
        "*/runs/*/result.json",
        lambda case: digests(case, [f"{folder}/runs.parquet", f"{folder}/summary.csv"]),
        memory_mib=220,
        exempt=NO_SCHEDULER,
    )


def _figures() -> Step:
    names = [f"results/local/mini/figures/tiny/ends.{suffix}" for suffix in ("svg", "pdf", "png")]
    return Step(
        "figures",
        ("scalestudy", "figure", "--study", "tiny", "--name", "ends"),
        names[0],
        ("results/local/mini/figures/tiny/ends.*",),
        "*/figures/tiny/.ends.*",
        "*/studies/tiny/runs.parquet",
        lambda case: digests(case, names),
        memory_mib=250,
        exempt=NO_SCHEDULER,
    )


def _claims() -> Step:
    names = [f"results/local/mini/claims/tiny.{suffix}" for suffix in ("json", "csv", "md", "tex")]
    return Step(
        "claims",
        ("scalestudy", "judge", "--study", "tiny"),
        names[0],
        tuple(names),
        "*/claims/.tiny.*.csv",
        "*/studies/tiny/runs.parquet",
        lambda case: digests(case, names),
        memory_mib=220,
        exempt=NO_SCHEDULER,
    )


def _plan(run: str) -> Step:
    return Step(
        "plan",
        ("scalestudy", "plan", "--csv", "plan.csv", "--json", "plan.json"),
        None,
        (f"results/local/runs/{run}/result.json",),
        "*/.plan.*",
        "*/config/studies/tiny.yaml",
        lambda case: digests(case, ["plan.csv", "plan.json"]),
        memory_mib=200,
        open_files=12,
        exempt={**NO_SCHEDULER, **NO_DRIVER},
    )


# Outcomes


def digests(folder: Path, names: Iterable[str]) -> Outcome:
    """SHA-256 of those files that are there."""
    return {name: _sha(folder / name) for name in names if (folder / name).is_file()}


def _data(folder: Path, dataset: str) -> Outcome:
    """A prepared dataset counts once its manifest is there, then with every file."""
    place = folder / "results/data" / dataset
    if not (place / "manifest.json").is_file():
        return {}
    files = [place / "manifest.json", *(path for path in (place / "bulk").rglob("*") if path.is_file())]
    return {str(file.relative_to(place)): _without(file, TIMES_OF_DATA) for file in files}


def _copies(folder: Path) -> Outcome:
    """Copies count where they are recorded as whole."""
    found: Outcome = {}
    for facts in folder.glob("tmp/scalestudy-staged-*/*.json"):
        if _json(facts).get("state") == "whole":
            entry = facts.with_suffix("")
            files = [path for path in entry.rglob("*") if path.is_file()]
            found |= {str(file.relative_to(entry)): _without(file, TIMES_OF_DATA) for file in files}
    return found


def trained(run: Path) -> Outcome:
    """A run counts once its result is there: what it learned, on what, by every step's loss and the last weights."""
    if not (run / "result.json").is_file():
        return {}
    result = _json(run / "result.json")
    said = {key: result.get(key) for key in ("run", "status", "reason", "spec", "steps_done", "samples_seen")}
    said["scores"] = [[each.get(key) for key in ("step", "loss", "accuracy")] for each in result["evaluations"]]
    said["ends"] = [result["metrics"].get(key) for key in ("loss", "accuracy")]
    hours = [link["hours"] for link in result["links"] if link["hours"] is not None]
    said["hours are possible"] = all(0 <= each < 0.5 for each in hours)
    steps = run / "steps.parquet"
    losses = pd.read_parquet(steps)["loss"].tolist() if steps.is_file() else "no steps.parquet"
    return {
        "what result.json says": _text(said),
        "loss of every step": _text(losses),
        **digests(run, ["weights.safetensors"]),
    }


def _without(file: Path, keys: tuple[str, ...]) -> str:
    """The digest of a file; of a JSON file without these keys."""
    if file.suffix != ".json":
        return _sha(file)
    value = _json(file)
    return _text({key: item for key, item in value.items() if key not in keys} if isinstance(value, dict) else value)


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except ValueError:
        return {"not JSON": file.read_text(errors="replace")}


def _text(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _sha(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
