"""Run one command of a scheduler: with a time limit, in an environment of its own, without taking the driver down."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from snakemake_executor_plugin_multinode.environment import of_command

NOT_FOUND = "command not found"


@dataclass(frozen=True)
class CommandAnswer:
    """Output and exit status of a command."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Its output on one line, with escapes in place of control characters."""
        text = " ".join((self.err.strip() or self.out.strip()).split())[:500]
        shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)[:500]
        return shown or f"exit status {self.code}, no text"


class NoAnswer(Exception):
    """The query failed, or its output is no answer. Nothing follows about any job."""


def run_command(argv: Sequence[str], limit_s: float) -> CommandAnswer:
    """Run a command for at most `limit_s` seconds; NoAnswer if it does not start or does not end in time.

    It runs in a process group of its own: a Ctrl-C at the driver's terminal does not tear a submission apart, and a
    command that hangs is ended with its children.
    """
    # Not left to the kernel: where PATH names a folder that may not be read, it answers "permission denied".
    if shutil.which(argv[0]) is None:
        raise NoAnswer(f"{argv[0]}: {NOT_FOUND}")
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=of_command(argv[0], os.environ),
            start_new_session=True,
        )
    except OSError as error:
        raise NoAnswer(f"{argv[0]}: {error.strerror or error}") from None
    with process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"{argv[0]} did not answer within {limit_s:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    return CommandAnswer(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
