"""`scalestudy keys`: every key of the configuration, with its type, default and meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from scalestudy.errors import UserError


@click.command(name="keys")
@click.argument("word", default="")
def command(word: str) -> None:
    """List the keys of all files and the measured columns; with WORD only those whose name contains it.

    \b
    Example: scalestudy keys
    Example: scalestudy keys batch
    """
    if not (lines := list(listed(word))):
        raise UserError(f"no key has `{word}` in its name", remedy="`scalestudy keys` lists all")
    click.echo("\n".join(lines))


def listed(word: str) -> Iterator[str]:
    """The keys with `word` in their names, each below the file or the choice that has it."""
    from scalestudy.spec.schema import key_reference

    heading = ""
    for line in key_reference().splitlines():
        if line.startswith("#"):
            heading = line.strip("# ").replace("`", "")
        elif line.startswith("| `"):
            name, takes, default, meaning = (
                cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]
            )
            if word not in name:
                continue
            if heading:
                yield f"\n{heading}"
                heading = ""
            takes = f"{takes}, default {default}" if default not in ("", "needed") else f"{takes} {default}".strip()
            yield f"  {name.strip('`')}: {takes}".replace("`", "")
            yield f"      {meaning}" if meaning else "      a map; its keys follow"
