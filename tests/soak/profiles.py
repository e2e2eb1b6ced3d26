"""`python -m tests.soak.profiles slurm|sge|pbs|allocation`, as root: a small study through a profile as shipped.

The scheduler is brought up in a private box; `pbs` needs an OpenPBS that is installed (tests/cluster/pbs_box.py).
Prints what doctor, the plan and the driver say; the home of the box's user is written as `~`.
"""

from __future__ import annotations

import sys

from tests.cluster.box import Box
from tests.cluster.pbs_box import PbsBox
from tests.cluster.sge_box import SgeBox
from tests.cluster.slurm_box import SlurmBox
from tests.cluster.study import Studies, ranks, studies
from tests.cluster.workflow import ROOT

BOXES = {"slurm": SlurmBox, "sge": SgeBox, "pbs": PbsBox, "allocation": SlurmBox}


def run_study(box: Box, name: str) -> bool:
    """Doctor, plan and study through one profile; whether every run ended well and the figure is there."""
    made = studies(box)
    machine = ("--profile", f"profiles/{name}", "--config", "machine=box")
    profile = (*machine, "scale=mini")
    inside = ("salloc", "-Q", "-N", "3", "--exclusive") if name == "allocation" else ()
    shown(made, *inside, "scalestudy", "doctor", *machine)
    shown(made, "scalestudy", "plan", *profile, "studies=through")
    # All nodes are one host here, and measured runs run alone.
    alone = () if inside else ("--resources", "measure=1")
    code = shown(made, *inside, "snakemake", "through", *profile, *alone)
    print()
    results, drawn = made.results(), made.drawn()
    for result in results:
        ids = [link["job"] for link in result["links"]]
        print(f"{result['run']}: {result['status']}, {ranks(result)} ranks, job {' '.join(map(str, ids))}")
    print("drawn:", *drawn)
    well = code == 0 and [result["status"] for result in results] == ["valid"] * 3 and "time.svg" in drawn
    print("well" if well else "NOT WELL")
    return well


def shown(made: Studies, *words: str) -> int:
    """Run a command in the clone as the box's user, and print it with what it says; its exit status."""
    print(f"\n$ {' '.join(words)}", flush=True)
    done = made.run(*words, timeout=3600)
    said = done.stdout
    named = [
        (made.clone, "~/scalestudy"),
        (made.box.home, "~"),
        (made.box.folder, "BOX"),
        (sys.prefix, ".venv"),
        (ROOT, "."),
    ]
    for path, name in named:
        said = said.replace(str(path), name)
    print(said, end="", flush=True)
    if done.returncode:
        print(f"exit status {done.returncode}")
    return done.returncode


def main() -> int:
    """Bring it up, run, take it down; exit status 1 if it was not well."""
    (name,) = sys.argv[1:]
    box = BOXES[name](ROOT)
    try:
        return 0 if run_study(box, name) else 1
    finally:
        box.stop()


if __name__ == "__main__":
    sys.exit(main())
