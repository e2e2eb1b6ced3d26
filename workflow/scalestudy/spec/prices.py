"""Prices of a machine. A module of its own, so that tables of runs need no other model of the machine."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from scalestudy.spec.base import Spec, refused

Positive = Annotated[float, Field(gt=0)]


class Prices(Spec):
    """Prices per hour of use; both are added up."""

    currency: str
    """Unit of the prices: a currency, or the points of a site."""
    per_device_hour: Positive | None = None
    """One accelerator for an hour."""
    per_node_hour: Positive | None = None
    """One node for an hour."""

    @model_validator(mode="after")
    def _has_a_price(self) -> Self:
        if self.per_device_hour is None and self.per_node_hour is None:
            raise refused("`prices` has no price", "set `per_device_hour`, `per_node_hour`, or both")
        return self

    def per_hour(self, devices: Any, nodes: Any) -> Any:
        """Price of an hour of so many devices and nodes, numbers or columns of them."""
        return devices * (self.per_device_hour or 0.0) + nodes * (self.per_node_hour or 0.0)
