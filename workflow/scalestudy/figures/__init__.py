import os

# A notebook's kernel names a backend of its own, which matplotlib loads on import.
os.environ.pop("MPLBACKEND", None)
