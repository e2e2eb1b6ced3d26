"""`make box`: the cluster way on one machine. A private Slurm and a study through profiles/slurm.

Everything happens in a box of Linux namespaces and a copy of this project in it; when it ends, only the results are
left, in results/slurm_box/.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.box import USER, Box, Unavailable
from tests.cluster.slurm_box import SlurmBox
from tests.cluster.workflow import environment_of

ROOT = Path(__file__).resolve().parents[2]
STUDY = Path(__file__).parent / "study"
MACHINE = "slurm_box"
PROFILE = ("--profile", "profiles/slurm")
CONFIG = ("--config", f"machine={MACHINE}", "studies=box_scaling", "scale=paper")
ALONE = ("--resources", "measure=1", "--seconds-between-status-checks", "2", "--latency-wait", "15")
"""All nodes of a box are one host, and measured runs run alone."""


def main() -> int:
    """Bring it up, run, take it down; the exit status of the study's run."""
    try:
        box = SlurmBox(ROOT)
    except Unavailable as why:
        print(f"no box: {why}", file=sys.stderr)
        return 2
    try:
        return in_box(box)
    finally:
        box.stop()
        print(f"the box is gone; results lie in {ROOT / 'results' / MACHINE}")


def in_box(box: Box) -> int:
    """The study in a running box."""
    clone = copy_of_project(box)
    call(box, clone, "sinfo", "-N", "-o", "%N %T %c CPUs %m MB %G")
    # What a laptop lacks is said, and no reason to stop.
    call(box, clone, "scalestudy", "doctor", *PROFILE, "--config", f"machine={MACHINE}")
    status = call(box, clone, "scalestudy", "plan", *PROFILE, *CONFIG)
    status = status or call(box, clone, "snakemake", "all", *PROFILE, *CONFIG, *ALONE)
    made = clone / "results" / MACHINE
    if made.is_dir():
        shutil.copytree(made, ROOT / "results" / MACHINE, dirs_exist_ok=True)
    return status


def copy_of_project(box: Box, files: Mapping[str, str] | None = None) -> Path:
    """A clone of this project that the box's user owns, with the study and the machine of the box, and more files."""
    clone = box.home / "scalestudy"
    clone.mkdir()
    for name in ("Snakefile", "workflow", "profiles", "envs", "config"):
        source = ROOT / name
        ignore = shutil.ignore_patterns("*.pyc.*", "*.egg-info")  # what is compiled is as good there
        shutil.copytree(source, clone / name, ignore=ignore) if source.is_dir() else shutil.copy(source, clone / name)
    shutil.copy(STUDY / "box_scaling.yaml", clone / "config" / "studies")
    shutil.copy(STUDY / f"{MACHINE}.yaml", clone / "config" / "machines")
    for name, text in (files or {}).items():
        (clone / name).write_text(text)
    (clone / ".venv").symlink_to(sys.prefix)
    owner = box.home.stat()
    for path in (clone, *clone.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    return clone


def call(box: Box, clone: Path, *words: str) -> int:
    """Run a command in the clone as the box's user, and show it; its exit status."""
    print(f"\n$ {' '.join(words[:12])}{' …' if len(words) > 12 else ''}", flush=True)
    command = box.command(words, USER, clone, **environment_in(box, clone))
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


def environment_in(box: Box, clone: Path) -> dict[str, str]:
    """Return the environment of the box's user in the clone, with the clone's own code."""
    return {**environment_of(box), "PYTHONPATH": str(clone / "workflow"), "SCALESTUDY_WARM": "0"}


if __name__ == "__main__":
    sys.exit(main())
