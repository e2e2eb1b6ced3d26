"""The process of a warm server: `python -m scalestudy.commands.warm`, as launch/warm.py starts it."""

from __future__ import annotations

from scalestudy.cli import run_command
from scalestudy.launch.warm import serve

if __name__ == "__main__":
    serve(run_command)
