"""`python -m tests.soak.chain`, as root: a training longer than its walltime goes on as a chain of jobs on real Slurm.

Wants a quiet machine: what is killed before its first checkpoint does not go on.
"""

from __future__ import annotations

import sys

from tests.cluster.slurm_box import SlurmBox
from tests.cluster.study import TWO_MINUTES, studies
from tests.cluster.workflow import ROOT
from tests.soak.profiles import shown

STEPS = 55 * 44


def main() -> int:
    """Run it; exit status 1 if the result's links are not the jobs of the executor's account."""
    box = SlurmBox(ROOT)
    try:
        made = studies(box)
        shown(
            made,
            "snakemake",
            "long",
            "--profile",
            "profiles/slurm",
            "--config",
            "machine=box",
            "scale=mini",
            *TWO_MINUTES,
        )
        results = made.results("long")
        links = results[0]["links"] if results else []
        for link in links:
            print(f"job {link['job']}: {link['steps']} steps, {link['cause']}")
        ids = made.job_ids(results[0]["run"]) if results else []
        well = (
            len(links) >= 2 and [link["job"] for link in links] == ids and sum(link["steps"] for link in links) == STEPS
        )
    finally:
        box.stop()
    print("well" if well else "NOT WELL")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
