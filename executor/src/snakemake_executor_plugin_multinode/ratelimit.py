"""A workaround for Snakemake's limit of jobs per time span."""

from __future__ import annotations

import sys
from typing import Any


def drop_job_rate_limit(scheduler: Any) -> None:
    """Take the limit away from Snakemake's scheduler (`workflow.scheduler`), which has one by default.

    In 9.27 each round of the scheduler starts a timer that starts another round, for ever, if there is such a limit:
    after a hundred jobs it takes a tenth of a core, and more with each. The jobs of this round may have been chosen
    under the limit, so one more round is asked for. Who needs a limit has to have one of his own.
    """
    if getattr(scheduler, "job_rate_limiter", None) is not None:
        scheduler.job_rate_limiter = None
        scheduler.resources["_job_count"] = sys.maxsize
        scheduler._open_jobs.release()
