"""Fuzzing of every parser for as long as one likes; says how many inputs each has met.

    python -m tests.soak.fuzz [--minutes 60] [--targets study,tar] [--engine hypothesis|atheris] [--seed N]

The time is shared by the targets of tests/hostile/targets.py. hypothesis edits right inputs; atheris (where it is
installed: `pip install atheris`) follows which branches of the code an input reaches. Exit status 1 where an input ended a
parser with anything but a message; it is printed, and belongs into `KEPT` once it is mended.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

BATCH = 500
"""Examples of hypothesis between two looks at the clock."""


def with_hypothesis(name: str, seconds: float, seed: int) -> tuple[int, str]:
    """Executions, and what was found."""
    import hypothesis
    from hypothesis import HealthCheck, Phase, given, settings

    from tests.hostile.targets import TARGETS
    from tests.hostile.test_fuzz import inputs

    target, count, end = TARGETS[name], 0, time.monotonic() + seconds
    kinds = settings(
        max_examples=BATCH, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink), print_blob=False,
    )  # fmt: skip

    def one(data: bytes) -> None:
        nonlocal count
        count += 1
        target.run(data)

    while time.monotonic() < end:
        seed += 1
        last: list[bytes] = []

        def noted(data: bytes, last: list[bytes] = last) -> None:
            last[:] = [data]
            one(data)

        try:
            hypothesis.seed(seed)(kinds(given(inputs(target.seeds()))(noted)))()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return count, f"{type(error).__name__}: {error}: {last[0][:400]!r}"
    return count, ""


def with_atheris(name: str, seconds: float, seed: int) -> tuple[int, str]:
    """Executions, and what was found; in a process of its own, which atheris ends itself."""
    command = [
        sys.executable,
        "-m",
        "tests.soak.fuzz",
        "--in-process",
        name,
        "--seed",
        str(seed),
        "--seconds",
        str(round(seconds)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    counted = re.findall(r"number_of_executed_units:\s*(\d+)", done.stderr) or re.findall(
        r"Done (\d+) runs", done.stderr
    )
    found = "" if done.returncode == 0 else "\n".join(done.stderr.splitlines()[-40:])
    return int(counted[-1]) if counted else 0, found


def in_process(name: str, seconds: int, seed: int) -> None:
    """Be the process that atheris fuzzes one target in; does not return."""
    import tempfile

    import atheris

    with atheris.instrument_imports(include=["scalestudy", "snakemake_executor_plugin_multinode"]):
        from tests.hostile.targets import TARGETS
    target = TARGETS[name]
    with tempfile.TemporaryDirectory() as corpus:
        for number, data in enumerate(target.seeds()):
            (Path(corpus) / str(number)).write_bytes(data)
        options = [f"-max_total_time={seconds}", f"-seed={seed}", "-max_len=20000", "-print_final_stats=1", "-timeout=30",
                   "-rss_limit_mb=4096"]  # fmt: skip
        atheris.Setup([sys.argv[0], corpus, *options], target.run)
        atheris.Fuzz()


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz, print a line per target; the exit status."""
    from tests.hostile.targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--targets", default="", help="names, separated by commas; default: all")
    parser.add_argument("--engine", choices=("hypothesis", "atheris"), default="hypothesis")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args(arguments)
    if given.engine == "atheris" and importlib.util.find_spec("atheris") is None:
        print("atheris is not installed here: pip install atheris", file=sys.stderr)
        return 2
    names = given.targets.split(",") if given.targets else list(TARGETS)
    engine = with_atheris if given.engine == "atheris" else with_hypothesis
    total, wrong = 0, []
    print(
        f"{given.engine}, Python {sys.version.split()[0]}, seed {given.seed}, {given.minutes:g} minutes for {len(names)} parsers"
    )
    for name in names:
        begin = time.monotonic()
        count, found = engine(name, 60 * given.minutes / len(names), given.seed)
        total += count
        print(
            f"{name:14} {count:>10,} inputs in {time.monotonic() - begin:6.0f} s   {'FOUND' if found else 'nothing found'}",
            flush=True,
        )
        if found:
            wrong.append(name)
            print(f"  {found}", flush=True)
    print(
        f"{'in all':14} {total:>10,} inputs; {len(wrong)} of {len(names)} parsers ended with something else than a message"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    if "--in-process" in sys.argv:
        words = sys.argv[1:]
        in_process(words[1], int(words[words.index("--seconds") + 1]), int(words[words.index("--seed") + 1]))
    sys.exit(main())
