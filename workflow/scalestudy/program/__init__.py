"""A user's own training script: run, observed by hooks from outside, and explained by removal."""
