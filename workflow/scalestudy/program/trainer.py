"""A process of a run that is a program: starts the user's command, and ends it with its window.

It takes the place of training/trainer.py: locks, heartbeats, launchers and samplers of a run stay as they are.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from scalestudy import PROGRAM_FOLDER
from scalestudy.errors import Skipped, UserError
from scalestudy.files import write_json
from scalestudy.processes import GRACE_S, end_program
from scalestudy.program import resume
from scalestudy.program.observe import hooked
from scalestudy.program.resume import EXPLAINED, OVER, metrics_folder
from scalestudy.program.trace import Earlier, Traces, windows
from scalestudy.spec.columns import columns_of
from scalestudy.training.control_files import EXIT_STOPPED
from scalestudy.training.job import Job

POLL_S = 0.1
EXPLAINED_STEPS, EXPLAINED_S = 200, 120.0
"""As by default of `scalestudy explain`."""
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
"""Variables that a command which starts ranks itself does not get."""


def main(job: Job, rank: int) -> int:
    """Run the command to its end or that of its window; return its exit status, 0 where the window is over."""
    program, folder = job.spec.program, metrics_folder(job)
    assert program is not None
    starter = {"rank": rank, "node": job.on_host(job.host_of(rank))[0], "job": 0}[program.once_per]
    if rank != starter:
        return 0
    folder.mkdir(exist_ok=True)
    words = program.words(values_of(job, rank))
    if program.explain:
        _explain(job, words)
        return 0
    output = subprocess.PIPE if program.metrics else None
    earlier = resume.earlier(job)
    try:
        with _default_signals():
            process = subprocess.Popen(
                words, env=environment(job, earlier), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
    except OSError as error:
        raise UserError(f"`{words[0]}` cannot be started: {error.strerror}", "program.command") from error
    failures: list[Exception] = []
    reader = threading.Thread(target=_match, args=(process, program.metrics, folder, rank, failures), daemon=True)
    if program.metrics:
        reader.start()
    status = _wait(process, job, Traces(folder, earlier))
    if program.metrics:
        reader.join(GRACE_S)
    if failures and not (folder / OVER).exists():
        raise failures[0]
    return status


def _explain(job: Job, words: list[str]) -> None:
    """Run the command with parts of its steps taken away; write what is found. Raises Skipped where nothing can be seen."""
    from scalestudy.program.explanation import as_json, explain
    from scalestudy.program.takeaway import take_away

    os.environ.update(made := environment(job))
    for name in {*os.environ} - {*made} | {PROGRAM_FOLDER}:
        del os.environ[name]
    with _default_signals():
        observed = take_away(words, metrics_folder(job) / "rounds", EXPLAINED_STEPS, EXPLAINED_S, tell=print)
    if observed.calibration.failure:
        raise Skipped(observed.calibration.failure)
    write_json(job.folder / EXPLAINED, as_json(explain(observed)))


@contextmanager
def _default_signals() -> Iterator[None]:
    """Let a command that is started meanwhile act on signals that this process leaves to its parent."""
    left = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in left}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def values_of(job: Job, rank: int) -> dict[str, Any]:
    """Return the values of all placeholders for a process of this rank."""
    address, port = job.store or ("127.0.0.1", 0)
    resolved = {name: getattr(job.resolved, name) for name in ("nodes", "ranks_per_node", "threads_per_rank", "device")}
    launch = {"rank": rank, "node_rank": job.host_of(rank), "master_addr": address, "master_port": port}
    return {**columns_of(job.spec), **resolved, **launch, "folder": str(job.folder)}


def environment(job: Job, earlier: Earlier | None = None) -> dict[str, str]:
    """Return the environment of the command: the rank's own, the hooks, where to report, and how to go on."""
    program, folder, measure = job.spec.program, str(metrics_folder(job)), job.spec.measure
    assert program is not None
    warmup, steps = measure.warmup_steps, measure.steps
    if seen := windows(Traces(metrics_folder(job), earlier or {}).of("steps"), measure):
        warmup, steps = 0, None if steps is None else max(1, steps - seen[0].steps)
    request = {"out": folder, "warmup": warmup, "steps": steps, "leave": False, "trace": True, "remove": (),
               "stop_status": EXIT_STOPPED}  # fmt: skip
    address, port = job.store or ("127.0.0.1", 0)
    places = {"MASTER_ADDR": address, "MASTER_PORT": str(port), PROGRAM_FOLDER: folder, "PYTHONUNBUFFERED": "1"}
    threads = job.spec.threads_per_rank
    made = {
        **hooked(request, program.words(values_of(job, 0))),
        **places,
        **({"OMP_NUM_THREADS": str(threads)} if threads else {}),
        **resume.variables(job),
    }
    of_rank = () if program.once_per == "rank" else RANK_VARIABLES
    return {name: value for name, value in made.items() if name not in of_rank}


def _wait(process: subprocess.Popen[bytes], job: Job, traces: Traces) -> int:
    """Wait for the command; end it once the window is over on any node, ask it to stop where the run is asked to."""
    folder, over, is_asked = traces.folder, traces.folder / OVER, False
    while process.poll() is None:
        if not is_asked and resume.is_asked(job):
            is_asked = True
            process.send_signal(signal.SIGTERM)
        traces.refresh()
        if traces.is_over(job.spec.measure):
            over.touch()
        if over.exists():
            process.send_signal(signal.SIGTERM)
            end_program(str(folder))
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            process.kill()  # its environment may not show that it is of this run
            process.wait()
            return 0
        time.sleep(POLL_S)
    assert job.spec.program is not None
    if job.spec.program.once_per != "rank":  # else commands of other ranks on this host go on, or save their state
        end_program(str(folder))
    status = process.returncode
    if status == 0 or over.exists() or resume.has_stopped(job, status):
        return 0
    return 128 - status if status < 0 else status


def _match(
    process: subprocess.Popen[bytes], metrics: dict[str, str], folder: Path, rank: int, failures: list[Exception]
) -> None:
    """Copy the command's output to this process's, and note the numbers of its lines; a failure ends the command."""
    assert process.stdout is not None
    patterns = {name: re.compile(pattern) for name, pattern in metrics.items()}
    try:
        with (folder / f"matched.{rank}.jsonl").open("w", encoding="utf-8") as file:
            for line in _lines(process.stdout):
                clock = time.perf_counter()
                sys.stdout.write(line)
                matches = {name: match for name, pattern in patterns.items() if (match := pattern.search(line))}
                values = {name: _number(name, match[1]) for name, match in matches.items()}
                if values.get("step") is not None and line.endswith(("\n", "\r")):  # not one that a signal cut off
                    file.write(json.dumps({"clock": clock, **values}) + "\n")
                    file.flush()
    except Exception as error:
        failures.append(error)
        process.kill()  # it would wait for ever for a reader of its output


def _lines(output: IO[bytes]) -> Iterator[str]:
    """Yield lines of output as they come; a carriage return, as progress bars write it, ends one at once.

    Python's own reader waits for what follows the return: the last step would take until the program's end.
    """
    rest, decode = "", codecs.getincrementaldecoder("utf-8")("replace").decode
    while data := os.read(output.fileno(), 1 << 16):
        *whole, rest = re.split(r"(?<=[\r\n])", rest + decode(data))
        yield from whole
    yield rest


def _number(name: str, text: str | None) -> float | None:
    """Return a number as it is printed, with commas between thousands; None where it is none."""
    try:
        number = float((text or "").replace(",", ""))
        return int(number) if name == "step" else number
    except (ValueError, OverflowError):
        return None
