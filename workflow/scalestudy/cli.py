"""`scalestudy <verb>`: the only command of rules. Verbs import their modules when they are used."""

from __future__ import annotations

import gc
import importlib
import keyword
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import click

from scalestudy import __version__
from scalestudy.errors import UserError, of_system
from scalestudy.site_fault import SiteFault

COMMANDS = {
    "study": ("check", "expand", "new"),
    "run": ("agent", "largest-batch", "prepare", "run", "stage", "train", "try", "unstage"),
    "results": ("claims", "compare", "figure", "forget", "judge", "report", "summarise", "summary", "table"),
    "explain": ("explain",),
    "cluster": ("doctor", "plan"),
    "share": ("export",),
}
"""Modules of commands/ and their verbs, each a function of that name."""
MODULES = {verb: module for module, verbs in COMMANDS.items() for verb in verbs}
VERBS = tuple(sorted(MODULES))
FOR_TRAINING = ("torch", "torchvision", "PIL", "lmdb", "mpi4py", "safetensors", "simplejpeg", "sklearn", "xxhash")
"""Modules of the extra `train`, without which everything else works."""


class LazyGroup(click.Group):
    """Verbs with modules imported on use, or when help lists them."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a verb."""
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"scalestudy.commands.{MODULES[cmd_name]}")
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(module, f"{name}_" if keyword.iskeyword(name) else name)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="scalestudy")
def cli() -> None:
    """Evaluate distributed deep-learning training, reproducibly.

    Most people need only `make run`, `snakemake all --profile profiles/local`, and `scalestudy try`.
    """


cli.commands.update(dict.fromkeys(VERBS, cli))  # what click lists, and offers for a mistyped one


def run_command(arguments: list[str], *, by_hand: bool = False) -> int:
    """Run one command line, `by_hand` in the folder of a project; returns its status. Users' errors have no traceback."""
    try:
        if by_hand and arguments and not {"-h", "--help"} & {*arguments}:
            refuse_outside_of_a_project(arguments[0])
        return _called(arguments)
    except UserError as error:
        if isinstance(error, SiteFault):
            from scalestudy.launch.job_environment import JobEnvironment

            JobEnvironment().report_fault(f"{error.where}: {error.what}")
        click.echo(f"scalestudy: {error}", err=True)
        return 2
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        # Click passes a signal on as the cause of its own exception.
        terminated = isinstance(error, Terminated) or isinstance(error.__cause__, Terminated)
        number = signal.SIGTERM if terminated else signal.SIGINT
        click.echo(f"scalestudy: stopped by {number.name}\n    to resume, run the same command again", err=True)
        return 128 + number
    except SystemExit as error:
        if isinstance(error.code, str):
            click.echo(error.code, err=True)
        return 1 if isinstance(error.code, str) else error.code or 0
    except Exception as error:
        if (told := of_system(error)) is None:
            raise
        click.echo(f"scalestudy: {told}", err=True)
        return 1


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends a command as Ctrl-C does."""


def _end_on_sigterm(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


def _called(arguments: list[str]) -> int:
    try:
        result: Any = cli.main(args=arguments, prog_name="scalestudy", standalone_mode=False)
    except ModuleNotFoundError as error:
        if error.name not in FOR_TRAINING:
            raise
        remedy = "pip install 'scalestudy[train]', or, in a clone, make setup"
        raise UserError(f"{error.name} is not installed, and training needs it", remedy=remedy) from None
    return result if isinstance(result, int) else 0


ANYWHERE = ("agent", "compare", "explain", "largest-batch", "prepare", "stage", "train", "try", "unstage")
"""Verbs that need no project."""


def refuse_outside_of_a_project(verb: str) -> None:
    """Raise UserError where this folder is not the top of a project and the verb needs one."""
    if verb in VERBS and verb not in ANYWHERE and not Path("config/config.yaml").is_file():
        what = "no project is here: there is no config/config.yaml"
        raise UserError(what, str(Path.cwd()), "go to the project's folder, and run the command there")


def open_closed_streams() -> None:
    """Lead standard streams that are closed to nowhere: the next file would get their number, and the output of ranks."""
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(free, True)
    os.close(free)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode) if stream is None else stream  # noqa: SIM115
        for number, (stream, mode) in enumerate([(sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w")])
    )


def main() -> None:
    """The console script. Commands that start ranks treat SIGTERM themselves."""
    open_closed_streams()
    gc.set_threshold(100_000, 20, 20)  # importing makes far more objects than Python's 700, and all of them stay
    if sys.argv[1:2] and sys.argv[1] in VERBS:
        signal.signal(signal.SIGTERM, _end_on_sigterm)
    sys.exit(run_command(sys.argv[1:], by_hand=True))
