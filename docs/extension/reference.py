"""Markdown made from the models, catalogues and commands, so that the reference cannot differ from the code."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import click

from scalestudy.cli import cli
from scalestudy.spec import schema
from scalestudy.spec.columns import MEASURED
from scalestudy.spec.schema import Key, Section
from scalestudy.strategies import cost

key_reference = functools.cache(schema.key_reference)


def of_kind(kind: str) -> list[Section]:
    """The choices of one key: every strategy, every source."""
    return [section for section in key_reference() if section.choice and section.choice[0] == kind]


def titled(*begins: str) -> list[Section]:
    """The sections whose titles begin so, each of which has to be there."""
    found = [section for begin in begins for section in key_reference() if section.title.startswith(begin)]
    if len(found) < len(begins):
        raise LookupError(f"the key reference has no section for each of {', '.join(begins)}")
    return found


def plain(text: str) -> str:
    """Text whose `<name>`, `*`, `_` and brackets Markdown leaves alone, outside backticks."""
    parts = re.split(r"(`[^`]*`)", re.sub(r"(?<!\S)(--[a-z][a-z-]*)", r"`\1`", text) if "`" not in text else text)
    return "".join(part if index % 2 else re.sub(r"([<*_\[\]{}$])", r"\\\1", part) for index, part in enumerate(parts))


def key_entry(key: Key, kind: str = "", indexed: bool = True, for_: str = "") -> str:
    """One key as an object that pages refer to."""
    if not key.meaning and key.takes != "map":
        raise LookupError(f"the key `{key.name}` has no description: write a docstring below it in its model")
    default = f" · default {plain(key.default)}" if key.default not in ("", "needed") else ""
    takes = f"{plain(key.takes)}{' · **needed**' if key.default == 'needed' else default}"
    name = f"{kind}:{key.name}" if kind else key.name
    lines = [f":::{{key}} {name}", *([] if indexed else [":no-index:"]), f"{{.takes}}\n{takes}{for_}", ""]
    return "\n".join([*lines, plain(key.meaning), ":::", ""])


def files(kind: str, *begins: str, level: str = "##") -> str:
    """The keys of a kind of file; `kind` tells its keys from a run's of the same name."""
    parts = []
    for section in titled(*begins):
        parts += [f"{level} {section.title}", plain(section.text)]
        parts += [key_entry(key, _kind_of(kind, section)) for key in section.keys]
    return "\n\n".join(parts)


def _kind_of(kind: str, section: Section) -> str:
    """A study's own keys, and those of its figures and tables, are three kinds."""
    part = re.search(r"`(figures|tables)", section.title)
    return part[1].rstrip("s") if kind == "study" and part else kind


def run_keys() -> str:
    """The keys of a run that are not choices."""
    (section,) = titled("A run:")
    return "\n\n".join(key_entry(key) for key in section.keys)


def choices(kind: str, more: Callable[[str], str] = lambda name: "", level: str = "##") -> str:
    """Every choice of `kind` with its keys; what several choices share stands once, at the end."""
    of = of_kind(kind)
    if kind in ("claims", "faults"):  # a list: its items' keys are shown below it
        of = [
            replace(section, keys=[replace(key, name=f"{kind}.{key.name}") for key in section.keys]) for section in of
        ]
    owners: dict[Key, list[str]] = {}
    for section in of:
        assert section.choice is not None
        for key in section.keys:
            owners.setdefault(key, []).append(section.choice[1])
    parts, known = [], set[str]()

    def entry(key: Key, for_: str = "") -> str:
        first = key.name not in known
        known.add(key.name)
        return key_entry(key, "", first, for_)

    common = {key: names for key, names in owners.items() if len(names) > 1}
    shared = [entry(key, f" · for {', '.join(names)}") for key, names in common.items()]
    for section in of:
        assert section.choice is not None
        name = section.choice[1]
        parts += [f"{level} {name[:1].upper()}{name[1:]}", plain(section.text), more(name.strip("`"))]
        parts += [entry(key) for key in section.keys if key not in common]
        others = [f"{{key}}`{key.name}`" for key in section.keys if key in common]
        if others:
            parts.append(f"It also takes {', '.join(others)}: see [below](#{kind}-keys-of-several).")
    if shared:
        parts += [f"({kind}-keys-of-several)=\n{level} Keys of several", *shared]
    return "\n\n".join(part for part in parts if part)


FORMULAS = {
    "allreduce": ("ring",),
    "ring": ("ring", "flat_ring"),
    "halving_doubling": ("halving_doubling", "flat_halving_doubling"),
    "hierarchical": ("hierarchical", "reduce_to_leader", "broadcast"),
    "two_dimensional": ("two_dimensional", "reduce_scatter", "all_gather"),
    "parameter_server": ("parameter_server",),
}
"""The functions of strategies/cost.py that say what an exchange takes."""


def formulas(strategy: str) -> str:
    """What the strategy's exchange takes, as the code that the benchmarks compare with."""
    parts = []
    for name in FORMULAS.get(strategy, ()):
        function = getattr(cost, name)
        text = inspect.getdoc(function) or ""
        code = re.sub(r'\n    """.*?"""', "", inspect.getsource(function), count=1, flags=re.DOTALL)
        parts.append(f"`cost.{name}`: {plain(text)}\n\n```python\n{code.rstrip()}\n```")
    return "\n\n".join(parts)


def cost_sources() -> str:
    """The papers that cost.py names."""
    lines = (inspect.getdoc(cost) or "").splitlines()
    return "\n".join(plain(line) for line in lines if line.startswith("- "))


def cost_table() -> str:
    """The formulas at one message size and link."""
    link = cost.Link(bytes_per_s=12.5e9, latency_s=10e-6)
    size = 100e6
    columns: dict[str, Callable[[int], float]] = {
        "ring": lambda ranks: cost.ring(size, ranks, link),
        "halving-doubling": lambda ranks: cost.halving_doubling(size, ranks, link),
        "parameter server, 1": lambda ranks: cost.parameter_server(size, ranks, 1, link),
        "parameter servers, one per rank": lambda ranks: cost.parameter_server(size, ranks, ranks, link),
    }
    lines = [f"| ranks | {' | '.join(columns)} |", "|--:" * (len(columns) + 1) + "|"]
    for ranks in (2, 4, 8, 32, 128):
        lines.append(f"| {ranks} | {' | '.join(f'{1e3 * seconds(ranks):,.2f}' for seconds in columns.values())} |")
    return "\n".join(lines)


def columns() -> str:
    """Every measured column."""
    parts = []
    for name, column in MEASURED.items():
        unit = f" · {plain(column.unit)}" if column.unit else ""
        parts.append(
            f":::{{column}} {name}\n{{.takes}}\n“{plain(column.label)}”{unit}\n\n{plain(column.meaning)}.\n:::\n"
        )
    return "\n\n".join(parts)


def verbs() -> Iterator[tuple[str, click.Command]]:
    """The verbs of the command line, hidden ones left out."""
    context = click.Context(cli, info_name="scalestudy")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if command is not None and not command.hidden:
            yield name, command


def command_line() -> str:
    """Every verb: usage, what it does, options, examples."""
    return "\n\n".join(_verb(name, command) for name, command in verbs())


def _verb(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"scalestudy {name}")
    lines = [line.strip("\b ") for line in (command.help or "").splitlines()]
    text = "\n".join(line for line in lines if not line.startswith("Example:")).strip()
    examples = [line.removeprefix("Example:").strip() for line in lines if line.startswith("Example:")]
    usage = " ".join([f"scalestudy {name}", *command.collect_usage_pieces(context)])
    parts = [f"## `{name}`", f":::{{verb}} {usage}\n{plain(text)}\n:::", f":::{{program}} scalestudy {name}\n:::"]
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record and "--help" not in record[0]:
            parts.append(f":::{{option}} {record[0]}\n{plain(record[1])}\n:::")
    if examples:
        parts.append("For example:\n\n```text\n" + "\n".join(examples) + "\n```")
    return "\n\n".join(parts)


def packages() -> str:
    """The table of CONTRIBUTING.md that a test holds the imports against."""
    text = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(r"^\| package \|.*?\n\n", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError("CONTRIBUTING.md has no table that begins with `| package |`")
    return found[0].strip()


PARTS: dict[str, Callable[[], str]] = {
    "config": lambda: files("config", "`config/config.yaml`"),
    "study": lambda: files("study", "A study:", "A study's `figures`", "A study's `tables`"),
    "claims": lambda: choices("claims"),
    "machine": lambda: files("machine", "A machine:"),
    "site": lambda: files("site", "A site:"),
    "run": run_keys,
    "models": lambda: choices("model"),
    "data": lambda: choices("data"),
    "strategies": lambda: choices("strategy", more=formulas),
    "faults": lambda: choices("faults", level="###"),
    "cost_sources": cost_sources,
    "cost_table": cost_table,
    "columns": columns,
    "command_line": command_line,
    "packages": packages,
}
"""What `<!-- generated: NAME -->` stands for."""
