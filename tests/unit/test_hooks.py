"""Hooks in a user's script, without torch."""

from __future__ import annotations

import importlib.util

from scalestudy.program.observe import INJECTED


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
