"""Hooks in a user's PyTorch script; Python imports this file at its start because this folder is first on PYTHONPATH.

The script's own Python may have neither scalestudy nor its packages, so this folder imports the standard library alone,
and torch only after the script has. `SCALESTUDY_EXPLAIN` holds the request; scalestudy_hooks/ describes its keys.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys

REQUEST = "SCALESTUDY_EXPLAIN"


class AfterTorch(importlib.abc.MetaPathFinder):
    """Import hook: installs the hooks when `import torch` has ended, once."""

    def __init__(self, request):
        """Keep the request until torch is imported."""
        self.request = request

    def find_spec(self, name, path=None, target=None):
        """Find torch as Python does, and install the hooks after it; a script may look for torch before it imports it."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        plain = spec.loader.exec_module

        def exec_module(module):
            sys.meta_path.remove(self)
            plain(module)
            importlib.import_module("scalestudy_hooks.steps").Steps(self.request, module)

        spec.loader.exec_module = exec_module
        return spec


def run_shadowed():
    """Run the sitecustomize that this one hides, if the script's Python has one."""
    here = os.path.dirname(os.path.abspath(__file__))
    folders = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", folders)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def note_stop(request):
    """Leave a file where this process ends by `sys.exit` with the status of a stop: torchrun hides it."""
    plain = sys.exit

    def note(status=None):
        if status == request["stop_status"]:
            with open(os.path.join(request["out"], f"stopped.{os.getpid()}"), "w"):
                pass
        plain(status)

    sys.exit = note


def main():
    """Prepare the hooks in each Python process of the command."""
    request = json.loads(os.environ[REQUEST])
    with open(os.path.join(request["out"], f"hooked.{os.getpid()}"), "w"):
        pass
    if "stop_status" in request:
        note_stop(request)
    sys.meta_path.insert(0, AfterTorch(request))


if REQUEST in os.environ:
    main()
run_shadowed()
