"""Remedies in messages: following one changes the outcome, and the commands and keys that it names exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from scalestudy.cli import cli
from scalestudy.commands.one_run import from_settings
from scalestudy.spec import check_run
from scalestudy.spec.base import parse
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from tests.conftest import ROOT

PIPELINE = "strategy=pipeline ranks=4"
FILES = "data.source=image_folder"
SECRET = "https://user:secret@example.org/data"
CASES = [
    # Settings that are impossible; a word of the remedy; what follows it, as settings that come after.
    ("device=emulated:a100 program.command='python a.py' program.files=[a.py]", "leave `device` out", "device=null"),
    ("seed=2147483000", "choose a smaller one", "seed=7"),
    ("measure.steps=9 measure.minutes=1", "set the other to null", "measure.minutes=null"),
    ("hosts=[a,a] strategy=ring ranks=2", "each host once", "hosts=[a,b]"),
    ("hosts=[localhost,b] strategy=ring ranks=2", "as their scheduler does", "hosts=[a,b]"),
    ("hosts=[a,b] nodes=1 strategy=ring ranks=2", "leave `nodes` out", "nodes=null"),
    ("hosts=[a,b] nodes=2 network.mib_per_s=9 strategy=ring ranks=2", "one of the two", "hosts=null"),
    ("network.mib_per_s=9 strategy=ring ranks=2", "set `nodes`", "nodes=2"),
    ("ranks=3 nodes=2 strategy=ring", "another number", "ranks=4"),
    ("ranks=2 nodes=2 ranks_per_node=2 strategy=ring", "leave out `nodes` or", "nodes=null"),
    ("ranks=5 ranks_per_node=2 strategy=ring", "another number", "ranks=4"),
    ("ranks=2 strategy=single", "another strategy", "strategy=ring"),
    ("strategy=fsdp ranks=2 device=emulated:infinite", "a real device", "device=cpu"),
    ("device=emulated:infinite memory_limit_mib=99", "a real device", "device=cpu"),
    (f"{FILES} loader.origin=nginx", "set `network.mib_per_s`", "network.mib_per_s=9"),
    ("strategy=mpi_allreduce ranks=2 nodes=2 network.mib_per_s=9", "another strategy", "strategy=ring"),
    ("strategy=horovod ranks=2 dtype=bfloat16", "choose float32", "dtype=float32"),
    (f"{PIPELINE} batch.per_rank=32 batch.accumulate=2", "set `strategy.micro_batches`", "batch.accumulate=1 strategy.micro_batches=2"),
    (f"{PIPELINE} compile=true", "leave it out", "compile=null"),
    (f"{PIPELINE} autocast=float16", "use bfloat16", "autocast=bfloat16"),
    (f"{PIPELINE} strategy.stages=3", "another number", "strategy.stages=2"),
    (f"{PIPELINE} batch.per_rank=1 strategy.micro_batches=3", "another number", "strategy.micro_batches=4"),
    ("batch.per_rank=8 batch.global=8", "set the other one to null", "batch.per_rank=null"),
    ("batch.global=9 strategy=ring ranks=2", "another number", "batch.global=8"),
    ("batch.per_rank=9 batch.accumulate=2", "another number", "batch.accumulate=3"),
    ("autocast=float16 dtype=bfloat16", "one of the two", "dtype=null"),
    ("tf32=true dtype=bfloat16", "one of the two", "tf32=null"),
    ("tf32=true device=cpu", "one of the two", "device=null"),
    ("autocast=float16 strategy=zero1 ranks=2", "use bfloat16", "autocast=bfloat16"),
    ("memory_format=channels_last strategy=fsdp ranks=2", "one of the two", "memory_format=contiguous"),
    ("strategy=parameter_server ranks=2 measure.trace_steps=3", "one of the two", "strategy=ring"),
    ("strategy=ring ranks=2 measure.trace_steps=3 measure.trace_ranks=[2]", "another number", "measure.trace_ranks=[1]"),
    (f"{FILES} loader.mode=database", "`data.shard.format`", "data.shard.format=lmdb"),
    ("data.import=my_data:Stripes loader.mode=memory", "leave it out", "loader.mode=null"),
    (f"{FILES} loader.mode=stream loader.kind=processes loader.workers=2", "use `threads`", "loader.kind=threads"),
    ("loader.memory_limit_mib=9", "images that are read", FILES),
    ("optimiser.nesterov=true optimiser.momentum=0", "one of the two", "optimiser.momentum=null"),
    (f"{FILES} loader.storage={{}}", "set `mib_per_s`", "loader.storage.mib_per_s=9"),
    ("data.source=digits loader.origin=/data", "or use images", FILES),
    (f"{FILES} data.shard.format=lmdb loader.memory_limit_mib=9", "use shards", "data.shard.format=tar"),
    ("data.source=synthetic stage.to=scratch", "leave `stage.to` out", "stage.to=null"),
    (f"{FILES} data.shard.format=lmdb stage.to=scratch stage.share=by_shard", "`data.shard.format: tar`", "data.shard.format=tar"),
    ("data.source=synthetic_jpeg data.scale='9000000 TB'", "write it as `64 MiB`", "data.scale='64 MiB'"),
    (f"{FILES} data.scale='2x node memory' strategy=ring ranks=2 ranks_per_node=1", "set `memory_gib`", "data.scale='64 GiB'"),
    (f"{FILES} data.shard.format=tar loader.origin={SECRET}", "leave it out of the address", "loader.origin=https://example.org/data"),
    (f"{FILES} data.shard.format=tar stage.to=scratch stage.from={SECRET}", "leave it out of the address", "stage.from=https://example.org/data"),
]  # fmt: skip


PROGRAM = "program.files=[a.py] program.command='python a.py'"
MORE_CASES = [
    # The same of values that cannot be combined, of programs, and of published step times.
    (f"{FILES} data.shard.format=raw", "add `preprocess: raw`", "data.preprocess=raw"),
    (f"{FILES} data.preprocess=raw data.shard.format=tar", "use `format: raw`", "data.shard.format=raw"),
    ("model=resnet50 device=emulated:p100 batch.per_rank=9999", "choose a batch per rank from 16 to 128", "batch.per_rank=128"),
    ("model=resnet50 device=emulated:p10", "did you mean `p100`", "device=emulated:p100"),
    ("strategy=ring ranks=2 'faults=[{kind: killed_rank, rank: 2, at_step: 3}]'", "counted from 0", "'faults=[{kind: killed_rank, rank: 1, at_step: 3}]'"),
    (f"{PROGRAM} program.command='python a.py --x {{x}}'", "set it in `program.keys`", "program.keys.x=1"),
    (f"{PROGRAM} program.keys.x=1", "add it, or leave it out", "program.command='python a.py {x}'"),
    (f"{PROGRAM} batch.per_rank=8", "write `{batch.per_rank}` into the command", "program.command='python a.py {batch.per_rank}'"),
    (f"{PROGRAM} program.keys.loss=1", "another name", "program.keys.loss=null program.keys.x=1 program.command='python a.py {x}'"),
    (f"{PROGRAM} program.command='python \"a.py'", "close its quotes", "program.command='python a.py'"),
    (f"{PROGRAM} program.metrics.step=step", "put brackets around the number", "program.metrics.step='step ([0-9]+)'"),
    (f"{PROGRAM} program.metrics.step='step ('", "", "program.metrics.step='step ([0-9]+)'"),
    (f"{FILES} loader.memory_limit_mib=9 loader.mode=synthetic", "images that are read", "loader.mode=null"),
    (f"{PROGRAM} program.metrics.loss='loss (.+)'", "add the pattern of the step", "program.metrics.step='step ([0-9]+)'"),
]  # fmt: skip


def remedies_of(settings: str) -> list[str]:
    spec, problems = parse(RunSpec, from_settings(tuple(shlex.split(settings)), "try"))
    return [each.remedy for each in (problems if spec is None else check_run.run_problems(spec, Machine()))]


@pytest.mark.parametrize(("settings", "words", "change"), [*CASES, *MORE_CASES])
def test_nothing_is_left_to_say_once_a_remedy_is_followed(settings: str, words: str, change: str) -> None:
    assert [words in remedy for remedy in remedies_of(settings)] == [True]
    assert remedies_of(f"{settings} {change}") == []


def rows_of(settings: str) -> list[int]:
    """Numbers of the rows of the check that settings offend."""
    spec, problems = parse(RunSpec, from_settings(tuple(shlex.split(settings)), "try"))
    assert spec is not None, problems
    rows = [*check_run._of_every_run(spec), *(check_run._of_training(spec, Machine()) if spec.program is None else ())]
    return [number for number, row in enumerate(rows) if row[0]]


def test_each_check_of_a_run_has_a_case_that_follows_its_remedy() -> None:
    spec = RunSpec()
    rows = len(check_run._of_every_run(spec)) + len(check_run._of_training(spec, Machine()))
    assert {number for settings, _, _ in CASES for number in rows_of(settings)} == set(range(rows))


def messages() -> Iterator[tuple[str, str]]:
    """Place and text of each string of the product that is no docstring; values are left out as `{}`."""
    for file in sorted([*ROOT.glob("workflow/s*/**/*.py"), *ROOT.glob("executor/src/**/*.py")]):
        if "scalestudy " not in (text := file.read_text(encoding="utf-8")) and "make" not in text:
            continue
        tree = ast.parse(text)
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        inside |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            place = f"{file.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                yield place, node.value
            elif isinstance(node, ast.JoinedStr):
                yield place, "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)


def test_commands_options_and_targets_that_messages_name_exist() -> None:
    context, makefile, named = click.Context(cli), (ROOT / "Makefile").read_text(encoding="utf-8"), set()
    for place, text in messages():
        for verb, options in re.findall(r"\bscalestudy ([a-z-]+)((?: (?:--[a-z-]+|[A-Z{}]+))*)", text):
            if verb not in ("does", "itself", "than"):  # prose
                command = cli.get_command(context, verb)
                assert command is not None, f"{place}: {text}"
                known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
                assert {word for word in options.split() if word.startswith("--")} <= known, f"{place}: {text}"
                named.add(verb)
        for target in re.findall(r"`make ([a-z-]+)", text):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{place}: {text}"
            named.add(f"make {target}")
    assert named >= {"forget", "doctor", "make horovod", "make run"}
