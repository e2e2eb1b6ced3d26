"""`scalestudy plan`: estimates of a dry run's jobs, before the first is submitted.

`expected.py` estimates a run or a dataset, from measured (`nearest_runs.py`), counted (`counts.py`) or published times.
`hours.py` sums them with the requests (`cluster/resources.py`) into a `Plan` with percentiles and the least makespan.
`show.py` prints it.
"""
