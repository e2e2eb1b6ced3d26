"""One process without exchange: the base of all comparisons."""

from __future__ import annotations

from scalestudy.strategies.base import Strategy


class Single(Strategy):
    """One process, no exchange."""
