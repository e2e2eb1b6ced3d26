"""Runs on clusters: what they ask for, what they will cost, and whether a site has what they need. Imports no torch.

Where GPU hours come from, in this order: `expected.py` says what a run will take (from `known.py`, `neighbours.py`,
`costs.py` and published times), `resources.py` what its job requests, `plan.py` sums both into the `Plan` of `planned.py`,
`spread.py` draws its percentiles, `schedule.py` its makespan, `show.py` and `proposal.py` print it. Afterwards, `used.py`
reads what jobs used, `actual.py` compares it with the plan, `spent.py` counts it by project, and `left.py` asks what is
left of a grant.

Whether a site fits: `doctor.py` collects what schedulers say (`facts/`) and what probes find on nodes (`probe_job.py`,
`probe.py`, `on_node.py`), `findings.py` judges it, `write_machine.py` and `write_site.py` write it down. `drive.py` runs
the driver as a job.
"""
