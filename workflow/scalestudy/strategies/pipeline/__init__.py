"""Automatic model parallelism: an unmodified module is traced, profiled, cut into stages and run as a pipeline.

`trace` the module as a chain of operators · `profile` their costs · `partition` the chain into stages · `plan`
stages × replicas × micro-batches · `schedule` the order of passes · `strategy` the run itself.
"""

from scalestudy.strategies.pipeline.strategy import Pipeline

__all__ = ["Pipeline"]
