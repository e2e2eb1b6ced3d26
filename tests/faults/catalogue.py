"""All faults."""

from __future__ import annotations

from tests.faults.faults import FAULTS, Fault
from tests.faults.submit import SCHEDULER_GONE

ALL: tuple[Fault, ...] = (*FAULTS, SCHEDULER_GONE)
