"""`scalestudy new`: a study file that runs, to be changed by hand."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from scalestudy.errors import UserError

SMALL = ("small_cnn", "mlp")
"""Models that a CPU trains in seconds; of others a window is measured."""
QUESTION = "How does throughput change with {}?"


@click.command(name="new")
@click.argument("name")
@click.option("--question", default=None, help="What the study answers; default: made from what is varied.")
@click.option("--model", default=None, help="Name of a model.  [default: small_cnn]")
@click.option("--data", default=None, help="Name of a data source.  [default: digits]")
@click.option("--strategy", default=None, help="Name of a strategy.  [default: allreduce]")
@click.option("--vary", multiple=True, metavar="KEY=VALUE,VALUE", help="Key of a run and its values; may be repeated.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Another key of the base run; may be repeated."
)
@click.option("--repeats", type=click.IntRange(1), default=None, help="Repeats per configuration.  [default: 3]")
@click.option(
    "--scale", type=click.Choice(["mini", "node", "paper"]), default="mini", show_default=True, help="Scale it is for."
)
@click.option("--ask/--no-ask", default=None, help="Ask for missing options; default in a terminal.")
def command(
    name: str, scale: str, settings: tuple[str, ...], vary: tuple[str, ...], ask: bool | None, **given: Any
) -> None:
    """Write config/studies/NAME.yaml: a commented study that passes `scalestudy check` and can be run. Existing files are never overwritten.

    \b
    Example: scalestudy new batches --vary batch.per_rank=8,32
    Example: scalestudy new links --model resnet50 --set device=emulated:p100 --data synthetic --vary ranks=1,2,4
    """
    from scalestudy.spec.read_study import FOLDER

    file = FOLDER / f"{name}.yaml"
    _refuse_name(name, file)
    if ask or (ask is None and not vary and not settings and not any(given.values()) and sys.stdin.isatty()):
        vary = _ask(given)
    text = study_text(name, scale, vary, settings, **given)
    _check(name, scale, text, file)
    _write_new(file, text)
    click.echo(f"{file}\n  scalestudy check\n  snakemake {name} --profile profiles/local -n")


def _refuse_name(name: str, file: Path) -> None:
    """Raise UserError where there is no project, the name cannot be a study's, or is taken."""
    from scalestudy.spec.config import NAME
    from scalestudy.spec.study import RESERVED

    if not file.parent.is_dir():
        raise UserError("there is no project here", str(Path.cwd()), "run the command at the top of the project")
    if not re.fullmatch(NAME, name):
        remedy = "use lower-case letters, digits and `_`, starting with a letter; at most 64"
        raise UserError(f"`{name}` cannot be the name of a study", "new", remedy)
    if name in RESERVED:
        raise UserError(
            f"`{name}` cannot be the name of a study: a rule of the workflow has it", "new", "choose another"
        )
    if file.exists():
        raise UserError("is there already, and is not replaced", str(file), "choose another name, or edit it")


def _ask(given: dict[str, Any]) -> tuple[str, ...]:
    """Ask for what is not given; returns what is varied."""
    given["question"] = given["question"] or click.prompt(
        "What does it answer? (a question)", default="", show_default=False
    )
    for key, default in (("model", "small_cnn"), ("data", "digits"), ("strategy", "allreduce")):
        given[key] = given[key] or click.prompt(f"{key.capitalize()}", default=default)
    vary = click.prompt("What is varied? (KEY=VALUE,VALUE …, separated by spaces)", default="batch.per_rank=8,32")
    given["repeats"] = given["repeats"] or click.prompt("Repeats", default=3, type=click.IntRange(1))
    return tuple(vary.split())


def study_text(
    name: str,
    scale: str,
    vary: Sequence[str] = (),
    settings: Sequence[str] = (),
    *,
    question: str | None = None,
    model: str | None = None,
    data: str | None = None,
    strategy: str | None = None,
    repeats: int | None = None,
) -> str:
    """The YAML of a study, commented; raises UserError where a setting cannot be read."""
    from scalestudy.commands.one_run import setting

    axes = dict(_axis(text) for text in vary or ("batch.per_rank=8,32",))
    base: dict[str, Any] = {
        "model": model or "small_cnn",
        "data": {"source": data or "digits"},
        "strategy": strategy or "allreduce",
        "ranks": 2,
        "batch": {"per_rank": 32},
        "optimiser": {"learning_rate": 0.05},
        "train": {"epochs": 5},
    }
    for key, value in (setting(text, "new") for text in settings):
        _put(base, key, value)
    if base["model"] not in SMALL:
        base.setdefault("measure", {"warmup_steps": 3, "steps": 20})
    if base["strategy"] == "single":
        base["ranks"] = 1
    for key in axes:
        _drop(base, key)
    first, *others = axes
    lines = [
        "# yaml-language-server: $schema=../../workflow/schemas/study.schema.json",
        "# Every key: config/README.md. Check: scalestudy check. Plan: snakemake "
        + f"{name} --profile profiles/local -n",
        f"question: {_yaml(question or QUESTION.format(' and '.join(axes)))}",
        "# The run that everything else is a variation of.",
        "base:",
        *(_commented(key, value) for key, value in base.items()),
        "# Dotted keys of a run, each with its values; all are crossed. A value may be {value: …, label: …}.",
        "vary:",
        *(f"  {key}: {_yaml(values)}" for key, values in axes.items()),
        "# Repeats per configuration, made round by round: three give an interval, five decide more claims.",
        f"repeats: {repeats or 3}",
        *_scales(scale),
        "# Kinds and columns: docs/reference/study.md and columns.md.",
        "figures:",
        *_figures(first, others),
        "tables:",
        "  - {name: runs, values: [throughput_samples_per_s, step_time_s, exchange_s, data_stall]}",
    ]
    return "\n".join(lines) + "\n"


COMMENTS = {
    "model": "small_cnn, mlp, or a network of torchvision: resnet50, vgg16, …",
    "data": "digits, synthetic, synthetic_jpeg, image_folder, …",
    "strategy": "how ranks exchange gradients: single, allreduce, ring, parameter_server, …",
    "ranks": "processes, each with a device",
    "batch": "per_rank: weak scaling; global: strong scaling",
    "train": "the full training",
    "measure": "ends the run after a window; the full training's time is extrapolated",
    "device": "cpu, cuda, or emulated:<accelerator> with a published step time",
}


def _commented(key: str, value: Any) -> str:
    line = f"  {key}: {_yaml(value)}"
    return f"{line:<44} # {COMMENTS[key]}" if key in COMMENTS else line


def _scales(scale: str) -> list[str]:
    if scale == "paper":
        return ["# The file is scale paper. Smaller scales are changes to it: scales: {mini: {base: {…}, vary: {…}}}"]
    return [
        "# All of the above is scale paper; a scale below lists what it changes: base, vary, repeats, figures, …",
        "scales:",
        f"  {scale}: {{}}",
    ]


def _figures(first: str, others: Sequence[str]) -> list[str]:
    series = f", series: {_column(others[0])}" if others else ""
    panel = f", panel: {_column(others[1])}" if len(others) > 1 else ""
    if first == "ranks":
        return [
            f"  - {{kind: throughput_over_ranks, name: throughput{series}{panel}}}",
            f"  - {{kind: efficiency{series}{panel}}}",
        ]
    return [f"  - {{kind: lines, name: throughput, x: {_column(first)}, y: throughput_samples_per_s{series}{panel}}}"]


def _column(key: str) -> str:
    """The column that a varied key has its value in."""
    return "data.source" if key == "data" else key


def _axis(text: str) -> tuple[str, list[Any]]:
    """`batch.per_rank=8,32` as the key and its values, read as YAML."""
    from scalestudy.spec.yamlfile import parse_value

    key, equals, values = text.partition("=")
    if not equals or not key or not values:
        raise UserError(f"`{text}` is not a key with values", "--vary", "write KEY=VALUE,VALUE, as ranks=1,2,4")
    found = parse_value(f"[{values}]", f"--vary {key}")
    return key, found


def _put(base: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; null removes it."""
    *parents, last = key.split(".")
    for parent in parents:
        below = base.get(parent)
        if not isinstance(below, dict):
            below = base[parent] = {"name": below} if below else {}
        base = below
    if value is None:
        base.pop(last, None)
    else:
        base[last] = value


def _drop(base: dict[str, Any], key: str) -> None:
    """Leave out of the base what is varied."""
    *parents, last = key.split(".")
    below = base
    for parent in parents:
        found = below.get(parent)
        if not isinstance(found, dict):
            return
        below = found
    below.pop(last, None)
    if parents and not below:
        _drop(base, ".".join(parents))


def _yaml(value: Any) -> str:
    """A value in one line of YAML."""
    import yaml

    return str(
        yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False)
    ).splitlines()[0]


def _check(name: str, scale: str, text: str, file: Path) -> None:
    """Raise UserError, as `scalestudy check` would for the file, where the study is wrong."""
    from scalestudy.commands.check import CONFIG_FILE
    from scalestudy.spec.config import checked, read_config, read_machine
    from scalestudy.spec.expand_study import expand
    from scalestudy.spec.study import StudySpec
    from scalestudy.spec.yamlfile import parse_yaml

    machine = read_config(CONFIG_FILE).machine
    document = parse_yaml(text, str(file))
    try:
        expand(document, checked(StudySpec, document), name, scale, read_machine(machine), machine)
    except UserError as error:
        raise UserError(f"nothing was written: the study would be invalid:\n{error}") from None


def _write_new(file: Path, text: str) -> None:
    """Write a file that must not be there yet."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        raise UserError("is there already, and is not replaced", str(file), "choose another name, or edit it") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
