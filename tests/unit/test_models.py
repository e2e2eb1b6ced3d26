"""The models by name, users' own, their losses, and the stand-in for compute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models.googlenet import GoogLeNetOutputs
from torchvision.models.inception import InceptionOutputs

from scalestudy.emulation import accelerator
from scalestudy.emulation.accelerator import Emulated
from scalestudy.errors import UserError
from scalestudy.models import count, outputs
from scalestudy.models.build import build
from scalestudy.models.catalogue import MLP, AnyModel, OwnModel, SmallCNN, SmallDenseNet, Torchvision


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors gain nothing from several threads, and lose much on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made(options: AnyModel, classes: int = 10, channels: int = 3, image_size: Any = 32, **more: Any) -> nn.Module:
    return build(options, classes=classes, channels=channels, image_size=image_size, **more)


def vision(name: Any) -> Torchvision:
    return Torchvision(name=name)


# By name


class Clock:
    """A stand-in for `time`, which passes only where it is slept or worked."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("host_s", "waits_s", "exchange_s", "ten_steps_s"),
    [(0.002, 0, 0, 0.5), (0.002, 0.001, 0, 0.509), (0.001, 0, 0.002, 0.518), (0.02, 0, 0, 0.68)],
    ids=["host", "wait", "exchange", "pause"],
)
def test_a_wait_an_exchange_and_a_pause_cost_an_emulated_device_time_and_what_its_host_does_costs_none(
    host_s: float, waits_s: float, exchange_s: float, ten_steps_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(accelerator, "time", clock)
    monkeypatch.setattr(accelerator, "_lateness_s", [0.0])
    stand_in, x = Emulated(made(Torchvision(name="resnet18"), image_size=64), 0.05), torch.zeros(2, 3, 64, 64)
    begin = clock.now
    for step in range(10):
        if step:
            clock.now += host_s + waits_s
            stand_in.waited(waits_s)
        stand_in(x).sum().backward()
        if step < 9 and exchange_s:
            clock.now += exchange_s
            stand_in.synchronise()
    assert clock.now - begin == pytest.approx(ten_steps_s)


# Multiply-adds as torchvision publishes them with its weights (`GFLOPS` in its documentation).
@pytest.mark.parametrize(("name", "size", "billions"), [("inception_v3", 299, 5.713), ("resnet50", 224, 4.089)])
def test_networks_take_the_published_number_of_multiply_adds(name: str, size: int, billions: float) -> None:
    with torch.device("meta"):
        model = made(vision(name), classes=1000, image_size=size)
    assert sum(count.flops_by_kind(model, (3, size, size), training=False)) / 2e9 == pytest.approx(billions, abs=5e-3)
    assert model.training


def test_grey_images_are_shown_to_an_rgb_network_under_its_own_parameter_names() -> None:
    grey, rgb = made(vision("resnet18"), channels=1), made(vision("resnet18"))
    assert [*grey.state_dict()] == [*rgb.state_dict()]
    rgb.load_state_dict(grey.state_dict())
    image = torch.randn(2, 1, 32, 32)
    assert torch.equal(grey(image), rgb(image.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize(
    ("name", "channels", "size", "message"),
    [
        ("inception_v3", 3, 74, "it was published with 299x299"),
        ("vit_b_16", 3, 100, "sides a multiple of 16"),
        ("resnet18", 5, 32, "not 5 channels"),
        ("resnet18", 3, (), "takes images of 2x2 and more, not samples of vectors"),
    ],
)
def test_a_network_that_cannot_take_the_images_says_which_it_can(
    name: str, channels: int, size: Any, message: str
) -> None:
    with torch.device("meta"), pytest.raises(UserError, match=message):
        made(vision(name), channels=channels, image_size=size)


@pytest.mark.parametrize(
    "options",
    [SmallCNN(name="small_cnn"), SmallDenseNet(name="small_densenet"), MLP(name="mlp")],
    ids=lambda one: one.name,
)
def test_a_small_model_gives_every_class_a_logit(options: AnyModel) -> None:
    assert made(options, channels=1, image_size=8)(torch.rand(2, 1, 8, 8)).shape == (2, 10)


# Users' own

NETS = """\
from torch import nn
from neighbour import WIDTH

class Net(nn.Module):
    def __init__(self, classes, channels, width=WIDTH):
        super().__init__()
        if width < 0:
            raise ArithmeticError("no negative width")
        self.head = nn.Linear(channels * width, classes)

class Plain(nn.Linear):
    pass

def made_by_a_function(classes):
    return nn.Linear(3, classes)

class NoModel:
    pass

class Empty(nn.Module):
    pass

def Lazy(classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))
"""


@pytest.fixture
def extensions(tmp_path: Path) -> Path:
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "neighbour.py").write_text("WIDTH = 4\n")
    (tmp_path / "broken.py").write_text("x = 1\n\nx = = 2\n")
    return tmp_path


def own(extensions: Path, target: str, **kwargs: Any) -> nn.Module:
    return made(OwnModel(import_=target, kwargs=kwargs), extensions=extensions)


def test_an_own_model_is_told_classes_and_channels_where_it_takes_them(extensions: Path) -> None:
    assert own(extensions, "nets:Net").get_submodule("head").weight.shape == (10, 12)
    assert own(extensions, "nets:Net", width=2, classes=5).get_submodule("head").weight.shape == (5, 6)
    assert own(extensions, "nets:made_by_a_function").weight.shape == (10, 3)
    assert own(extensions, "nets:Plain", in_features=3, out_features=2).weight.shape == (2, 3)


@pytest.mark.parametrize(
    ("target", "kwargs", "where", "what"),
    [
        ("nests:Net", {}, "nests.py", "no such file"),
        ("nets:Nett", {}, "nets.py", "no class or function `Nett`"),
        ("nets:NoModel", {}, "nets.py", "is not a model"),
        ("nets:Empty", {}, "nets.py", "`Empty` has no parameter to train"),
        ("nets:Lazy", {}, "nets.py", "`Lazy` has lazy layers"),
        ("nets:Net", {"width": -1}, "nets.py:8", "ArithmeticError: no negative width"),
        ("broken:Net", {}, "broken.py:3", "SyntaxError: invalid syntax"),
    ],
)
def test_what_is_wrong_in_a_users_file_is_said_with_its_line(
    extensions: Path, target: str, kwargs: dict[str, Any], where: str, what: str
) -> None:
    with pytest.raises(UserError) as raised:
        own(extensions, target, **kwargs)
    assert raised.value.where == str(extensions / where)
    assert what in raised.value.what


# Losses

LOGITS = torch.tensor([[2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)


def test_multilabel_loss_is_the_mean_over_samples_and_labels() -> None:
    loss = outputs.loss(LOGITS, torch.tensor([[1, 0], [0, 1]]), "multilabel")
    assert loss.item() == pytest.approx((0.1269280110 + 3 * 0.6931471806) / 4)
    narrow = outputs.loss(LOGITS.bfloat16(), torch.tensor([[1, 0], [0, 1]]), "multilabel")
    assert (narrow.dtype, narrow.item()) == (torch.float32, pytest.approx(loss.item()))


def test_auxiliary_classifiers_count_as_their_authors_weighed_them() -> None:
    target, flat = torch.tensor([0, 1]), torch.zeros_like(LOGITS)
    inception = InceptionOutputs(LOGITS, flat)
    googlenet = GoogLeNetOutputs(LOGITS, flat, flat)
    assert outputs.loss(inception, target, "classification").item() == pytest.approx(0.4100375958 + 0.4 * 0.6931471806)
    assert outputs.loss(googlenet, target, "classification").item() == pytest.approx(0.4100375958 + 0.6 * 0.6931471806)
    assert outputs.predictions(googlenet) is LOGITS


def test_a_model_that_returns_no_logits_is_the_users_error() -> None:
    with pytest.raises(UserError, match="returned dict"):
        outputs.loss({"logits": LOGITS}, torch.tensor([0, 1]), "classification")


# The stand-in for compute


def test_gradients_of_a_stand_in_appear_last_layer_first_and_without_a_copy() -> None:
    model = made(vision("googlenet"), classes=6)
    stand_in, appeared = Emulated(model, 0.0), []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: appeared.append(name))  # type: ignore[misc]
    output = stand_in(torch.randn(2, 3, 32, 32))
    assert (output.shape, output.dtype) == ((2, 6), torch.float32)
    outputs.loss(output, torch.tensor([0, 1]), "classification").backward()  # type: ignore[no-untyped-call]
    assert appeared == [name for name, _ in model.named_parameters()][::-1]
    addresses = [parameter.grad.data_ptr() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    stand_in(torch.randn(2, 3, 32, 32)).sum().backward()
    assert addresses == [parameter.grad.data_ptr() for parameter in model.parameters() if parameter.grad is not None]
    with torch.no_grad():
        assert not stand_in(torch.randn(2, 3, 32, 32)).requires_grad


@pytest.mark.parametrize("shape", [(4, 7), (4, 12), (4,), (4, 10, 1), (3, 10)])
def test_logits_that_are_not_one_per_class_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="for 4 samples of 10 classes"):
        outputs.check_trainable(torch.zeros(shape), 4, 10)
    outputs.check_trainable(torch.zeros(4, 10, requires_grad=True), 4, 10)
    with pytest.raises(UserError, match="no gradient"):
        outputs.check_trainable(torch.zeros(4, 10), 4, 10)
