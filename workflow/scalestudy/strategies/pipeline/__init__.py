"""Automatic model parallelism: an unmodified module is traced, profiled, cut into stages and run as a pipeline.

`trace` the module as a chain of operators · `profile` what each costs · `partition` the chain into stages · `plan`
stages × replicas × micro-batches · `schedule` who does what when · `strategy` the run itself.
"""

from scalestudy.strategies.pipeline.strategy import Pipeline

__all__ = ["Pipeline"]
