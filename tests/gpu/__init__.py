"""What only a machine with a GPU can show, in one command: `python -m tests.gpu`. Without a GPU its dry part runs.

Nothing is installed and nothing downloaded. Python 3.11 or newer and torch are taken as they are; `tests.gpu.pack` lists
and packs, ahead of time, the wheels that a machine may lack.
"""
