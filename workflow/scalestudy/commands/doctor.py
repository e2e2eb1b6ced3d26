"""`scalestudy doctor`: what a site has, and what is missing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from scalestudy.cluster.doctor import examine, text
from scalestudy.cluster.dryrun import known_profile
from scalestudy.files import write_text
from scalestudy.spec.config import read_config, read_machine
from scalestudy.spec.yamlfile import read_yaml

MISSING = 1
NODES = 2


def show_doctor(profile: str, config: Sequence[str], nodes: int | None, wait: float, json_file: str | None) -> int:
    """Print what each node has and lacks; exit status 1 where something is to be done."""
    choice = read_config("config/config.yaml", configuration_of(profile, config))
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


def configuration_of(profile: str, config: Sequence[str]) -> Mapping[str, Any]:
    """What Snakemake would have as its configuration; names the profile's site to all that reads it."""
    known_profile(profile)
    from snakemake import cli

    _, parsed = cli.parse_args(["--profile", profile, *(["--config", *config] if config else [])])
    found: dict[str, Any] = {}
    for file in parsed.configfile or ():
        found |= read_yaml(file).data
    found |= cli.parse_config(parsed.config)
    if "site" in found:
        os.environ["SCALESTUDY_SITE"] = str(Path(found["site"]).absolute())
    return found
