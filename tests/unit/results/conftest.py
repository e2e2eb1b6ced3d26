"""The studies of made-up results that analysis is tested with."""

from tests.unit.analysis.conftest import study

__all__ = ["study"]
