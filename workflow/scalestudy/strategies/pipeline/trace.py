"""A module as a chain of operators, and any part of that chain as a module again."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn

from scalestudy.errors import UserError


@dataclass
class Traced:
    """The module's work on one batch as `torch.export` recorded it: operators in the order in which they ran.

    `graph_module` holds the module's own parameters and buffers, not copies. The number of samples is left open in
    `graph_module`: its dependents are integers that operators hand on, such as `sym_size`.
    """

    graph_module: fx.GraphModule
    input: fx.Node
    """The batch."""
    operators: list[fx.Node]
    """Everything that computes; parameters, the input and the output are none."""
    outputs: list[Any]
    """The module's output, flattened: nodes or None."""
    structure: Any
    """What makes the module's output of the flat one: has `unflatten`."""

    def last_use(self) -> dict[fx.Node, int]:
        """For every node, the position of the last operator that takes it; for outputs, the number of operators."""
        position = {node: index for index, node in enumerate(self.operators)}
        return {
            node: max((position.get(user, len(self.operators)) for user in node.users), default=-1)
            for node in self.graph_module.graph.nodes
        }

    def crossing(self) -> list[list[fx.Node]]:
        """For each position p = 0 … number of operators, values made before operator p and used from it on.

        The input counts as made before all; parameters, buffers and constants are on every side.
        """
        last = self.last_use()
        crossing: list[list[fx.Node]] = [[] for _ in range(len(self.operators) + 1)]
        for at, node in enumerate([self.input, *self.operators]):
            for p in range(at, last[node] + 1):
                crossing[p].append(node)
        return crossing

    def assembled(self, values: Sequence[Any]) -> Any:
        """The module's output from the tensors that its last part returns: each output once, in order."""
        named = dict(zip(dict.fromkeys(node for node in self.outputs if node is not None), values, strict=True))
        return self.structure.unflatten([None if node is None else named[node] for node in self.outputs])

    def attribute(self, node: fx.Node) -> Any:
        """The parameter, buffer or constant that a `get_attr` node stands for."""
        return attrgetter(str(node.target))(self.graph_module)

    def attributes_of(self, operator: fx.Node) -> Iterator[fx.Node]:
        """The parameters, buffers and constants that an operator takes."""
        return (node for node in operator.all_input_nodes if node.op == "get_attr")


def trace(model: nn.Module, x: torch.Tensor) -> Traced:
    """Trace `model` in its present mode for batches like `x` [samples, …] of any number of samples from two on.

    With one sample the trace holds for one sample only. The whole of autograd's view is kept: in-place operators stay
    in place, dropout stays random, BatchNorm stays in training mode. Raises UserError where the module decides by the
    values of its data or by the number of samples.
    """
    sizes = {0: torch.export.Dim.DYNAMIC} if len(x) > 1 else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(model, (x,), strict=False, dynamic_shapes=(sizes,))
            # torch before 2.9 puts no checks of its inputs into a traced module, and has no option for it.
            guards = {"check_guards": False} if "check_guards" in signature(exported.module).parameters else {}
            graph_module = exported.module(**guards)
    except Exception as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        remedy = "a pipeline needs a model whose operators depend neither on values nor on the number of samples"
        raise UserError(f"the model cannot be traced: {reason[:200]}", "model", remedy) from error
    assert isinstance(graph_module, fx.GraphModule)
    nodes = list(graph_module.graph.nodes)
    (batch,) = (node for node in nodes if node.op == "placeholder")
    operators = [node for node in nodes if node.op in ("call_function", "call_module")]
    flat = nodes[-1].args[0]
    outputs = list(flat) if isinstance(flat, (tuple, list)) else [flat]
    return Traced(graph_module, batch, operators, outputs, exported.call_spec.out_spec)


def changes_in_place(operator: fx.Node) -> fx.Node | None:
    """The node of the value that an operator overwrites: by ATen's naming, the first argument where the name ends in `_`."""
    name = getattr(operator.target, "__name__", "").partition(".")[0]
    first = operator.args[0] if operator.args else None
    inside = name.endswith("_") and not name.endswith("__")
    return first if inside and isinstance(first, fx.Node) else None


def part(
    traced: Traced, begin: int, end: int, incoming: list[str], outgoing: list[str], integers: Mapping[str, int]
) -> fx.GraphModule:
    """Operators begin … end-1 as a module: from the values named `incoming` to a tuple of those named `outgoing`.

    Parameters are shared with the traced module and keep their names. `integers` are the values of the operators that
    make integers, for one number of samples; they become constants.
    """
    graph = fx.Graph()
    nodes = {node.name: node for node in traced.graph_module.graph.nodes}
    copies = {nodes[name]: graph.placeholder(name) for name in incoming}

    def copied(node: fx.Node) -> Any:
        if node.name in integers:
            return integers[node.name]
        if node not in copies and node.op == "get_attr":
            copies[node] = graph.get_attr(str(node.target))
        return copies[node]

    for operator in traced.operators[begin:end]:
        if operator.name not in integers:
            copies[operator] = graph.node_copy(operator, copied)
    graph.output(tuple(copied(nodes[name]) for name in outgoing))
    return fx.GraphModule(traced.graph_module, graph)
