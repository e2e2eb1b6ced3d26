"""Ids say the same for the same question, wherever and however it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from scalestudy.data.catalogue import AnyData, OwnData
from scalestudy.files import sha256_text
from scalestudy.models.catalogue import AnyModel, OwnModel
from scalestudy.spec.base import parse
from scalestudy.spec.config import read_machine
from scalestudy.spec.ids import dataset_id, run_id
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.run import RunSpec
from scalestudy.strategies.catalogue import AnyStrategy
from tests.conftest import ROOT

# fmt: off
FIXED: list[tuple[dict[str, Any], str]] = [
    ({}, "small_cnn.digits.single.x1.r0-4ecb8140cb90"),
    ({"strategy": {"name": "allreduce", "compression": "fp16"}, "ranks": 2},
     "small_cnn.digits.allreduce.x2.r0-220e415f76c1"),
    ({"data": {"source": "synthetic", "shape": [3, 32, 32], "classes": 100}},
     "small_cnn.synthetic.single.x1.r0-eb54b0fe313f"),
    ({"device": "emulated:p100", "ranks": 128, "strategy": "allreduce", "model": "resnet50"},
     "resnet50.digits.allreduce.on_p100.x128.r0-a72e6e8d6b31"),
    ({"ranks": 8, "nodes": 2, "ranks_per_node": 4, "threads_per_rank": 5, "strategy": "allreduce"},
     "small_cnn.digits.allreduce.x8.r0-0da1d9c4fa7c"),
    ({"faults": [{"kind": "slow_rank", "rank": 0, "seconds": 0.5}, {"kind": "killed_rank", "rank": 0, "at_step": 3}]},
     "small_cnn.digits.single.x1.r0-ca1fb91bb1cb"),
]

FORM: dict[str, Any] = {"scale": 1.0, "preprocess": "none", "resize": 256, "quality": 90,
        "shard": {"format": "files", "mib": 64.0}, "on_error": "fail"}
DEFAULTS: dict[str, Any] = {
    "program": None, "model": {"name": "small_cnn", "width": 32}, "strategy": {"name": "single"}, "ranks": 1,
    "nodes": None, "ranks_per_node": None, "hosts": None, "threads_per_rank": None, "dtype": "float32",
    "autocast": None, "tf32": None, "memory_format": "contiguous", "compile": False, "seed": 0, "repeat": 0,
    "device": None, "memory_limit_mib": None, "network": None, "data": {**FORM, "source": "digits"},
    "stage": {"to": None, "from": None, "share": "all", "streams": 4, "mib_per_s": None, "reuse": True},
    "loader": {"mode": None, "kind": "threads", "origin": None, "shuffle_buffer": 1000,
        "pin_memory": True, "storage": None, "workers": 1, "prefetch": 2, "size": None, "augment": "none",
        "memory_limit_mib": None, "cache": "as_found"},
    "batch": {"per_rank": 32, "global": None, "accumulate": 1},
    "optimiser": {"name": "sgd", "learning_rate": 0.1, "learning_rate_for_batch": None, "momentum": 0.9,
        "weight_decay": 0.0, "nesterov": False, "warmup_epochs": 0.0, "steps": None},
    "train": {"epochs": 1, "evaluate_every_epochs": 1},
    "measure": {"warmup_steps": 5, "steps": None, "minutes": None, "loader_batches": 0,
        "trace_steps": 0, "trace_ranks": None, "whole_program": False},
    "checkpoint": {"every_steps": None},
    "launch": {"launcher": None, "binding": "none", "oversubscribe": False}, "heartbeat_timeout_s": 30.0,
    "keep": None, "faults": [],
}
# By the part of a run that has the options: all of them, with their defaults.
SCHEDULE = {"schedule": "flat", "bucket_mib": 25.0}
OPTION_DEFAULTS: dict[str, list[dict[str, Any]]] = {
    "model": [
        {"name": "small_cnn", "width": 32},
        {"name": "small_densenet", "width": 16},
        {"name": "mlp", "hidden": 512, "layers": 10},
        {"name": "resnet50"},
    ],
    "strategy": [
        {"name": "single"},
        {"name": "allreduce", "bucket_mib": 25.0, "compression": "none"},
        {"name": "ring", **SCHEDULE},
        {"name": "halving_doubling", **SCHEDULE},
        {"name": "hierarchical", **SCHEDULE, "outer": "ring", "outer_transport": "same"},
        {"name": "two_dimensional", **SCHEDULE, "outer": "ring"},
        {"name": "mpi_allreduce", **SCHEDULE},
        {"name": "parameter_server", "servers": 1},
        {"name": "async_parameter_server", "servers": 1},
        {"name": "zero1"},
        {"name": "fsdp", "unit_mib": 1.0},
        {"name": "horovod"},
        {"name": "pipeline", "stages": None, "micro_batches": None},
    ],
    "data": [
        {"source": "digits", **FORM},
        {"source": "fashion_mnist", **FORM, "root": None},
        {"source": "synthetic", **FORM, "samples": 4096, "shape": [3, 224, 224], "classes": 10,
         "task": "classification", "latency_s": 0.0},
        {"source": "synthetic_jpeg", **FORM, "samples": 1000, "width": 500, "height": 375, "mean_kib": 100.0,
         "classes": 10},
        {"source": "image_folder", **FORM, "root": None},
        {"source": "imagenet", **FORM, "root": None},
        {"source": "chest_xray14", **FORM, "root": None},
        {"source": "caltech256", **FORM, "root": None},
    ],
}
# fmt: on


def run_of(data: dict[str, Any]) -> RunSpec:
    spec, problems = parse(RunSpec, data)
    assert spec is not None, problems
    return spec


@pytest.mark.parametrize(("data", "identity"), FIXED, ids=[identity for _, identity in FIXED])
def test_a_run_keeps_its_id_for_ever(data: dict[str, Any], identity: str) -> None:
    assert run_id(run_of(data)) == identity


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"ranks": 2, "strategy": {"name": "allreduce", "bucket_mib": 5, "compression": "fp16"}},
         {"strategy": {"compression": "fp16", "bucket_mib": 5, "name": "allreduce"}, "ranks": 2}),
        (DEFAULTS, {}),
        ({"model": "mlp", "strategy": "allreduce"},
         {"model": {"name": "mlp", "hidden": 512}, "strategy": {"name": "allreduce"}}),
        ({"optimiser": {"learning_rate": 1}}, {"optimiser": {"learning_rate": 1.0}}),
    ],
    ids=["order", "defaults", "short forms", "whole numbers"],
)  # fmt: skip
def test_the_same_run_written_in_another_way_has_the_same_id(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert run_id(run_of(one)) == run_id(run_of(other))


RECORDED = [line.split() for line in (ROOT / "tests/data/study_ids.txt").read_text().splitlines()]


@pytest.mark.parametrize(("machine", "scale"), sorted({(line[0], line[1]) for line in RECORDED}))
def test_shipped_studies_keep_their_ids(machine: str, scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("scalestudy.spec.machine.usable_memory_bytes", lambda: 16 << 30)
    studies = read_studies(None, scale, read_machine(machine), machine_name=machine, changes={})
    made = []
    for study in studies:
        ids = "\n".join(f"{run.id} {run.configuration} {run.dataset}" for run in study.runs)
        made.append([machine, scale, study.name, str(len(study.runs)), sha256_text(ids)[:16]])
    assert made == [line for line in RECORDED if line[:2] == [machine, scale]]


def test_defaults_stay_because_ids_leave_them_out() -> None:
    assert RunSpec().to_full_dict() == DEFAULTS


@pytest.mark.parametrize(
    ("part", "options"),
    [(part, options) for part, all_options in OPTION_DEFAULTS.items() for options in all_options],
    ids=lambda value: value if isinstance(value, str) else next(iter(value.values())),
)
def test_defaults_of_options_stay_because_ids_leave_them_out(part: str, options: dict[str, Any]) -> None:
    key = "source" if part == "data" else "name"
    assert run_of({part: {key: options[key]}}).to_full_dict()[part] == options


@pytest.mark.parametrize(("part", "union"), [("model", AnyModel), ("strategy", AnyStrategy), ("data", AnyData)])
def test_the_defaults_of_every_model_strategy_and_source_stand_here(part: str, union: Any) -> None:
    key = "source" if part == "data" else "name"
    found = {type(getattr(run_of({part: {key: options[key]}}), part)) for options in OPTION_DEFAULTS[part]}
    assert found == set(get_args(union)) - {OwnModel, OwnData}


def test_the_content_of_own_code_is_part_of_the_id(project: Path) -> None:
    (project / "config/extensions").mkdir()
    ids = []
    for code in ("class Net: pass\n", "class Net: depth = 2\n", "class Net: pass\n"):
        (project / "config/extensions/nets.py").write_text(code)
        ids.append(run_id(run_of({"model": {"import": "nets:Net"}})))
    assert ids[0] == ids[2] != ids[1]
    assert ids[0].startswith("Net.digits.single.x1.r0-")


def test_a_published_step_time_is_part_of_the_id_of_emulated_runs_alone(here: Path) -> None:
    table, edited = (folder / "config/reference/step_times.csv" for folder in (ROOT, here))
    edited.parent.mkdir(parents=True)
    asked: list[dict[str, Any]] = [
        {"model": "resnet50", "device": device, "batch": {"per_rank": batch}}
        for device, batch in (("emulated:p100", 32), ("emulated:p100", 64), ("emulated:infinite", 32), ("cpu", 32))
    ]
    found = []
    for text in (table.read_text(), table.read_text().replace("resnet50,p100,32,195", "resnet50,p100,32,214.5")):
        edited.write_text(text)
        found.append([run_id(run_of(each)) for each in asked])
    before, after = found
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, True, True, True]


def test_a_dataset_has_the_id_of_its_form_and_of_nothing_else() -> None:
    one = run_of({"data": {"source": "synthetic_jpeg", "samples": 50}, "ranks": 4, "strategy": "allreduce"})
    other = run_of({"data": {"source": "synthetic_jpeg", "samples": 50, "classes": 10}, "loader": {"workers": 8}})
    assert dataset_id(one.data) == dataset_id(other.data) == "synthetic_jpeg-35133fed7fb1"
