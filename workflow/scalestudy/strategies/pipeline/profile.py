"""Costs of each operator: time forward and backward, tensors kept for backward, outputs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate, map_arg

from scalestudy.strategies.pipeline.trace import Traced, changes_in_place

REPEATS = 5
CHAIN = 20

Precision = Callable[[], AbstractContextManager[Any]]
"""Entered around forward, as training enters it."""


@dataclass(frozen=True)
class Value:
    """One tensor that goes from operator to operator."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    root: str
    """Name of the first node whose memory it shares: its own where it shares none."""
    needs_gradient: bool


@dataclass(frozen=True)
class OperatorCost:
    """One operator at one number of samples."""

    forward_s: float
    backward_s: float
    """Backward, gradients added to those that are there."""
    keeps: frozenset[str]
    """Roots of the values that it keeps until its backward."""
    own_bytes: int
    """What it keeps in addition: indices, statistics, workspaces."""
    working_bytes: int
    """What its backward needs for a moment: gradients of what it takes and makes, and of its parameters."""


@dataclass(frozen=True)
class Profile:
    """A traced module at one number of samples."""

    samples: int
    costs: list[OperatorCost]
    values: dict[str, Value]
    integers: dict[str, int]
    """Values of the operators that make integers."""
    bytes_of: dict[str, int]
    """Memory behind each root."""
    changed: frozenset[str]
    """Names of the buffers that a forward pass changes."""


def profile(traced: Traced, x: torch.Tensor, repeats: int = REPEATS, precision: Precision = nullcontext) -> Profile:
    """Run the module over x [samples, …], operator by operator: the median of `repeats` passes after one to warm up.

    Whole passes follow each other, so that an operator finds the caches as training leaves them. No more than the values
    in use are in memory at a time. Parameters and buffers are as they were afterwards.
    """
    buffers = [(name, buffer, buffer.clone()) for name, buffer in traced.graph_module.named_buffers()]
    start_s = _start_of_backward(x.device)
    try:
        first = _Pass(traced, x, precision, start_s, watches=True)
        watched = first.run()
        timed = [_Pass(traced, x, precision, start_s).run() for _ in range(repeats)]
        changed = frozenset(name for name, buffer, before in buffers if not torch.equal(buffer, before))
    finally:
        with torch.no_grad():
            for _, buffer, before in buffers:
                buffer.copy_(before)
    costs = [
        replace(
            cost,
            forward_s=statistics.median(one.forward_s for one in same),
            backward_s=statistics.median(one.backward_s for one in same),
        )
        for cost, *same in zip(watched, *timed, strict=True)
    ]
    return Profile(len(x), costs, first.values, first.integers, first.bytes_of, changed)


class _Pass:
    """One pass over all operators: live memory, and the values that share it."""

    def __init__(
        self, traced: Traced, x: torch.Tensor, precision: Precision, start_s: float, *, watches: bool = False
    ) -> None:
        self.traced, self.device, self.precision = traced, x.device, precision
        self.start_s, self.watches = start_s, watches
        self.alive: dict[fx.Node, Any] = {}
        nodes = traced.graph_module.graph.nodes
        self.attributes = {node: traced.attribute(node) for node in nodes if node.op == "get_attr"}
        tensors = {node: value for node, value in self.attributes.items() if isinstance(value, torch.Tensor)}
        self.of_attributes = {_address(value) for value in tensors.values()}
        self.needs_gradient = {node for node, value in tensors.items() if value.requires_grad}
        self.roots: dict[int, str] = {}
        self.values: dict[str, Value] = {}
        self.integers: dict[str, int] = {}
        self.bytes_of: dict[str, int] = {}
        self._made(traced.input, x)

    def run(self) -> list[OperatorCost]:
        """All operators, in order; a value is dropped after its last use."""
        last, costs = self.traced.last_use(), []
        for position, operator in enumerate(self.traced.operators):
            costs.append(self._operator(operator))
            self.alive = {node: value for node, value in self.alive.items() if last[node] > position}
            self.roots = {
                _address(value): self.values[node.name].root
                for node, value in self.alive.items()
                if isinstance(value, torch.Tensor)
            }
        return costs

    def _operator(self, operator: fx.Node) -> OperatorCost:
        """Time an operator on copies, then run it for its value."""
        differentiable = [node for node in operator.all_input_nodes if node in self.needs_gradient]
        cost = self._timed(operator, bool(differentiable))
        with torch.no_grad():
            result = self._call(operator, self.alive | self.attributes)
        if differentiable:
            taken = _tensors([(self.alive | self.attributes)[node] for node in differentiable])
            cost = replace(cost, working_bytes=sum(tensor.nbytes for tensor in (*taken, *_tensors(result))))
            if any(tensor.is_floating_point() for tensor in _tensors(result)):
                self.needs_gradient.add(operator)
        self._made(operator, result)
        return cost

    def _timed(self, operator: fx.Node, differentiable: bool) -> OperatorCost:
        """Forward and backward, seconds; if watched, what it keeps for its backward."""
        values = {node: self._leaf(node) for node in operator.all_input_nodes}
        if (changed := changes_in_place(operator)) is not None:
            values[changed] = map_aggregate(values[changed], lambda v: v.clone() if isinstance(v, torch.Tensor) else v)
        saved: list[torch.Tensor] = []

        def note(tensor: torch.Tensor) -> torch.Tensor:
            saved.append(tensor.detach())
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        begin = now(self.device)
        with hooks if self.watches else nullcontext():
            result = self._call(operator, values)
        forward_s, backward_s = now(self.device) - begin, 0.0
        keeps, own_bytes = self._kept(saved, values, operator, result)
        if differentiable:
            results = [tensor for tensor in _tensors(result) if tensor.requires_grad]
            ones = [torch.ones_like(tensor) for tensor in results]
            begin = now(self.device)
            torch.autograd.backward(results, ones)
            backward_s = max(0.0, now(self.device) - begin - self.start_s)
        return OperatorCost(forward_s, backward_s, keeps, own_bytes, 0)

    def _leaf(self, node: fx.Node) -> Any:
        """A node's value as autograd sees the start of a graph; a parameter has a gradient to add to."""

        def leaf(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or node not in self.needs_gradient:
                return value
            fresh = value.detach().requires_grad_(value.is_floating_point())
            if node in self.attributes and fresh.requires_grad:
                fresh.grad = torch.zeros_like(fresh)
            return fresh

        return map_aggregate(self.attributes.get(node, self.alive.get(node)), leaf)

    def _call(self, operator: fx.Node, values: dict[fx.Node, Any]) -> Any:
        target: Any = operator.target
        if operator.op == "call_module":
            target = self.traced.graph_module.get_submodule(str(target))

        def value(node: fx.Node) -> Any:
            return self.integers[node.name] if node.name in self.integers else values[node]

        with self.precision():
            return target(*map_arg(operator.args, value), **map_arg(operator.kwargs, value))

    def _kept(
        self, saved: list[torch.Tensor], values: dict[fx.Node, Any], operator: fx.Node, result: Any
    ) -> tuple[frozenset[str], int]:
        """Which values autograd keeps, by root, and the bytes of all others."""
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


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value that may be a list of them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def now(device: torch.device) -> float:
    """Seconds on a clock, when all work of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _start_of_backward(device: torch.device) -> float:
    """Seconds that a call of backward takes in addition to its operators: a whole pass pays it once, not once per operator."""

    def backward_s(length: int) -> float:
        times = []
        for _ in range(5):
            y = torch.zeros(1, device=device, requires_grad=True)
            for _ in range(length):
                y = y * 1.0
            one = torch.ones_like(y)
            begin = now(device)
            torch.autograd.backward([y], [one])
            times.append(now(device) - begin)
        return min(times)

    short, long = backward_s(1), backward_s(1 + CHAIN)
    return max(0.0, short - (long - short) / CHAIN)
