"""Stages from a chain of blocks: against brute force, with made-up chains and with a model's own profile."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from scalestudy.errors import UserError
from scalestudy.strategies.catalogue import Pipeline
from scalestudy.strategies.cost import Link
from scalestudy.strategies.pipeline import plan, schedule
from scalestudy.strategies.pipeline.partition import BlockCosts, between, partition, stage_bytes, stage_times
from scalestudy.strategies.pipeline.plan import Blocks, Devices, choose, fewest_devices, possible_cuts
from scalestudy.strategies.pipeline.profile import profile
from scalestudy.strategies.pipeline.trace import trace

MIB = 2**20
FREE = Link(math.inf)


def chain(
    forward_s: list[float], parameter_mib: list[float] | None = None, kept_mib: float = 0.0, crossing_mib: float = 0.0
) -> BlockCosts:
    """A chain whose backward takes twice its forward, and whose every block keeps as much."""
    count = len(forward_s)
    lengths = np.maximum(0, np.arange(count + 1)[None, :] - np.arange(count + 1)[:, None])
    return BlockCosts(
        np.array(forward_s),
        2 * np.array(forward_s),
        MIB * np.array(parameter_mib or [1.0] * count),
        np.zeros(count),
        np.zeros(count),
        np.full(count + 1, crossing_mib * MIB),
        np.full(count + 1, crossing_mib * MIB),
        lengths * kept_mib * MIB,
    )


def slowest(given_chain: BlockCosts, cuts: tuple[int, ...], link: Link) -> float:
    """The slowest stage of a partition, counted from the blocks. Nothing to send is no message."""
    both = np.add(given_chain.forward_s, given_chain.backward_s).tolist()
    sent = np.add(given_chain.crossing_bytes, given_chain.gradient_bytes).tolist()
    return max(
        sum(both[begin:end]) + (link.time(2, sent[begin]) if begin and sent[begin] else 0.0)
        for begin, end in itertools.pairwise((0, *cuts, len(both)))
    )


WHOLE_BYTES = st.integers(MIB, 20 * MIB).map(lambda size: size / MIB)
"""Sizes of parameters, MiB. Sums of whole bytes are exact, so that it makes no difference in which order they are added."""


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1e-5, 1.0), WHOLE_BYTES), min_size=1, max_size=12),
    st.integers(1, 5),
    st.builds(Link, st.floats(1e8, 1e12), st.floats(0, 0.1)),
    st.integers(0, 50),
    st.just(math.inf) | st.floats(20, 300),
)
def test_no_partition_that_fits_in_memory_is_better(
    both: list[tuple[float, float]], stages: int, link: Link, crossing_mib: int, limit_mib: float
) -> None:
    made_up = chain([time_s for time_s, _ in both], [size for _, size in both], 2.0, crossing_mib)
    sizes = [stage_bytes(made_up, stages - stage, copies=3.0) for stage in range(stages)]
    found = partition(stage_times(made_up, link), [size <= limit_mib * MIB for size in sizes])

    def fits(cuts: tuple[int, ...]) -> bool:
        """Parameters three times, what micro-batches keep, and the messages at both ends."""
        return all(
            3 * (sum(size for _, size in both[begin:end]) + crossing_mib) + (stages - stage) * 2.0 * (end - begin)
            <= limit_mib
            for stage, (begin, end) in enumerate(itertools.pairwise((0, *cuts, made_up.blocks)))
        )

    fitting = [*filter(fits, itertools.combinations(range(1, made_up.blocks), stages - 1))]
    assert (found is None) == (not fitting)
    if found is not None:
        time_s, cuts = found
        assert cuts in fitting
        assert slowest(made_up, cuts, link) == pytest.approx(time_s)
        assert time_s <= min(slowest(made_up, each, link) for each in fitting) * (1 + 1e-9)


# The order of passes


def test_1f1b_goes_backward_as_soon_as_it_can() -> None:
    first, last = (schedule.order(2, stage, 3) for stage in (0, 1))
    assert [f"{kind[0]}{k}" for kind, k in first] == ["f0", "f1", "b0", "f2", "b1", "b2"]
    assert [f"{kind[0]}{k}" for kind, k in last] == ["f0", "b0", "f1", "b1", "f2", "b2"]


def test_a_step_fills_the_pipeline_once_and_then_goes_at_the_pace_of_the_slowest_stage() -> None:
    # (4 micro-batches + 2 stages - 1) x (1 + 2) seconds; messages that a stage waits for come on top: there and back
    # before each of the first stage's two waits.
    assert schedule.step_time([1, 1], [2, 2], [0], [0], 4) == 15.0
    assert schedule.step_time([1, 1], [2, 2], [0.5], [0.25], 4) == 16.5
    assert schedule.step_time([1, 3], [2, 2], [0], [0], 4) == 23.0


def test_ranks_that_share_a_core_take_turns() -> None:
    assert schedule.step_time([1, 1], [2, 2], [0], [0], 4, replicas=1, at_once=1) == 24.0
    assert schedule.step_time([1], [2], [], [], 1, replicas=4, at_once=2) == 6.0


# The choice


def machine(ranks: int, limit_mib: float | None = None, link: Link = FREE) -> Devices:
    """Devices that exchange for nothing."""
    return Devices(ranks, 8, link, link, 0.0, 3.0, None, None if limit_mib is None else limit_mib * MIB)


def made_up_blocks(given_chain: BlockCosts) -> Blocks:
    return Blocks(tuple(range(given_chain.blocks + 1)), between(given_chain, given_chain, 0.0), given_chain, (8, 8))


FREELY = Pipeline(name="pipeline")


def test_stages_are_chosen_where_parameters_are_dear_to_exchange() -> None:
    dear = made_up_blocks(chain([0.001] * 8, [100.0] * 8, crossing_mib=0.001))
    plan = choose(dear, machine(4, link=Link(1e9, 1e-5)), FREELY)
    assert plan.stages == 4


def test_what_fits_nowhere_is_told_with_the_fewest_devices_that_would_do() -> None:
    model = made_up_blocks(chain([1.0] * 8, [10.0] * 8))
    assert choose(model, machine(2, limit_mib=100), FREELY) is None
    assert fewest_devices(model, machine(2, limit_mib=100)) == 3
    assert fewest_devices(model, machine(2, limit_mib=30)) is None


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, None), (None, 4), (4, 8)])
def test_what_the_study_fixed_is_kept(stages: int | None, micro_batches: int | None) -> None:
    plan = choose(
        made_up_blocks(chain([1.0] * 8)),
        machine(4),
        Pipeline(name="pipeline", stages=stages, micro_batches=micro_batches),
    )
    assert stages in (None, plan.stages)
    assert micro_batches in (None, plan.micro_batches)
    assert plan.micro_batch * plan.micro_batches * plan.replicas == 32


# Where a stage can begin


class Tied(nn.Module):
    """The second layer has the first one's weights; in between something is overwritten, and something skips."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tied = torch.tanh(self.first(torch.tanh(self.first(x))))
        changed = self.middle(tied)
        return self.last(torch.relu_(changed) + tied)


def test_no_stage_begins_between_two_uses_of_a_parameter_or_before_a_value_is_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traced = trace(Tied(), torch.randn(2, 4))
    names = [operator.name for operator in traced.operators]
    profiled = profile(traced, torch.randn(4, 4), 1)
    positions = possible_cuts(traced, profiled)
    cuts = [names[cut] for cut in positions]
    monkeypatch.setattr(plan, "MAX_BLOCKS", 3)
    few = plan.blocks(traced, profiled, profiled)
    assert few.small.blocks <= 3 and {*few.positions} <= {0, *positions, len(names)}
    assert names == ["linear", "tanh", "linear_1", "tanh_1", "linear_2", "relu_", "add", "linear_3"]
    assert cuts == ["tanh_1", "linear_2", "add", "linear_3"]


def test_a_profile_counts_what_autograd_keeps_and_changes_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x, kept = torch.randn(4, 3, 8, 8), {}
    traced = trace(model, x)
    found = profile(traced, x, 1)
    own = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = model(x)
    counted = sum(found.bytes_of[root] for root in set().union(*(cost.keeps for cost in found.costs)))
    counted += sum(cost.own_bytes for cost in found.costs)
    assert output.shape == (4, 5)
    assert counted == sum(size for place, size in kept.items() if place not in own)
    assert found.changed == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


class Undecided(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_a_model_that_decides_by_its_data_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="the model cannot be traced"):
        trace(Undecided(), torch.randn(2, 4))
