"""Hooks in a user's script, on loaders that are none of torch's."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from scalestudy.processes import REQUEST
from scalestudy.program.observe import INJECTED

LOOKS_FIRST = """
import importlib.util, sys, types
hooked = []
sys.modules["scalestudy_hooks.steps"] = types.SimpleNamespace(Steps=lambda request, module: hooked.append(module.__name__))
assert importlib.util.find_spec("torch") is not None
import torch
print(*hooked)
"""


def loading(loader_class=None, **request):
    """Hooks into loaders as they are injected: not installed, or into this class."""
    file = INJECTED / "scalestudy_hooks/loading.py"
    spec = importlib.util.spec_from_file_location("loading", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if loader_class is None:
        return module.Loading.__new__(module.Loading)
    data = SimpleNamespace(data=SimpleNamespace(DataLoader=loader_class))
    named = SimpleNamespace(utils=data, is_grad_enabled=torch.is_grad_enabled, Tensor=torch.Tensor)
    return module.Loading(named, {"remove": (), **request})


def loader_class(made=lambda: torch.zeros(8, 2), length=3):
    """A class of loaders over a dataset; `made` makes a batch."""

    class Loader:
        def __init__(self, dataset, batch_size=8, num_workers=0, *, pin_memory=False):
            self.dataset, self.batch_size, self.num_workers = dataset, batch_size, num_workers
            self.pin_memory = pin_memory

        def __len__(self):
            if length is None:
                raise ValueError("not known")
            return length

        def __iter__(self):
            return (made() for _ in range(length or 3))

    return Loader


class Images:
    """A dataset."""


def trained(hooks, loader):
    """The samples of each step of an epoch."""
    return [hooks.after_step(time.perf_counter()) for _ in loader]


def test_a_loader_class_without_its_own_init_subclass_can_still_be_subclassed():
    """That of the class is written in C, as that of Generic from Python 3.12 on."""
    Loader = loader_class()
    loading().watch_subclasses(Loader)
    Own = type("Own", (Loader,), {})
    assert Own.__iter__ is Loader.__iter__
    assert len(list(Own(Images()))) == 3


def test_a_script_that_looks_for_torch_before_it_imports_it_is_hooked_once(tmp_path: Path) -> None:
    """As transformers and Lightning do, to know whether it is installed."""
    (tmp_path / "torch.py").touch()
    path = os.pathsep.join([str(INJECTED), str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": path, REQUEST: json.dumps({"out": str(tmp_path)})}
    command = [sys.executable, "-c", LOOKS_FIRST]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("torch\n", "")


class PinnedStandIn(torch.Tensor):
    """Stands in for a tensor in pinned memory, which this host cannot have; a copy of it is not pinned."""

    is_in_pinned_memory = False

    def is_pinned(self) -> bool:
        return self.is_in_pinned_memory

    def pin_memory(self):
        self.is_in_pinned_memory = True
        return self


def test_batches_that_are_given_again_lie_in_pinned_memory_as_the_loaders_did():
    Loader = loader_class(lambda: torch.zeros(8, 2).as_subclass(PinnedStandIn).pin_memory(), length=20)
    hooks = loading(Loader, remove=("loading",))
    for batch in Loader(Images()):
        hooks.after_step(time.perf_counter())
        assert batch.is_pinned()
    assert hooks.watched[0].replayed > 0


def test_the_time_between_epochs_is_seen_where_each_makes_its_loader_anew():
    Loader, dataset = loader_class(), Images()
    hooks = loading(Loader)
    for _ in range(3):
        trained(hooks, Loader(dataset))
        with torch.no_grad():
            list(Loader(dataset))  # an evaluation on the same images
            time.sleep(0.05)
    assert hooks.between_s >= 0.1
    assert [facts["is_for_training"] for facts in hooks.loader_facts()] == [True, False]


def test_an_evaluation_in_inference_mode_goes_on_where_loading_is_taken_away():
    Loader = loader_class()
    hooks = loading(Loader, remove=("loading",))
    with torch.inference_mode():
        assert len(list(Loader(Images()))) == 3
    training = Loader(Images())
    for _ in range(3):
        trained(hooks, training)
    assert hooks.loaders[training].replayed > 0


IMAGE = torch.zeros(3, 4, 4)


@pytest.mark.parametrize(("batch", "size"), [((IMAGE,) * 8, 8), (([IMAGE], [torch.zeros(5)]), 1)])
def test_samples_are_those_of_the_loader_where_a_batch_is_a_list_of_images(batch, size):
    """As torchvision's detection models get them."""
    Loader = loader_class(lambda: batch)
    hooks = loading(Loader)
    assert trained(hooks, Loader(Images(), batch_size=size)) == [size] * 3


def test_a_loader_whose_length_is_an_error_is_watched_as_one_without():
    Loader = loader_class(length=None)
    hooks = loading(Loader)
    assert sum(1 for _ in Loader(Images())) == 3
    assert hooks.watched[0].length is None


def test_a_loader_with_more_workers_keeps_its_signature_and_each_loader_gets_its_own():
    Loader = loader_class()
    names = list(inspect.signature(Loader.__init__).parameters)
    loading(Loader, workers=2)
    assert list(inspect.signature(Loader.__init__).parameters) == names
    validation, training = Images(), Images()
    assert Loader(validation, num_workers=1).num_workers == 2
    assert Loader(training, num_workers=2).num_workers == 4


def test_loaders_that_feed_every_other_step_or_two_steps_a_batch_are_for_training():
    One, Two = loader_class(length=8), loader_class(length=8)
    hooks = loading(One)
    hooks.watch_loaders(Two)
    for _ in zip(One(Images()), Two(Images()), strict=True):
        hooks.after_step(time.perf_counter())
        hooks.after_step(time.perf_counter())
    assert [facts["is_for_training"] for facts in hooks.loader_facts()] == [True, True]


def test_a_loader_that_takes_all_epochs_from_one_iterator_goes_on_where_loading_is_taken_away():
    class Endless(loader_class(length=6)):
        def __init__(self, dataset):
            super().__init__(dataset)
            self.iterator = super().__iter__()

        def __iter__(self):
            for _ in range(len(self)):
                yield next(self.iterator)

    Plain = Endless.__mro__[1]
    hooks = loading(Plain, remove=("loading",))
    endless = Endless(Images())
    for _ in range(3):
        trained(hooks, endless)
    assert hooks.watched[0].replayed == 18 - 4


def test_a_batch_of_a_class_of_its_own_is_given_again_as_a_copy():
    @dataclasses.dataclass
    class Batch:
        x: torch.Tensor

    kept = Batch(torch.zeros(8, 2))
    mapped = type(loading()).batches.__globals__["mapped"]
    again = mapped(kept, torch.Tensor.clone, torch)
    again.x = torch.ones(1)
    assert kept.x.shape == (8, 2)


class EventStandIn:
    """A mark in the work of a GPU that is idle at first, and ends a step every 30 ms from 60 ms on."""

    ends = itertools.chain([0.0], itertools.count(60.0, 30.0))

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.ms = next(self.ends)

    def elapsed_time(self, later):
        return later.ms - self.ms


def test_a_wait_for_the_gpu_after_a_step_is_no_time_between_steps():
    Loader = loader_class(length=6)
    hooks = loading(Loader)
    hooks.torch.cuda = SimpleNamespace(Event=EventStandIn, synchronize=lambda: None)
    for number, _ in enumerate(Loader(Images())):
        hooks.after_step(now := time.perf_counter())  # the step is queued
        if number == 2:
            hooks.begin_window(now, has_end=True)
        time.sleep(0.03)  # the script reads its loss
    assert hooks.between_s >= 0.09
    assert 0.03 <= hooks.between() < 0.06  # what follows the idle GPU at the window's begin is the script's own


def test_a_step_with_two_optimisers_ends_with_the_last_one():
    Loader = loader_class(length=6)
    hooks = loading(Loader)
    for _ in Loader(Images()):
        hooks.after_step(time.perf_counter())
        time.sleep(0.02)  # the second optimiser's part
        hooks.extend_step()
    assert hooks.between_s < 0.02
