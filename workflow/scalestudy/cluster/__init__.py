"""Runs on clusters: requests, expected use, and the fitness of a site. Imports no torch.

`resources.py` composes a job's request, `plan/` estimates a study in GPU hours and all else, `doctor/` finds a site's
features and lacks.
"""
