"""`scalestudy plan`: what the jobs of a dry run will take, before the first is submitted.

`expected.py` says what a run will take, from what is measured (`neighbours.py`), counted (`costs.py`) or published;
`preparation.py` does so for data, `storage.py` for what is written. `gpu_hours.py` sums that and what the jobs request
(`cluster/resources.py`) into the `Plan` of `planned.py`: `spread.py` draws its percentiles, `schedule.py` its makespan.
`show.py` prints it, `proposal.py` writes it as a page.
"""
