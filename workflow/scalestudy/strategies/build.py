"""From a strategy's options to the strategy."""

from __future__ import annotations

from importlib import import_module

from scalestudy.strategies.base import Strategy, World
from scalestudy.strategies.catalogue import AnyStrategy, ParameterServer


def build(options: AnyStrategy, world: World) -> Strategy:
    """One process's side of the strategy that `options` describe. Every process of the run calls this once.

    A strategy is the class named as its options, in the module of its name.
    """
    if isinstance(options, ParameterServer) and options.placement == "colocated":
        from scalestudy.strategies.colocated_server import ColocatedParameterServer

        return ColocatedParameterServer(options, world)
    module = import_module(f"scalestudy.strategies.{options.name}")
    strategy: Strategy = getattr(module, type(options).__name__)(options, world)
    return strategy
