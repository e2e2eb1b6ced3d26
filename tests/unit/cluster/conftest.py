"""Plans are compared with what was used on the study of the analysis' tests."""

from tests.unit.analysis.conftest import study

__all__ = ["study"]
