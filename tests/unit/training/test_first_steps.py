"""What is unusual in a model, in data, and in the clock, is found and named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from scalestudy.data.prepare.datasets import prepare
from scalestudy.errors import UserError
from scalestudy.spec.config import Site
from scalestudy.spec.run import RunSpec
from scalestudy.strategies.base import World
from scalestudy.training.first_steps import FirstSteps
from scalestudy.training.job import Job, Resolved
from scalestudy.training.replica import Replica
from scalestudy.training.report import Report
from scalestudy.training.training_data import TrainingData
from tests.unit.training.test_trainer import job


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.frozen = nn.Linear(16, 4), nn.Linear(4, 10), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.layers = [nn.Linear(4, 4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x.flatten(1).float()).detach()
        return self.last(self.frozen(self.layers[0](hidden)))


def test_parameters_without_a_gradient_frozen_ones_and_layers_in_plain_lists_are_named(tmp_path: Path) -> None:
    of = job(tmp_path)
    world, data = World(0, 1, 0, torch.device("cpu"), 1, None), TrainingData.open(of, 0)
    replica = Replica(of, world, data)
    replica.model = replica.module = replica.strategy.prepare(Detached(), lambda p: torch.optim.SGD(p, lr=0.1))
    report = Report(0)
    first = FirstSteps(replica, report)
    first.before()
    replica.forward_backward(torch.rand(4, 1, 4, 4), torch.arange(4))
    first.after(0.1)
    assert report.warnings == [
        "layers in plain lists or mappings (layers) are no part of the model and not trained: use nn.ModuleList, "
        "nn.ModuleDict or nn.ParameterList",
        "2 of 6 parameters (first.weight, first.bias) got no gradient in the first step: the loss does not depend on them",
        "2 of 6 parameters (frozen.weight, frozen.bias) are not trained, since `requires_grad` is off",
    ]


OWN = """
import numpy as np, torch
class Items:
    classes = 10
    def __init__(self, train, kind="good"):
        self.train, self.kind, self.count = train, kind, 0
    def __len__(self): return 500
    def __getitem__(self, i):
        self.count += 1
        seed = {"repeats": i % 8, "unstable": self.count}.get(self.kind, i)
        held_out = 0 if self.kind == "both" else 100_000 * (not self.train)
        label = {"half": 3.5, "many": 11, "array": np.array([3])}.get(self.kind, i % 10) if i or self.kind == "array" else 0
        x = np.random.default_rng(seed + held_out).random((1, 4, 4), np.float32)
        return {"integers": x.astype(np.int64), "list": x.tolist()}.get(self.kind, x), label
"""
TOLD = {
    "good": [],
    "repeats": ["24 of 32 training samples of your own are equal to another one: does an item depend on its number?"],
    "unstable": [
        "32 of 32 training samples of your own differ when they are fetched again: they are augmented at random, or not "
        "what their number says"
    ],
    "both": ["32 of 32 training samples of your own are held-out samples too: does the class look at `train`?"],
}


def own_data(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> TrainingData:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("scalestudy.training.training_data.DIGEST_S", 60.0)  # also on a busy machine
    (folder / "config" / "extensions").mkdir(parents=True)
    (folder / "config" / "extensions" / f"{kind}_items.py").write_text(OWN)
    data = {"import": f"{kind}_items:Items", "kwargs": {"kind": kind}}
    spec = RunSpec.model_validate_json(json.dumps({"data": data, "batch": {"per_rank": 4}, "loader": {"workers": 0}}))
    manifest = folder / "data" / "manifest.json"
    prepare(spec.data, manifest, None, Site())
    made = Job("r", spec, Resolved(1, 1, 1, "cpu", 2, None), manifest, folder, folder / "config" / "extensions")
    return TrainingData.open(made, 0)


@pytest.mark.parametrize("kind", TOLD)
def test_own_data_that_repeats_itself_changes_or_ignores_the_split_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    assert own_data(tmp_path, monkeypatch, kind).unusual() == TOLD[kind]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("half", "a label is 3.5, and classes are whole numbers"),
        ("many", "has the label 11"),
        ("array", "holds 0 or 1 for each class, and one holds 3"),
        ("integers", "no array of uint8 or of floats"),
        ("list", "no array of uint8 or of floats"),
    ],
)
def test_an_item_that_means_something_else_or_whose_label_is_no_class_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        own_data(tmp_path, monkeypatch, kind).train.batch(np.array([1, 2]), size=None, augment="none", seed=0, epoch=0)
