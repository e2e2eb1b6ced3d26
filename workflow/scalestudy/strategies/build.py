"""From a strategy's options to the strategy."""

from __future__ import annotations

from scalestudy.strategies.base import Strategy, World
from scalestudy.strategies.catalogue import AllReduce, AnyStrategy, HalvingDoubling, ParameterServer, Pipeline, Single


def build(options: AnyStrategy, world: World) -> Strategy:
    """One process's side of the strategy that `options` describe. Every process of the run calls this once."""
    match options:
        case Single():
            from scalestudy.strategies import single

            return single.Single(options, world)
        case AllReduce():
            from scalestudy.strategies import allreduce

            return allreduce.AllReduce(options, world)
        case HalvingDoubling():
            from scalestudy.strategies import halving_doubling

            return halving_doubling.HalvingDoubling(options, world)
        case ParameterServer():
            from scalestudy.strategies import parameter_server

            return parameter_server.ParameterServer(options, world)
        case Pipeline():
            from scalestudy.strategies.pipeline import strategy

            return strategy.Pipeline(options, world)
