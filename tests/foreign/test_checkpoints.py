"""Damage to a run's checkpoints, and files of others beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

from scalestudy.files import canonical_json
from scalestudy.launch.attempts import Chain, attempt
from scalestudy.training import checkpoint
from scalestudy.training.report import Report
from tests.foreign.conftest import Spoil, cases, contents

PLACE = "results/local/runs/r-0123456789ab/checkpoint/step-000000007"
FACTS, STATE = f"{PLACE}/checkpoint.json", f"{PLACE}/state.safetensors"


def write(project: Path, step: int = 7) -> None:
    state, report = {"model.weight": torch.zeros(3)}, Report(rank=0).to_dict()
    facts = {"run": "r-0123456789ab", "code": "c0de"}
    folder = (project / PLACE).parent
    checkpoint.write(folder, step, 0, checkpoint.random_states(), state, report, facts, lambda value: [value])


def facts(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Other contents of checkpoint.json, with a checksum that fits."""

    def make(project: Path) -> None:
        plain = json.loads((project / FACTS).read_text())["facts"]
        change(plain)
        digest = xxhash.xxh3_128_hexdigest(canonical_json(plain).encode())
        (project / FACTS).write_text(json.dumps({"xxh3": digest, "facts": plain}))

    return make


def flip(project: Path) -> None:
    (project / STATE).write_bytes((project / STATE).read_bytes()[:-1] + b"\x01")


def cut(project: Path) -> None:
    (project / STATE).write_bytes((project / STATE).read_bytes()[:-1])


DAMAGES = {
    "another step than its name": (facts(lambda f: f.update(step=9)), "checkpoint.json is of step 9"),
    "no tensors": (lambda project: (project / STATE).unlink(), "state.safetensors is missing"),
    "cut": (cut, "state.safetensors is not what was written"),
    "a flipped bit": (flip, "state.safetensors is not what was written"),
}


@cases(DAMAGES)
def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(spoil: Spoil, message: str, project: Path) -> None:
    write(project, 3)
    write(project)
    spoil(project)
    found, warnings = checkpoint.newest_whole((project / PLACE).parent)
    assert found is not None and found.name == "step-000000003"
    assert len(warnings) == 1 and message in warnings[0] and "the one after step 3 is used" in warnings[0]


@pytest.mark.parametrize("name", ["step-evil", "step-7", "step-000000009.txt"])
def test_a_folder_of_another_name_is_no_checkpoint_and_stays(name: str, project: Path) -> None:
    write(project)
    ours = (project / PLACE).parent
    (ours / name).mkdir()
    (ours / name / "diary.txt").write_text("private")
    assert checkpoint.newest_whole(ours) == (project / PLACE, [])
    Chain("r-0123456789ab", ours.parent).clear()
    assert {Path(path).name for path in contents(ours, "")} == {name, "diary.txt"}


def test_a_folder_called_checkpoint_without_our_names_in_it_is_not_emptied(project: Path) -> None:
    out = project / "mine"
    (out / "checkpoint").mkdir(parents=True)
    (out / "checkpoint/best.pt").write_text("weeks of work")
    (out / "checkpoint/step-000000001").symlink_to(project.parent / "outside")
    (out / "result.json").write_text("{}")
    with attempt("r-0123456789ab", out / "result.json"):
        pass
    assert (out / "checkpoint/best.pt").read_text() == "weeks of work"
    assert (project.parent / "outside/diary.txt").exists()
