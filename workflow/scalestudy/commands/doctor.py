"""`scalestudy doctor`: what a site has, and what is missing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from scalestudy.cluster.doctor import examine, text
from scalestudy.dag.dryrun import configuration_of
from scalestudy.files import write_text
from scalestudy.spec.config import SITE, read_config, read_machine

MISSING = 1
NODES = 2


def show_doctor(profile: str, config: Sequence[str], nodes: int | None, wait: float, json_file: str | None) -> int:
    """Print what each node has and lacks; exit status 1 where something is to be done."""
    given = configuration_of(profile, config)
    if "site" in given:
        os.environ[SITE] = str(Path(given["site"]).absolute())
    choice = read_config("config/config.yaml", given)
    machine = read_machine(choice.machine)
    count = nodes or min(NODES, machine.nodes or 1)
    reports, findings = examine(choice, profile, count, wait)
    if json_file is not None:
        data = {"nodes": reports, "findings": [vars(finding) for finding in findings]}
        plain = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
        if json_file == "-":
            sys.stdout.write(plain)
        else:
            write_text(json_file, plain)
    if json_file != "-":
        click.echo(text(reports, findings))
    return MISSING if any(finding.remedy for finding in findings) else 0
