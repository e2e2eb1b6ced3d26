"""Checkpoints: those that `scalestudy try --from` names, and those that a run finds in its folder."""

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

from scalestudy.errors import UserError
from scalestudy.files import canonical_json
from scalestudy.launch.attempts import Chain, attempt
from scalestudy.spec.run import RunSpec
from scalestudy.training import checkpoint
from scalestudy.training.report import Report
from tests.hostile.harness import Case, Refuse, digest, folder, link, pipe, raw

PLACE = "results/local/runs/r-0123456789ab/checkpoint/step-000000007"
FACTS, STATE = f"{PLACE}/checkpoint.json", f"{PLACE}/state.safetensors"
WORDS = ("model={name: mlp, hidden: 4, layers: 1}", "data.source=digits")
TRY = ("try", *WORDS, "--out", "made", "--from", PLACE)
SPEC = RunSpec.model_validate_json('{"model": {"name": "mlp", "hidden": 4, "layers": 1}, "data": {"source": "digits"}}')


def write(project: Path, step: int = 7) -> None:
    """A checkpoint of one rank."""
    tensors = {"model.weight": torch.zeros(3)}
    part = checkpoint.CheckpointPart(checkpoint.random_states(), Report(rank=0).plain(), tensors)
    facts = {"run": "r-0123456789ab", "spec": SPEC.plain(), "global_batch": SPEC.global_batch, "ranks": 1, "cause": "asked",
             "written": "now", "code": "c0de"}  # fmt: skip
    checkpoint.write((project / PLACE).parent, step, 0, part, facts, lambda value: [value])


def facts(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """What the checkpoint says, changed, with a checksum that fits."""

    def make(project: Path) -> None:
        plain = json.loads((project / FACTS).read_text())["facts"]
        plain = change(plain) or plain
        digest_of = xxhash.xxh3_128_hexdigest(canonical_json(plain).encode())
        (project / FACTS).write_text(json.dumps({"xxh3": digest_of, "facts": plain}))

    return make


def state(content: bytes) -> Callable[[Path], object]:
    """Another file of tensors, with its checksum in what the checkpoint says."""

    def make(project: Path) -> None:
        (project / STATE).write_bytes(content)
        entry = {"bytes": len(content), "xxh3": xxhash.xxh3_128_hexdigest(content)}
        facts(lambda f: f["files"].update({"state.safetensors": entry}))(project)

    return make


def header(plain: object, data: bytes = b"") -> bytes:
    head = json.dumps(plain).encode()
    return struct.pack("<Q", len(head)) + head + data


NOT_WRITTEN = f"{PLACE}: checkpoint.json is not what was written"
NOT_A_RUNS = f"{PLACE}: checkpoint.json is not what a run writes: its "
DAMAGED = f"{PLACE}: the checkpoint is damaged: "
CASES = [
    Case("not there", lambda project: shutil.rmtree(project / PLACE), f"{PLACE}: checkpoint.json is missing"),
    Case("a file", lambda project: (shutil.rmtree(project / PLACE), (project / PLACE).write_text("x")), "checkpoint.json is missing",
         before="unclear"),
    Case("without what it says", lambda project: (project / FACTS).unlink(), f"{PLACE}: checkpoint.json is missing"),
    Case("a folder", folder(FACTS), NOT_WRITTEN),
    Case("a pipe", pipe(FACTS), NOT_WRITTEN, before="hang"),
    Case("a link to a device", link(FACTS, "/dev/zero"), NOT_WRITTEN, before="hang"),
    Case("nothing in it", raw(FACTS, b""), NOT_WRITTEN),
    Case("garbage", raw(FACTS, b"\x80\x81"), NOT_WRITTEN),
    Case("a list", raw(FACTS, b"[]"), NOT_WRITTEN),
    Case("nested without end", raw(FACTS, b"[" * 100_000), NOT_WRITTEN, before="traceback"),
    Case("nested 900 deep", raw(FACTS, b'{"facts":' * 900 + b"1" + b"}" * 900), NOT_WRITTEN, before="traceback"),
    Case("an edited step", lambda project: (project / FACTS).write_text((project / FACTS).read_text().replace('"step": 7', '"step": 9')),
         NOT_WRITTEN),
    Case("facts as a list", facts(lambda f: [1]), NOT_A_RUNS, before="traceback"),
    Case("no files", facts(lambda f: f.pop("files") and None), NOT_A_RUNS + "`files`", before="traceback"),
    Case("files as a list", facts(lambda f: f.update(files=[])), NOT_A_RUNS + "`files`", before="traceback"),
    Case("a file outside", facts(lambda f: f["files"].update({"../../x": {"bytes": 1, "xxh3": "0"}})), NOT_A_RUNS + "`files`",
         before="accepted"),
    Case("a file without a size", facts(lambda f: f["files"].update({"state.safetensors": {}})), NOT_A_RUNS + "`files`",
         before="traceback"),
    Case("no state", facts(lambda f: f["files"].pop("state.safetensors") and None), NOT_A_RUNS + "`files`", before="accepted"),
    Case("no spec", facts(lambda f: f.pop("spec") and None), NOT_A_RUNS + "`spec`", before="traceback"),
    Case("no batch", facts(lambda f: f.pop("global_batch") and None), NOT_A_RUNS + "`global_batch`", before="traceback"),
    Case("a step that is true", facts(lambda f: f.update(step=True)), NOT_A_RUNS + "`step`", before="accepted"),
    Case("a step below nothing", facts(lambda f: f.update(step=-7)), NOT_A_RUNS + "`step`", before="accepted"),
    Case("another step than its name", facts(lambda f: f.update(step=9)), DAMAGED + "checkpoint.json is of step 9", before="accepted"),
    Case("no reports", facts(lambda f: f.update(reports=[])), NOT_A_RUNS + "`reports`", before="accepted"),
    Case("reports that are none", facts(lambda f: f.update(reports=[5])), NOT_A_RUNS + "`reports`", before="accepted"),
    Case("fewer reports than ranks", facts(lambda f: f.update(ranks=4)), NOT_A_RUNS + "`reports`", before="accepted"),
    Case("another version", facts(lambda f: f.update(format=2)), NOT_A_RUNS + "`format`", before="accepted"),
    Case("another model", facts(lambda f: f["spec"]["model"].update(hidden=8)), "from a checkpoint of a different one: model"),
    Case("another batch", facts(lambda f: f.update(global_batch=9)), "the global batch (9 samples there"),
    Case("tensors that are not there", lambda project: (project / STATE).unlink(), DAMAGED + "state.safetensors is missing"),
    Case("tensors that are cut", lambda project: (project / STATE).write_bytes((project / STATE).read_bytes()[:-1]),
         DAMAGED + "state.safetensors has "),
    Case("a flipped bit", lambda project: (project / STATE).write_bytes(
        (project / STATE).read_bytes()[:-1] + b"\x01"), DAMAGED + "state.safetensors is not what was written"),
    Case("a pickle in place of tensors", state(b"\x80\x04\x95garbage."), DAMAGED + "state.safetensors holds no tensors", before="accepted"),
    Case("no bytes in place of tensors", state(b""), DAMAGED + "state.safetensors holds no tensors", before="accepted"),
    Case("a head longer than the file", state(struct.pack("<Q", 1 << 60) + b"{}"), DAMAGED + "state.safetensors holds no tensors",
         before="accepted"),
    Case("a head that is no JSON", state(struct.pack("<Q", 4) + b"\xff\xff\xff\xff"), DAMAGED + "state.safetensors holds no tensors",
         before="accepted"),
    Case("tensors beyond the file", state(header({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}})),
         DAMAGED + "state.safetensors holds no tensors", before="accepted"),
    Case("tensors that overlap", state(header({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
                                               "b": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}}, b"123")),
         DAMAGED + "state.safetensors holds no tensors", before="accepted"),
]  # fmt: skip


def test_without_a_fault_the_checkpoint_is_accepted(project: Path) -> None:
    write(project)
    assert checkpoint.facts_to_init_from(project / PLACE, SPEC)["step"] == 7


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_checkpoint_is_refused(case: Case, refuse: Refuse) -> None:
    write(refuse.project)
    refuse(case, TRY)


@pytest.mark.parametrize("case", CASES[12:], ids=lambda case: case.name)
def test_a_run_takes_the_checkpoint_before_a_wrong_one(case: Case, project: Path) -> None:
    if "different one" in case.says or "the global batch" in case.says:
        pytest.skip("whose checkpoint it is, a run sees by its id")
    write(project, 3)
    write(project)
    case.make(project)
    found, warnings = checkpoint.newest_whole((project / PLACE).parent)
    assert found is not None and found.name == "step-000000003"
    assert len(warnings) == 1 and "the one after step 3 is used" in warnings[0]


@pytest.mark.parametrize("name", ["step-evil", "step-", "step-7", "step-000000009.txt", "step-00000000x"])
def test_what_has_not_the_name_of_a_checkpoint_is_none_and_stays(name: str, project: Path) -> None:
    write(project)
    ours = (project / PLACE).parent
    (ours / name).mkdir()
    (ours / name / "diary.txt").write_text("private")
    assert checkpoint.newest_whole(ours) == (project / PLACE, [])
    chain = Chain("r-0123456789ab", ours.parent)
    assert chain.progress == 7
    chain.clear()
    assert digest(ours) == {name: "40000", f"{name}/diary.txt": digest(ours)[f"{name}/diary.txt"]}


def test_a_folder_of_somebody_else_that_is_called_checkpoint_is_not_emptied(project: Path) -> None:
    out = project / "mine"
    (out / "checkpoint").mkdir(parents=True)
    (out / "checkpoint/best.pt").write_text("weeks of work")
    (out / "checkpoint/step-000000001").symlink_to(project.parent / "outside")
    (out / "result.json").write_text("{}")
    with attempt("r-0123456789ab", out / "result.json"):
        pass
    assert (out / "checkpoint/best.pt").read_text() == "weeks of work"
    assert (project.parent / "outside/diary.txt").exists()


def test_a_checkpoint_may_be_copied_under_another_name(project: Path, tmp_path: Path) -> None:
    write(project)
    shutil.copytree(project / PLACE, tmp_path / "best")
    assert checkpoint.facts_to_init_from(tmp_path / "best", SPEC)["step"] == 7
    with attempt("r-0123456789ab", project / "mine/result.json", tmp_path / "best") as chain:
        assert chain.attempts[-1].from_step == 7


def test_a_damaged_checkpoint_of_another_run_is_said_before_anything_is_made(project: Path) -> None:
    write(project)
    facts(lambda f: f.update(run=5))(project)
    with pytest.raises(UserError, match="its `run`"):
        checkpoint.facts_to_init_from(project / PLACE, SPEC)


GOOD = {
    "started": "2026-01-01T00:00:00+00:00",
    "ended": None,
    "job": None,
    "hours": None,
    "steps": None,
    "cause": None,
    "from_step": 0,
}
RECORDS: list[Any] = [
    [], 7, {}, {"run": "r"}, {"run": "r", "links": 5, "warnings": []}, {"run": "r", "links": [5], "warnings": []},
    {"run": "r", "links": [{}], "warnings": []}, {"run": "r", "links": [GOOD], "warnings": 5},
    {"run": "r", "links": [GOOD], "warnings": [{}]},
    *({"run": "r", "links": [{**GOOD, **wrong}], "warnings": []} for wrong in (
        {"started": 5}, {"started": "yesterday"}, {"started": None}, {"from_step": "x"}, {"from_step": -1}, {"hours": "x"},
        {"steps": [1]}, {"cause": 5})),
]  # fmt: skip


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: json.dumps(record)[:60])
def test_a_damaged_record_of_attempts_is_said_and_holds_up_no_run(
    record: object, project: Path, record_property: Callable[[str, object], None]
) -> None:
    text = json.dumps(record)
    raw("results/local/runs/r/checkpoint/links.json", text.encode())(project)
    with attempt("r", project / "results/local/runs/r/result.json") as chain:
        assert chain.warnings == ["the record of earlier attempts is damaged: they are not listed"]
        assert len(chain.attempts) == 1
        chain.add_to({"steps_done": 1})
    for key, value in (("case", f"links.json: {text[:60]}"), ("said", chain.warnings[0]), ("before", "traceback")):
        record_property(key, value)


def test_a_record_of_attempts_without_a_fault_is_taken_up(project: Path) -> None:
    place = project / "results/local/runs/r/checkpoint/links.json"
    raw(str(place), json.dumps({"run": "r", "links": [GOOD], "warnings": ["w"]}).encode())(project)
    with attempt("r", project / "results/local/runs/r/result.json") as chain:
        assert (len(chain.attempts), chain.warnings) == (2, ["w"])
        assert chain.attempts[0].cause == "ended without a message; its time is that to its last checkpoint"
        chain.add_to({"steps_done": 1})
