"""`scalestudy schema`: JSON Schemas of the configuration's files."""

from __future__ import annotations

import json

import click


@click.command(name="schema")
@click.option("--write", is_flag=True, help="Write workflow/schemas/.")
def command(write: bool) -> None:
    """Print the JSON Schemas by which editors complete and check study files.

    Example: scalestudy schema --write
    """
    from scalestudy.spec import schema as schemas

    if write:
        schemas.write_schemas(schemas.SCHEMAS)
    else:
        click.echo(json.dumps(schemas.schemas(), indent=1))
