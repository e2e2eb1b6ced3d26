"""Workflows of other people through the executor on a real Slurm, as root: `python -m tests.soak.other_workflows NAME=FOLDER…`.

FOLDER holds a Snakefile and its data, and is copied; nothing of it is kept here. With `--beside PYTHON`, an interpreter
that has snakemake-executor-plugin-slurm, each is made with that one as well: results, the driver's time, what a failure
says. `NAME=FOLDER:TARGET,OPTION` adds words to the command line.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.box import USER
from tests.cluster.slurm_box import SlurmBox, version
from tests.cluster.workflow import ROOT, environment_of

SHARED = ("--jobs", "50", "--latency-wait", "10", "--seconds-between-status-checks", "5", "--keep-going")
EXECUTORS = {
    "multinode": ("--executor", "multinode", "--nolock", "--rerun-incomplete"),
    "slurm": (
        "--executor",
        "slurm",
        "--slurm-status-command",
        "squeue",
        "--slurm-init-seconds-before-status-checks",
        "5",
    ),
}
HIDDEN = (".snakemake", ".multinode", ".git", "logs", "__pycache__")


def main() -> int:
    """Print one block per workflow and executor; 1 where results differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workflows", nargs="+", metavar="NAME=FOLDER[:WORD,…]")
    parser.add_argument("--beside", metavar="PYTHON", help="an interpreter that has snakemake-executor-plugin-slurm")
    parser.add_argument(
        "--python", default=sys.executable, help="an interpreter that has this executor (default: this one)"
    )
    arguments = parser.parse_args()
    pythons = {"multinode": arguments.python, **({"slurm": arguments.beside} if arguments.beside else {})}
    differ = False
    box = SlurmBox(ROOT)
    try:
        print(f"Slurm {version()}, four nodes on one host")
        # snakemake-executor-plugin-slurm takes SLURM_CONF away from its jobs.
        box.must(["bash", "-c", 'mkdir -p /etc/slurm && cp "${SLURM_CONF%/*}"/*.conf /etc/slurm/'])
        for given in arguments.workflows:
            name, _, rest = given.partition("=")
            folder, _, words = rest.partition(":")
            made = [
                run(box, name, Path(folder), executor, python, [word for word in words.split(",") if word])
                for executor, python in pythons.items()
            ]
            if len(made) == 2:
                same = made[0] == made[1]
                differ |= not same
                print(f"{name}: {len(made[0])} files are made, {'the same' if same else 'NOT the same'} by both\n")
    finally:
        box.stop()
    return int(differ)


def run(box: SlurmBox, name: str, source: Path, executor: str, python: str, words: list[str]) -> dict[str, str]:
    """Drive one workflow to its end and print what happened; digests of the files that it has made."""
    folder = box.home / f"{name}-{executor}"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(*HIDDEN))
    before = dict(digests(folder))
    for path in (folder, *folder.rglob("*")):
        os.chown(path, box.home.stat().st_uid, box.home.stat().st_gid)
    command = [python, "-m", "snakemake", *EXECUTORS[executor], *SHARED, *words]
    environment = environment_of(box) | {"PATH": f"{Path(python).parent}:{os.environ['PATH']}", "PYTHONPATH": ""}
    begin = time.monotonic()
    done = box.run(command, USER, folder, timeout=560, **environment)
    wall_s = time.monotonic() - begin
    made = {path: digest for path, digest in digests(folder) if before.get(path) != digest}
    print(f"{name}, executor {executor}: {shlex.join(words) or 'all'}")
    print(f"  exit status {done.returncode} after {wall_s:.0f} s; {submissions(executor, folder, done)} jobs submitted")
    for line in said_of_failures(done.stdout):
        print(f"  | {line.replace(str(box.home), '~')[:220]}")
    sys.stdout.flush()
    return made


def digests(folder: Path) -> Iterator[tuple[str, str]]:
    """Path and SHA-256 of each file, but those of executors and logs."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not set(path.relative_to(folder).parts) & set(HIDDEN):
            yield str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()


def submissions(executor: str, folder: Path, done: subprocess.CompletedProcess[str]) -> int:
    """How many jobs the scheduler was given."""
    if executor == "multinode":
        return (folder / ".multinode/jobs.jsonl").read_text().count('"event": "submitted"')
    return len(set(re.findall(r"SLURM jobid (\d+)", done.stdout)))


def said_of_failures(output: str) -> list[str]:
    """What a driver said about jobs that failed: the first block that begins with `Error in`."""
    found = re.search(
        r"^Error in (?:rule|group) .*?(?=\n\s*\n|\nExiting because|\n\[|\Z)", output, re.MULTILINE | re.DOTALL
    )
    return [] if found is None else found[0].splitlines()


if __name__ == "__main__":
    sys.exit(main())
