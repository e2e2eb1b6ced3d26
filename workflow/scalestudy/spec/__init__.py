"""What a run, a dataset, a machine and a study are; ids; expansion. Imports no torch."""
