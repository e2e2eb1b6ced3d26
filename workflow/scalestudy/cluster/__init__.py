"""Runs on clusters: requests, expected and actual use, and the fitness of a site. Imports no torch.

`plan/` estimates a study in GPU hours and all else, `ledger/` reads its jobs' use, `doctor/` finds a site's features
and lacks. `resources.py` composes a job's request, `submit.py` prints its submit line.
"""
