"""What each operator costs: time forward and backward, what it keeps for backward, what it makes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate, map_arg

from scalestudy.strategies.pipeline.trace import Traced, changes_in_place

REPEATS = 3
CHAIN = 20


@dataclass(frozen=True)
class Value:
    """One tensor that goes from operator to operator."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    root: str
    """Name of the first node whose memory it shares: its own where it shares none."""
    needs_gradient: bool


@dataclass(frozen=True)
class Cost:
    """One operator at one number of samples."""

    forward_s: float
    backward_s: float
    """Backward, gradients added to those that are there."""
    keeps: frozenset[str]
    """Roots of the values that it keeps until its backward."""
    own_bytes: int
    """What it keeps beside them: indices, statistics, workspaces."""
    working_bytes: int
    """What its backward needs for a moment: gradients of what it takes and makes, and of its parameters."""


@dataclass(frozen=True)
class Profile:
    """A traced module at one number of samples."""

    samples: int
    costs: list[Cost]
    values: dict[str, Value]
    integers: dict[str, int]
    """Values of the operators that make integers."""
    bytes_of: dict[str, int]
    """Memory behind each root."""
    changed: frozenset[str]
    """Names of the buffers that a forward pass changes."""


def profile(
    traced: Traced,
    x: torch.Tensor,
    repeats: int = REPEATS,
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Profile:
    """Run the module once over x [samples, …], operator by operator, each `repeats` times: the fastest counts.

    `precision` is entered around every operator, as training enters it around forward.

    No more than the values in use are in memory at a time. Parameters and buffers are as they were afterwards.
    """
    buffers = [(name, buffer, buffer.clone()) for name, buffer in traced.graph_module.named_buffers()]
    profiler = _Profiler(traced, x, repeats, precision)
    try:
        costs = profiler.run()
        changed = frozenset(name for name, buffer, before in buffers if not torch.equal(buffer, before))
    finally:
        with torch.no_grad():
            for _, buffer, before in buffers:
                buffer.copy_(before)
    return Profile(len(x), costs, profiler.values, profiler.integers, profiler.bytes_of, changed)


class _Profiler:
    """The state of one pass: what is in memory, and which values share it."""

    def __init__(
        self, traced: Traced, x: torch.Tensor, repeats: int, precision: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self.traced, self.device, self.repeats, self.precision = traced, x.device, repeats, precision
        self.start_s = _start_of_backward(x.device)
        self.alive: dict[fx.Node, Any] = {}
        self.attributes = {
            node: traced.attribute(node) for node in traced.graph_module.graph.nodes if node.op == "get_attr"
        }
        self.of_attributes = {_address(value) for value in self.attributes.values() if isinstance(value, torch.Tensor)}
        self.needs_gradient = {
            node for node, value in self.attributes.items() if isinstance(value, torch.Tensor) and value.requires_grad
        }
        self.roots: dict[int, str] = {}
        self.values: dict[str, Value] = {}
        self.integers: dict[str, int] = {}
        self.bytes_of: dict[str, int] = {}
        self._made(traced.input, x)

    def run(self) -> list[Cost]:
        """All operators, in order; a value is dropped after its last use."""
        last, costs = self.traced.last_use(), []
        for position, operator in enumerate(self.traced.operators):
            costs.append(self._operator(operator))
            self.alive = {node: value for node, value in self.alive.items() if last[node] > position}
            self.roots = {
                _address(tensor): self.values[node.name].root
                for node, value in self.alive.items()
                if isinstance((tensor := value), torch.Tensor)
            }
        return costs

    def _operator(self, operator: fx.Node) -> Cost:
        """Time an operator on copies, then run it for its value."""
        takes_gradients = [node for node in operator.all_input_nodes if node in self.needs_gradient]
        forward_s, backward_s, keeps, own_bytes = self._timed(operator, bool(takes_gradients))
        with torch.no_grad():
            result = self._call(operator, self.alive | self.attributes)
        if takes_gradients and any(tensor.is_floating_point() for tensor in _tensors(result)):
            self.needs_gradient.add(operator)
        taken = [tensor for node in takes_gradients for tensor in _tensors((self.alive | self.attributes)[node])]
        working_bytes = sum(map(_bytes, (*taken, *_tensors(result)))) if takes_gradients else 0
        self._made(operator, result)
        return Cost(forward_s, backward_s, keeps, own_bytes, working_bytes)

    def _timed(self, operator: fx.Node, differentiable: bool) -> tuple[float, float, frozenset[str], int]:
        """Fastest forward and backward, seconds; roots that it keeps, and further bytes that it keeps."""
        leaves = {node: self._leaf(node) for node in operator.all_input_nodes}
        changed = changes_in_place(operator)
        forward_s = backward_s = float("inf")
        keeps: frozenset[str] = frozenset()
        own_bytes = 0
        for repeat in range(self.repeats + 1):
            values = {node: self._fresh(node, leaf, node is changed) for node, leaf in leaves.items()}
            saved: list[torch.Tensor] = []
            if repeat == 0:  # warms up, and watches what autograd keeps
                with torch.autograd.graph.saved_tensors_hooks(_note_into(saved), lambda tensor: tensor):
                    result = self._call(operator, values)
                keeps, own_bytes = self._kept(saved, values, operator, result)
            begin = _now(self.device)
            if repeat > 0:
                result = self._call(operator, values)
                forward_s = min(forward_s, _now(self.device) - begin)
            if differentiable:
                results = [tensor for tensor in _tensors(result) if tensor.requires_grad]
                ones = [torch.ones_like(tensor) for tensor in results]
                begin = _now(self.device)
                torch.autograd.backward(results, ones)
                if repeat > 0:
                    backward_s = min(backward_s, _now(self.device) - begin)
        return forward_s, max(0.0, backward_s - self.start_s) if differentiable else 0.0, keeps, own_bytes

    def _leaf(self, node: fx.Node) -> Any:
        """A node's value as autograd sees the start of a graph."""

        def leaf(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or node not in self.needs_gradient:
                return value
            return value.detach().requires_grad_(value.is_floating_point())

        return map_aggregate(self.attributes.get(node, self.alive.get(node)), leaf)

    def _fresh(self, node: fx.Node, leaf: Any, changed: bool) -> Any:
        """The value for one more round: gradients add up for parameters only; what is overwritten is a copy."""
        if node in self.attributes:
            return leaf
        for tensor in _tensors(leaf):
            tensor.grad = None
        return leaf.clone() if changed else leaf

    def _call(self, operator: fx.Node, values: dict[fx.Node, Any]) -> Any:
        target: Any = operator.target
        if operator.op == "call_module":
            target = self.traced.graph_module.get_submodule(str(target))
        integers = self.integers

        def value(node: fx.Node) -> Any:
            return integers[node.name] if node.name in integers else values[node]

        with self.precision():
            return target(*map_arg(operator.args, value), **map_arg(operator.kwargs, value))

    def _kept(
        self, saved: list[torch.Tensor], values: dict[fx.Node, Any], operator: fx.Node, result: Any
    ) -> tuple[frozenset[str], int]:
        """Which values autograd keeps, by root, and the bytes of what is none of them."""
        roots = dict(self.roots)
        for node, value in values.items():
            if node not in self.attributes:
                for tensor in _tensors(value):
                    roots[_address(tensor)] = self.values[node.name].root if node.name in self.values else node.name
        if isinstance(result, torch.Tensor):
            roots.setdefault(_address(result), operator.name)
        keeps, own = set(), {}
        for tensor in saved:
            if (address := _address(tensor)) in roots:
                keeps.add(roots[address])
            elif address not in self.of_attributes:
                own[address] = tensor.untyped_storage().nbytes()
        return frozenset(keeps), sum(own.values())

    def _made(self, node: fx.Node, value: Any) -> None:
        """Take a new value into the account."""
        self.alive[node] = value
        if isinstance(value, torch.Tensor):
            root = self.roots.setdefault(_address(value), node.name)
            self.values[node.name] = Value(tuple(value.shape), value.dtype, root, node in self.needs_gradient)
            self.bytes_of.setdefault(root, value.untyped_storage().nbytes())
        elif isinstance(value, int) and not isinstance(value, bool):
            self.integers[node.name] = value


def _note_into(saved: list[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.detach())
        return tensor

    return note


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value that may be a list of them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _start_of_backward(device: torch.device) -> float:
    """Seconds that a call of backward takes beside its operators: a whole pass pays it once, not once per operator."""

    def backward_s(length: int) -> float:
        times = []
        for _ in range(5):
            y = leaf = torch.zeros(1, device=device, requires_grad=True)
            for _ in range(length):
                y = y * 1.0
            one = torch.ones_like(y)
            begin = _now(device)
            torch.autograd.backward([y], [one])
            times.append(_now(device) - begin)
            leaf.grad = None
        return min(times)

    short, long = backward_s(1), backward_s(1 + CHAIN)
    return max(0.0, short - (long - short) / CHAIN)
