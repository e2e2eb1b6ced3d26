"""What the longer verbs of the command line do."""
