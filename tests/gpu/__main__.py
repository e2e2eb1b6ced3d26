"""`python -m tests.gpu [checks] [measures] [study]`: status 0 where nothing failed, 1 where something did."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("checks", "measures", "study")


def main() -> int:
    """Run the parts that were asked for, all by default."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; by default all")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="folder for files and gpu.json")
    parser.add_argument("--minutes", type=float, default=9.0, help="nothing is begun after so long")
    parser.add_argument("--only", default="", help="only functions whose name contains this")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"{sorted(unknown)[0]!r} is not a part; parts: {', '.join(PARTS)}")
    # As a clone: nothing has to be installed.
    sys.path[:0] = [str(ROOT / "workflow"), str(ROOT)]
    import torch

    from tests.gpu import checks, devices, measures, study
    from tests.gpu.suite import Suite

    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    arguments.out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(arguments.out / "files", ignore_errors=True)  # runs of an earlier call would be resumed
    suite = Suite(arguments.out.resolve(), time.monotonic() + 60 * arguments.minutes, device)
    print(
        f"{'no GPU here: the dry part' if suite.dry else torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    )
    functions = {"checks": (*checks.ALL, *devices.ALL), "measures": measures.ALL, "study": study.ALL}
    for part in arguments.parts or PARTS:
        for function in functions[part]:
            if arguments.only in function.__name__:
                suite.run(part, function)
    counts = Counter(outcome.status for outcome in suite.outcomes)
    print(", ".join(f"{count} {status}" for status, count in counts.items()), f"; {suite.write()}", sep="")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
