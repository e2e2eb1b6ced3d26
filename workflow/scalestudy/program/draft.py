"""A first study of a user's script, written from one observed run."""

from __future__ import annotations

import math
import re
import shlex
import tempfile
from pathlib import Path

from scalestudy.errors import UserError
from scalestudy.program.observe import Removal, observe

TEMPLATE = Path(__file__).with_name("study.yaml")
OPTION = "--program"
OBSERVED_STEPS, WARMUP_STEPS = 16, 8
WINDOW_S = 5.0
"""Length of the window that is proposed."""
MIN_WINDOW_STEPS = 20
MAX_OBSERVED_S = 600.0


def words_of(command: str) -> tuple[list[str], Path]:
    """Return the words of a command, `train.py` alone being one too, and its script; `env -C FOLDER` may precede it."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"cannot be split into words: {error}", f"{OPTION} {command}", "close its quotes") from None
    words = ["python", *words] if words and words[0].endswith(".py") else words
    folders = [Path(), *(Path(word) for word in words if Path(word).is_dir())]
    scripts = (folder / word for word in words if word.endswith(".py") for folder in folders)
    script = next((script for script in scripts if script.is_file() and not script.is_absolute()), None)
    if script is None:
        what = "no Python file of the project is in the command"
        raise UserError(what, f"{OPTION} {command}", "write it as `python train.py`, from the project's folder")
    return words, script


def draft(command: str) -> str:
    """Run a command for a few steps; return a study with its ranks and a window that follows from its steps."""
    words, script = words_of(command)
    with tempfile.TemporaryDirectory(prefix="scalestudy_") as folder:
        [seen] = observe(words, Removal("whole"), OBSERVED_STEPS, WARMUP_STEPS, MAX_OBSERVED_S, Path(folder) / "run")
    if seen.failure:
        raise UserError(seen.failure, shlex.join(words), "see that the command trains by itself first")
    ranks = "1 rank" if len(seen.ranks) == 1 else f"{len(seen.ranks)} ranks"
    loaders = seen.ranks[0].training_loaders
    sizes = [f"batches of {loader['batch_size']} by {loader['num_workers']} workers" for loader in loaders]
    values = {
        "COMMAND": shlex.join(words).replace("\\", "\\\\").replace('"', '\\"'),
        "SCRIPT": str(script),
        "RANKS": str(len(seen.ranks)),
        "STEPS": str(max(MIN_WINDOW_STEPS, math.ceil(WINDOW_S / seen.step_s))),
        "OBSERVED": ", ".join([ranks, f"{1e3 * seen.step_s:.3g} ms a step", *(sizes or ["no DataLoader"])]),
    }
    return re.sub("|".join(values), lambda key: values[key[0]], TEMPLATE.read_text(encoding="utf-8"))
