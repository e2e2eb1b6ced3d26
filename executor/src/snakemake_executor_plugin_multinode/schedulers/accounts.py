"""Which project a site's jobs are charged to, as its settings say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from snakemake_executor_plugin_multinode.schedulers.settings import Settings

OPTIONS: dict[str, tuple[str, ...]] = {
    "slurm": ("-A", "--account"),
    "pbs": ("-P", "-A"),
    "sge": ("-P", "-g", "-A"),
}
"""Options of submit lines that name a project, the one that is charged first: sbatch(1); qsub(1B), where `-A` is a word for
the accounts; qsub(1) of Grid Engine, where `-g` is the group of AGE at TSUBAME."""


def project_of(settings: Settings) -> str | None:
    """The project in the options of the submit line, else `account`; None where the scheduler's default is charged."""
    found = (value_of(settings.options, option) for option in OPTIONS[settings.kind])
    return next(filter(None, found), settings.account)


def value_of(words: Sequence[str], option: str) -> str | None:
    """What follows an option on a submit line: `-q fast`, `--qos=fast`; None where it is not there."""
    for word, following in pairwise([*words, ""]):
        if word == option:
            return following or None
        if option.startswith("--") and word.startswith(f"{option}="):
            return word.partition("=")[2] or None
    return None
