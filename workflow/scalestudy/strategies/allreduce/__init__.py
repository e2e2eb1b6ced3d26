"""All-reduce by an algorithm that the study names: a file holds one algorithm, `schedule.py` when it runs.

torch's DistributedDataParallel, the strategy `allreduce`, is in `ddp.py` beside this folder; formulas are in `cost.py`.
"""
