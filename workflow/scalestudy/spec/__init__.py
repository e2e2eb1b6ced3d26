"""Models of a run, a dataset, a machine and a study; ids; expansion. Imports no torch."""
