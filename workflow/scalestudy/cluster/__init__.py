"""Runs on clusters: what they ask for, what they will cost, and whether a site has what they need. Imports no torch."""
