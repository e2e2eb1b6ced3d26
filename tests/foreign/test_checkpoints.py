"""Checkpoints of unknown origin, named by `scalestudy try --from`, and damage to a run's own ones."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

from scalestudy.files import canonical_json
from scalestudy.launch.attempts import Chain, attempt
from scalestudy.spec.run import RunSpec
from scalestudy.training import checkpoint
from scalestudy.training.report import Report
from tests.foreign.conftest import Command, Spoil, cases, contents, link, raw

PLACE = "results/local/runs/r-0123456789ab/checkpoint/step-000000007"
FACTS, STATE = f"{PLACE}/checkpoint.json", f"{PLACE}/state.safetensors"
WORDS = ("model={name: mlp, hidden: 4, layers: 1}", "data.source=digits")
TRY = ("try", *WORDS, "--out", "made", "--from", PLACE)
SPEC = RunSpec.model_validate_json('{"model": {"name": "mlp", "hidden": 4, "layers": 1}, "data": {"source": "digits"}}')


def write(project: Path, step: int = 7) -> None:
    """A checkpoint of one rank."""
    state, report = {"model.weight": torch.zeros(3)}, Report(rank=0).plain()
    facts = {"run": "r-0123456789ab", "spec": SPEC.plain(), "global_batch": SPEC.global_batch, "ranks": 1,
             "cause": "asked", "written": "now", "code": "c0de"}  # fmt: skip
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


def state(content: bytes) -> Spoil:
    """Another file of tensors, with a checksum that fits."""

    def make(project: Path) -> None:
        (project / STATE).write_bytes(content)
        entry = {"bytes": len(content), "xxh3": xxhash.xxh3_128_hexdigest(content)}
        facts(lambda f: f["files"].update({"state.safetensors": entry}))(project)

    return make


def header(plain: object, data: bytes = b"") -> bytes:
    head = json.dumps(plain).encode()
    return struct.pack("<Q", len(head)) + head + data


def flip(project: Path) -> None:
    (project / STATE).write_bytes((project / STATE).read_bytes()[:-1] + b"\x01")


def cut(project: Path) -> None:
    (project / STATE).write_bytes((project / STATE).read_bytes()[:-1])


NOT_WRITTEN = f"{PLACE}: checkpoint.json is not what was written"
NOT_A_RUNS = f"{PLACE}: checkpoint.json is not what a run writes: its "
DAMAGED = f"{PLACE}: the checkpoint is damaged: "
NO_TENSORS = DAMAGED + "state.safetensors holds no tensors"
OUTSIDE = {"../../x": {"bytes": 1, "xxh3": "0"}}
OVERLAP = {"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}, "b": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}}  # fmt: skip
DAMAGES = {
    "another step than its name": (facts(lambda f: f.update(step=9)), DAMAGED + "checkpoint.json is of step 9"),
    "no tensors": (lambda project: (project / STATE).unlink(), DAMAGED + "state.safetensors is missing"),
    "cut": (cut, DAMAGED + "state.safetensors has "),
    "a flipped bit": (flip, DAMAGED + "state.safetensors is not what was written"),
}
REFUSALS = {
    "a file outside": (facts(lambda f: f["files"].update(OUTSIDE)), NOT_A_RUNS + "`files`"),
    "no state": (facts(lambda f: f["files"].clear()), DAMAGED + "state.safetensors is missing"),
    "no spec": (facts(lambda f: f.pop("spec")), NOT_A_RUNS + "`spec`"),
    "a negative step": (facts(lambda f: f.update(step=-7)), NOT_A_RUNS + "`step`"),
    "no reports": (facts(lambda f: f["reports"].clear()), NOT_A_RUNS + "`reports`"),
    "a pickle": (state(b"\x80\x04\x95garbage."), NO_TENSORS),
    "a head longer than the file": (state(struct.pack("<Q", 1 << 60) + b"{}"), NO_TENSORS),
    "tensors beyond the file": (
        state(header({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}})),
        NO_TENSORS,
    ),
    "tensors that overlap": (state(header(OVERLAP, b"123")), NO_TENSORS),
    "not there": (lambda project: shutil.rmtree(project / PLACE), f"{PLACE}: checkpoint.json is missing"),
    "a link to a device": (link(FACTS, "/dev/zero"), NOT_WRITTEN),
    "nested without end": (raw(FACTS, b"[" * 100_000), NOT_WRITTEN),
    "another model": (facts(lambda f: f["spec"]["model"].update(hidden=8)), "from a checkpoint of a different one: model"),
    "another batch": (facts(lambda f: f.update(global_batch=9)), "the global batch (9 samples there"),
}  # fmt: skip


@cases({**DAMAGES, **REFUSALS})
def test_a_wrong_checkpoint_is_refused(spoil: Spoil, message: str, command: Command) -> None:
    write(command.project)
    command.refuses(spoil, message, TRY)


@cases(DAMAGES)
def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(spoil: Spoil, message: str, project: Path) -> None:
    write(project, 3)
    write(project)
    spoil(project)
    found, warnings = checkpoint.newest_whole((project / PLACE).parent)
    assert found is not None and found.name == "step-000000003"
    assert len(warnings) == 1 and "the one after step 3 is used" in warnings[0]


def test_an_undamaged_checkpoint_is_accepted_also_under_another_name(project: Path, tmp_path: Path) -> None:
    write(project)
    shutil.copytree(project / PLACE, tmp_path / "best")
    assert checkpoint.facts_to_init_from(tmp_path / "best", SPEC)["step"] == 7
    with attempt("r-0123456789ab", project / "mine/result.json", tmp_path / "best") as chain:
        assert chain.attempts[-1].from_step == 7


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
