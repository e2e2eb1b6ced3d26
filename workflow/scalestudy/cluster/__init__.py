"""Runs on clusters: what they request, what they will take and have taken, and whether a site fits. Imports no torch.

`plan/` says what a study will take, in GPU hours and all else, `ledger/` what its jobs have used, `doctor/` what a site has
and lacks. `resources.py` is what a job requests, `submit.py` prints its submit line.
"""
