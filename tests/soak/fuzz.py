"""Fuzzing of every parser for as long as one likes, in parts that add up.

    python -m tests.soak.fuzz [--minutes 60] [--targets study,tar] [--engine hypothesis|atheris] [--out FILE.json]

The parsers are those of tests/hostile/targets.py. The one that has had least time goes next, for `--slice-s` seconds, and
what it met is added to FILE.json, from which FILE.txt is printed: so every call goes on where the last one ended.
hypothesis edits right inputs; atheris follows which branches of the code an input reaches, and keeps what reached new
ones in build/fuzz/. It is no requirement of the project: `pip install --target build/atheris atheris`, then begin the
command with `PYTHONPATH=build/atheris`.

Exit status 1 where an input ended a parser with anything but a message. It is printed, the parser is left out for the rest
of the call, and the input belongs into `KEPT` of tests/hostile/targets.py once it is mended.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.soak.fuzz_record import Record, Stretch

BATCH = 100
"""Examples of hypothesis between two looks at the clock."""
KEPT = Path("build/fuzz")
"""By parser, what atheris found worth keeping."""
INPUT_LIMIT_S = 60
"""One input that takes longer is a finding of atheris, in seconds of the wall clock."""
ENDED_BY_SIGNAL = 72
"""Exit status of libFuzzer after SIGTERM."""


def with_hypothesis(name: str, seconds: float, seed: int) -> Stretch:
    """One parser for so long; the rest of a batch of examples may make it longer."""
    import hypothesis
    from hypothesis import HealthCheck, Phase, given, settings

    from tests.hostile.targets import TARGETS
    from tests.hostile.test_fuzz import inputs

    target, count, last = TARGETS[name], 0, b""
    kinds = settings(
        max_examples=BATCH, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink), print_blob=False,
    )  # fmt: skip

    def one(data: bytes) -> None:
        nonlocal count, last
        count, last = count + 1, data
        target.run(data)

    found, begin, end = "", time.process_time(), time.monotonic() + seconds
    while not found and time.monotonic() < end:
        seed += 1
        try:
            hypothesis.seed(seed)(kinds(given(inputs(target.seeds()))(one)))()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            found = f"{type(error).__name__}: {error}: {last[:400]!r}"
    return Stretch("hypothesis", name, time.process_time() - begin, count, found)


def with_atheris(name: str, seconds: float, seed: int) -> Stretch:
    """One parser for so long, in a process of its own, which atheris ends itself."""
    corpus = KEPT / name.replace(" ", "-")
    corpus.mkdir(parents=True, exist_ok=True)
    counted = corpus.with_suffix(".counted")
    counted.unlink(missing_ok=True)
    words = ["--in-process", name, str(corpus), str(counted), str(seed), str(round(seconds))]
    command = [sys.executable, "-m", "tests.soak.fuzz", *words]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    last = "\n".join(done.stderr.splitlines()[-40:])
    found = "" if done.returncode in (0, ENDED_BY_SIGNAL) else f"status {done.returncode}: {last}"
    inputs, processor_s = counted.read_text().split() if counted.exists() else ("0", "0")
    return Stretch("atheris", name, float(processor_s), int(inputs), found)


def in_process(name: str, corpus: str, counted: str, seed: str, seconds: str) -> None:
    """Be the process that atheris fuzzes one parser in; does not return."""
    import atheris

    with atheris.instrument_imports(include=["scalestudy", "snakemake_executor_plugin_multinode"]):
        from tests.hostile.targets import TARGETS
    target = TARGETS[name]
    for number, data in enumerate(target.seeds()):
        (Path(corpus) / f"seed-{number}").write_bytes(data)
    options = [f"-max_total_time={seconds}", f"-seed={seed}", "-max_len=20000", f"-timeout={INPUT_LIMIT_S}",
               "-rss_limit_mb=4096", f"-artifact_prefix={corpus}-"]  # fmt: skip
    atheris.Setup([sys.argv[0], corpus, *options], counting(target.run, Path(counted)))
    atheris.Fuzz()


def counting(run: Callable[[bytes], object], file: Path) -> Callable[[bytes], None]:
    """The same, with the number of inputs and seconds of the processor in a file: libFuzzer ends without a last word."""
    count, begin = 0, time.process_time()
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT)

    def counted(data: bytes) -> None:
        nonlocal count
        count += 1
        os.pwrite(descriptor, f"{count:12} {time.process_time() - begin:12.3f}".encode(), 0)
        run(data)

    return counted


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="for all parsers together")
    parser.add_argument("--targets", default="", help="names, separated by commas; default: all")
    parser.add_argument("--engine", choices=("hypothesis", "atheris"), default="hypothesis")
    parser.add_argument("--slice-s", type=float, default=30.0, help="for one parser, until it is the next one's turn")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, default=Path("build/fuzz.json"))
    parser.add_argument(
        "--wait-while", type=Path, help="begin no slice while this file is there: measurements are made"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz, print a line per slice; the exit status."""
    from tests.hostile.targets import TARGETS

    given = options(arguments)
    if given.engine == "atheris" and importlib.util.find_spec("atheris") is None:
        print("atheris is not installed here: pip install --target build/atheris atheris, and put that folder into PYTHONPATH",
              file=sys.stderr)  # fmt: skip
        return 2
    names = given.targets.split(",") if given.targets else list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        print(f"there is no {', '.join(unknown)}; there are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    engine = with_atheris if given.engine == "atheris" else with_hypothesis
    record, wrong, end, seed = Record(given.out), [], time.monotonic() + 60 * given.minutes, given.seed
    print(
        f"{given.engine}, Python {sys.version.split()[0]}, seed {seed}, {given.minutes:g} minutes, {len(names)} parsers"
    )
    while names and (left_s := end - time.monotonic()) > 0:
        if given.wait_while and given.wait_while.exists():
            time.sleep(min(5.0, left_s))
            continue
        name = min(names, key=lambda each: record.seconds(given.engine, each))
        stretch = engine(name, min(given.slice_s, left_s), seed := seed + 100_000)
        record.add(stretch, TARGETS)
        said = f"FOUND\n  {stretch.found}" if stretch.found else "nothing found"
        print(
            f"{name:14} {stretch.inputs:>9,} inputs in {stretch.processor_s:5.0f} s of the processor   {said}",
            flush=True,
        )
        if stretch.found:
            wrong.append(name)
            names.remove(name)
    print(given.out.with_suffix(".txt").read_text() if given.out.exists() else "no time for any parser")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-process"]:
        in_process(*sys.argv[2:])
    sys.exit(main())
