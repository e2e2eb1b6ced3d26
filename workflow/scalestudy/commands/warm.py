"""The process of a warm parent: `python -m scalestudy.commands.warm ADDRESS`, as launch/warm.py starts it."""

from __future__ import annotations

import sys
from pathlib import Path

from scalestudy.cli import run_command
from scalestudy.launch.warm_parent import serve

if __name__ == "__main__":
    serve(Path(sys.argv[1]), run_command)
