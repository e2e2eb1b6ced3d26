"""`scalestudy doctor`: the fitness of a site for the runs.

`examine.py` collects the scheduler's facts (`facts.py`) and the reports of nodes (`job.py` submits `probe.py` by the
executor's own job script). `findings.py` judges nodes, torch and files.
"""
