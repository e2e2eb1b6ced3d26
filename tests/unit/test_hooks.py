"""Hooks in a user's script, without torch."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from scalestudy.program.observe import INJECTED, REQUEST

LOOKS_FIRST = """
import importlib.util, sys, types
hooked = []
sys.modules["scalestudy_hooks.steps"] = types.SimpleNamespace(Steps=lambda request, module: hooked.append(module.__name__))
assert importlib.util.find_spec("torch") is not None
import torch
print(*hooked)
"""


def loading():
    """Hooks into loaders as they are injected, not installed."""
    file = INJECTED / "scalestudy_hooks/loading.py"
    spec = importlib.util.spec_from_file_location("loading", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Loading.__new__(module.Loading)


def test_a_loader_class_without_its_own_init_subclass_can_still_be_subclassed():
    class Loader:
        """Its `__init_subclass__` is written in C, as that of Generic from Python 3.12 on."""

        def __init__(self):
            self.batches = [1, 2]

        def __iter__(self):
            return iter(self.batches)

    plain = Loader.__iter__
    loading().watch_subclasses(Loader)

    class Own(Loader):
        pass

    assert list(Own()) == [1, 2]
    assert Own.__iter__ is plain


def test_a_script_that_looks_for_torch_before_it_imports_it_is_hooked_once(tmp_path: Path) -> None:
    """As transformers and Lightning do, to know whether it is installed."""
    (tmp_path / "torch.py").touch()
    path = os.pathsep.join([str(INJECTED), str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": path, REQUEST: json.dumps({"out": str(tmp_path)})}
    command = [sys.executable, "-c", LOOKS_FIRST]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("torch\n", "")
