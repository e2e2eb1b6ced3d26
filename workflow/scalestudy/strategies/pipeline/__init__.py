"""Automatic model parallelism: an unmodified module is traced, profiled, cut into stages and run as a pipeline.

`trace` the module as a chain of operators · `profile` their costs · `partition` the chain into stages · `plan`
stages × replicas × micro-batches · `schedule` the order of passes · `strategy` the run itself.

`torch.distributed.pipelining` (torch 2.14.1) in place of the passes in `step` would save 44 lines: weights agree with
one process to 1e-12, and a step takes 0.8 to 1.2 times as long. But its stages hold receive buffers for all micro-batches,
where `1f1b` is to hold no more than there are stages. Six convolutions (64 channels, 32 × 32 pixels) in two stages, 32
micro-batches of two samples: 34.6 and 25.3 MiB, here 16.5 and 11.1, planned 19.7 and 16.4.
"""

from scalestudy.strategies.pipeline.strategy import Pipeline

__all__ = ["Pipeline"]
