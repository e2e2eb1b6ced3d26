"""`python -m tests.gpu [checks] [measures] [study]`: status 0 where nothing failed, 1 where something did.

In `--out` it leaves gpu.json, what each function showed, and gpu.tar.gz, which holds that and everything worth keeping.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("checks", "measures", "study")
STUDIES = "batch_and_precision,loader_workers"


def main() -> int:
    """Run the parts that were asked for, all by default."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; by default all")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="folder for gpu.json and gpu.tar.gz")
    parser.add_argument(
        "--work", type=Path, default=None, help="empty folder for everything else; by default a new one"
    )
    parser.add_argument("--minutes", type=float, default=8.7, help="after which everything has ended")
    parser.add_argument("--only", default="", help="only functions whose name contains this")
    parser.add_argument("--studies", default=STUDIES, help="of part `study`: names, with commas (default: %(default)s)")
    for name in ("--group", "--until", "--outcomes"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)  # of a group's own process
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"{sorted(unknown)[0]!r} is not a part; parts: {', '.join(PARTS)}")
    # As a clone: nothing has to be installed.
    sys.path[:0] = [str(ROOT / "workflow"), str(ROOT)]
    import torch

    from tests.gpu import bring, checks, devices, measures, study
    from tests.gpu.groups import own_command, run_apart, run_here
    from tests.gpu.suite import Outcome, Suite, machine, write

    end_s = float(arguments.until) if arguments.until else time.monotonic() + 60 * arguments.minutes
    work = (arguments.work or Path(tempfile.mkdtemp(prefix="scalestudy-gpu-"))).resolve()
    studies = tuple(filter(None, arguments.studies.split(",")))
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)  # beside other work, threads that wait for each other take many times as long
    suite = Suite(work, end_s, device, studies)
    groups = [*checks.GROUPS, *devices.GROUPS, *measures.GROUPS, *study.groups(studies)]
    if arguments.group:
        group = next(group for group in groups if group.name_of_process == arguments.group)
        run_here(suite, group.only(arguments.only), Path(arguments.outcomes))
        return 0
    if any(work.iterdir() if work.is_dir() else ()):
        parser.error(f"{work} is not empty: runs that an earlier call left there would be resumed")
    for folder in (arguments.out, work):
        folder.mkdir(parents=True, exist_ok=True)
    name = "no GPU here: the dry part" if suite.dry else torch.cuda.get_device_name(device)
    print(f"{name}, torch {torch.__version__}", flush=True)
    head, outcomes = machine(device), list[Outcome]()
    words = own_command(work, "--only", arguments.only, "--studies", arguments.studies)
    for group in [
        group.only(arguments.only) for part in arguments.parts or PARTS for group in groups if group.part == part
    ]:
        if group.functions:
            outcomes += run_here(suite, group) if suite.dry else run_apart(suite, group, words)
            write(arguments.out / "gpu.json", head, outcomes)
    left_out = bring.archive(arguments.out, bring.to_bring(arguments.out, work))
    counts = Counter(outcome.status for outcome in outcomes)
    print(", ".join(f"{count} {status}" for status, count in counts.items()), end="")
    print(f"; gpu.json and {bring.ARCHIVE}", f" without {len(left_out)} files" if left_out else "", sep="", flush=True)
    if arguments.work is None:
        shutil.rmtree(work, ignore_errors=True)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
