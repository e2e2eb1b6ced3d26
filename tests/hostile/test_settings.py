"""`key=value` of `scalestudy try`, and the JSON of `scalestudy prepare --spec`."""

from __future__ import annotations

import pytest

from tests.hostile.harness import Case, Refuse, nothing, run
from tests.unit.spec.bad_inputs import laughs

TRY = ("try", "--out", "made")
SETTINGS = [
    Case("no value", nothing, "try: `epochs` is not a setting", ("epochs",)),
    Case("no key", nothing, "try: `=3` is not a setting", ("=3",)),
    Case("a key without an end", nothing, "try: `model.=mlp` is not a setting", ("model.=mlp",), "unclear"),
    Case("a key with a hole", nothing, "try: `train..epochs=3` is not a setting", ("train..epochs=3",), "unclear"),
    Case("a key that clears the screen", nothing, "try: `\\x1b[2J=1` is not a setting", ("\x1b[2J=1",), "unclear"),
    Case("nothing after the sign", nothing, "try: ranks: has no value", ("ranks=",)),
    Case("an unknown key", nothing, "try: rnks: unknown key `rnks`", ("rnks=2",)),
    Case("an unknown key below a key", nothing, "try: train.epoch: unknown key `epoch`", ("train.epoch=2",)),
    Case("text for a number", nothing, "try: train.epochs: must be a whole number, not `1:30`", ("train.epochs=1:30",)),
    Case("yes for true", nothing, "try: optimiser.nesterov: must be true or false", ("optimiser.nesterov=yes",)),
    Case("true by its tag", nothing, "`yes` is not written as its tag `!!bool` says", ("optimiser.nesterov=!!bool yes",),
         "accepted"),
    Case("not a number", nothing, "try: seed: `.nan` is not a finite number", ("seed=.nan",)),
    Case("five thousand digits", nothing, "try: seed: `", ("seed=" + "9" * 5000,)),
    Case("no ranks", nothing, "try: ranks: must be at least 1", ("ranks=0",)),
    Case("a million and one ranks", nothing, "try: ranks: must be at most 1,000,000", ("ranks=1000001",)),
    Case("an unknown model", nothing, "try: model: there is no model `mpl`", ("model=mpl",)),
    Case("a model without a name", nothing, "try: model.width: ", ("model={width: 0x10}",)),
    Case("a number as a key", nothing, "try: model.1: unknown key `1`", ("model={1: 2}",)),
    Case("a key twice in a map", nothing, "try: model: key `a` is here twice", ("model={a: 1, a: 2}",)),
    Case("a Python object", nothing, "the tag `!!python/object/apply:os.system` is not supported",
         ("model=!!python/object/apply:os.system [ls]",)),
    Case("aliases that multiply", nothing, "expands to more than 100,000 values",
         (f"model={{{', '.join(laughs(12).splitlines()[1:])}}}",)),
    Case("brackets without end", nothing, "is nested more than 30 deep", (f"model={'[' * 20_000}",)),
    Case("a bracket that is not closed", nothing, "try: model: is not valid YAML", ("model=[a",)),
    Case("an alias to nothing", nothing, "found undefined alias", ("model=*a",)),
    Case("two documents", nothing, "try: model: is not valid YAML", ("model=a\n---\nb",)),
    Case("a value that clears the screen", nothing, "holds a control character", ('data={source: image_folder, root: "\\e[2J"}',)),
    Case("a size that is none", nothing, "try: data.scale: ", ("data.scale=1.2.3 MiB",)),
    Case("a size beyond all disks", nothing, "is not a size from 1 byte to 1 EB", ("data.scale=99999999999 TiB",)),
    Case("a size of nothing", nothing, "is not a size from 1 byte to 1 EB", ("data.scale=0 MiB",)),
    Case("an unknown source", nothing, "try: data.source: ", ("data.source=digit",)),
    Case("a folder that is not there", nothing, "data.root names a folder that is not there",
         ("data={source: image_folder, root: /nope}",)),
    Case("code of one's own outside", nothing, "try: model.import: must be `file:Class`", ("model.import=../x:Net",)),
    Case("code of one's own that is not there", nothing, "`nets:Net` names ", ("model.import=nets:Net",)),
    Case("a key that drops another", nothing, "would drop `train.epochs`", ("train.epochs=2", "train=3")),
    Case("a key below a number", nothing, "`train` was given as `3`, which has no keys", ("train=3", "train.epochs=2")),
    Case("an emulated accelerator without the table of its times", nothing, "the table of step times is missing", ("device=emulated:abacus", "model=resnet50")),
    Case("a fault of an unknown kind", nothing, "try: faults", ("faults=[{kind: coffee}]",)),
    Case("a rank that the run has not", nothing, "try: faults", ("faults=[{kind: slow_rank, rank: 9, seconds: 1}]",)),
]  # fmt: skip
DEEP = '{"a": ' * 20_000
SPECS = [
    Case("no JSON", nothing, "--spec: cannot be read as JSON", ("{",)),
    Case("a list", nothing, "--spec: data: ", ("[1]",)),
    Case("null", nothing, "--spec: data: ", ("null",)),
    Case("text", nothing, "--spec: data: ", ('"digits"',)),
    Case("nested without end", nothing, "--spec: cannot be read as JSON", (DEEP,), "traceback"),
    Case("five thousand digits", nothing, "--spec: cannot be read as JSON", ('{"source": %s}' % ("9" * 5000),), "traceback"),
    Case("an infinity", nothing, "--spec: ", ('{"source": "digits", "scale": Infinity}',)),
    Case("an unknown key", nothing, "--spec: data.rot: unknown key `rot`", ('{"source": "digits", "rot": 1}',)),
    Case("an unknown source", nothing, "--spec: data.source: ", ('{"source": "digit"}',)),
    Case("a size that is none", nothing, "--spec: data.scale: `1.2.3 MiB` is not a size",
         ('{"source": "digits", "scale": "1.2.3 MiB"}',), "traceback"),
    Case("a size of dots", nothing, "--spec: data.scale: ", ('{"source": "digits", "scale": "... MiB"}',), "traceback"),
    Case("half of a character", nothing, "--spec: contains the character \\ud800", ('{"source": "\\ud800"}',)),
    Case("a terminal's command", nothing, "--spec: contains the character \\u001b",
         ('{"source": "image_folder", "root": "\\u001b[2J"}',), "unclear"),
    Case("a root with NUL", nothing, "--spec: contains the character \\u0000",
         ('{"source": "image_folder", "root": "a\\u0000b"}',), "unclear"),
    Case("a folder in the place of the root", nothing, "holds no images", ('{"source": "caltech256", "root": "256_ObjectCategories"}',)),
]  # fmt: skip


@pytest.mark.parametrize("case", SETTINGS, ids=lambda case: case.name)
def test_a_wrong_setting_is_refused(case: Case, refuse: Refuse) -> None:
    refuse(case, TRY, may_write=("results/data", "made"))


@pytest.mark.parametrize("case", SPECS, ids=lambda case: case.name)
def test_a_wrong_dataset_is_refused(case: Case, refuse: Refuse) -> None:
    (refuse.project / "256_ObjectCategories").mkdir()
    refuse(case, ("prepare", "--out", "made/manifest.json", "--spec"), may_write=("made",))


def test_a_size_relative_to_memory_is_turned_into_bytes_here_too(refuse: Refuse) -> None:
    spec = '{"source": "digits", "scale": "0.00000001x node memory"}'
    assert run(("prepare", "--out", "made/manifest.json", "--spec", spec), refuse.capsys).status == 0
