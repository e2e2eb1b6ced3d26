"""What a study file makes: its runs, their order, labels and sizes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from scalestudy.errors import UserError
from scalestudy.spec.columns import columns_of, matches
from scalestudy.spec.config import checked
from scalestudy.spec.expand_study import expand
from scalestudy.spec.labels import label_of, value_text
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.study import Study, left_out_of
from scalestudy.spec.study_file import StudySpec
from scalestudy.spec.yamlfile import parse_yaml

LAB = Machine(nodes=2, devices_per_node=4, memory_gib=16.0)


def made(text: str, scale: str = "paper", machine: Machine = LAB, changes: dict[str, object] | None = None) -> Study:
    document = parse_yaml(f"question: How?\n{text}", "s.yaml")
    return expand(document, checked(StudySpec, document), "s", scale, machine, "lab", changes=changes)


def values(study: Study, *keys: str) -> list[tuple[object, ...]]:
    """The values of some columns, for each run of the first round."""
    return [tuple(columns_of(run.spec)[key] for key in keys) for run in study.runs if run.spec.repeat == 0]


CASES: list[tuple[str, tuple[str, ...], list[tuple[object, ...]]]] = [
    # The study after its question, columns, and their values for each run of the first round.
    ("base: {model: mlp}", ("model", "ranks"), [("mlp", 1)]),
    ("base: {strategy: allreduce}\nvary: {ranks: [2, 1], batch.per_rank: [8, 4]}", ("ranks", "batch.per_rank"),
     [(2, 8), (2, 4), (1, 8), (1, 4)]),
    ("base: {model: {name: mlp, layers: 3}}\nvary: {model.hidden: [16, 32]}", ("model.layers", "model.hidden"),
     [(3, 16), (3, 32)]),
    ("base: {model: mlp}\nvary: {model.hidden: [16]}", ("model", "model.hidden"), [("mlp", 16)]),
    ("base: {measure: {steps: 10}}\nvary: {measure.steps: [null, 5]}", ("measure.steps",), [(None,), (5,)]),
    ("vary: {seed: [0, 1]}\nzip: {batch.per_rank: [8, 16], optimiser.learning_rate: [0.1, 0.2]}",
     ("seed", "batch.per_rank", "optimiser.learning_rate"), [(0, 8, 0.1), (0, 16, 0.2), (1, 8, 0.1), (1, 16, 0.2)]),
    ("zip:\n- {batch.per_rank: [8, 16]}\n- {seed: [0, 1], train.epochs: [1, 2]}",
     ("batch.per_rank", "seed", "train.epochs"), [(8, 0, 1), (8, 1, 2), (16, 0, 1), (16, 1, 2)]),
    ("vary: {strategy: [single, allreduce], ranks: [1, 2]}\nexclude: [{strategy: single, ranks: 2}]",
     ("strategy", "ranks"), [("single", 1), ("allreduce", 1), ("allreduce", 2)]),
    ("vary: {seed: [0, 1]}\nexclude: [{seed: 1, dtype: float32, model: {name: small_cnn}}]", ("seed",), [(0,)]),
    ("vary: {seed: [0, 1]}\nexclude: [{seed: 1, model: small_cnn, model.name: small_cnn}]", ("seed",), [(0,)]),
    # A combination that could not be made is excluded too, and included ones never are.
    ("base: {ranks: 2}\nvary: {strategy: [allreduce, halving_doubling], strategy.bucket_mib: [1, 2]}\n"
     "exclude: [{strategy.name: halving_doubling}]", ("strategy.bucket_mib",), [(1.0,), (2.0,)]),
    ("vary: {seed: [0, 1]}\nexclude: [{dtype: float32}]\ninclude: [{seed: 2}]", ("seed",), [(2,)]),
    ("base: {model: mlp}\nvary: {seed: [0, 1]}\ninclude: [{seed: 7, model.layers: 2}]", ("seed", "model.layers"),
     [(0, 10), (1, 10), (7, 2)]),
    ("include: [{seed: 7}, {seed: 8}]", ("seed",), [(7,), (8,)]),
    ("vary: {train.epochs: [7, 8], train: [{evaluate_every_epochs: 2}]}", ("train.epochs", "train.evaluate_every_epochs"),
     [(7, 2), (8, 2)]),  # a map before the keys in it
    ("base: {strategy: allreduce, ranks: 4}\nvary: {batch: [{per_rank: 8}, {global: 64}]}",
     ("batch.per_rank", "batch.global", "scaling"), [(8, 32, "weak"), (16, 64, "strong")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "keys", "runs"), CASES, ids=[text for text, _, _ in CASES])
def test_a_study_has_the_runs_that_it_says(text: str, keys: tuple[str, ...], runs: list[tuple[object, ...]]) -> None:
    assert values(made(text), *keys) == runs


def test_repeats_go_round_by_round_with_the_seed_one_higher_each() -> None:
    study = made("base: {seed: 10}\nvary: {batch.per_rank: [8, 16]}\nrepeats: 3")
    seen = [(run.spec.repeat, run.spec.seed, run.spec.batch.per_rank) for run in study.runs]
    assert seen == [(0, 10, 8), (0, 10, 16), (1, 11, 8), (1, 11, 16), (2, 12, 8), (2, 12, 16)]
    assert len({run.id for run in study.runs}) == 6
    assert len({run.configuration for run in study.runs}) == 2


def test_labels_say_what_figures_write() -> None:
    study = made(
        "base: {strategy: allreduce}\n"
        "vary: {ranks: [{value: 1, label: one rank}, {value: 2, label: 2.0}, 4], model: [{value: mlp, label: deep}]}"
    )
    assert [label_of(study.labels, "ranks", ranks) for ranks in (1, 2, 4)] == ["one rank", "2.0", "4"]
    assert label_of(study.labels, "model", "mlp") == "deep"
    assert [value_text(study, "optimiser.learning_rate", rate) for rate in (0.05, 0.0500000001)] == [
        "0.05",
        "0.0500000001",
    ]
    rates = made("vary: {optimiser.learning_rate: [{value: 1, label: whole}, 0.5]}")
    assert [label_of(rates.labels, "optimiser.learning_rate", rate) for rate in (1, 1.0)] == ["whole", "whole"]
    assert value_text(rates, "device", "emulated:p100") == "emulated p100"
    assert value_text(rates, "loader.storage.mib_per_s", None, named=True) == "no rate of the emulated storage"
    of_data = made("vary: {data: [{value: {source: digits}, label: 8x8 digits}]}")
    assert label_of(of_data.labels, "data.source", "digits") == "8x8 digits"


def test_null_makes_no_map_of_what_is_not_there() -> None:
    base = "base: {data: {source: synthetic_jpeg}}"
    none, some = made(f"{base}\nvary: {{loader.storage.mib_per_s: [null, 50]}}").runs
    assert none.spec.loader.storage is None
    assert some.spec.loader.storage is not None and some.spec.loader.storage.mib_per_s == 50


def test_a_scale_merges_maps_replaces_values_and_lists_and_removes_by_null() -> None:
    text = (
        "base:\n"
        "  measure: {warmup_steps: 20, steps: 200}\n"
        "  train: {epochs: 90}\n"
        "  data: {source: synthetic, shape: [3, 8, 8], classes: 5}\n"
        "vary: {ranks: [1, 4], strategy: [allreduce], seed: [0, 1]}\n"
        "scales:\n"
        "  mini:\n"
        "    base: {measure: {steps: null}, train: {epochs: 2}, data: {shape: [1, 4]}}\n"
        "    vary: {ranks: [2], seed: null}\n"
    )
    (run,) = made(text, "mini").runs
    assert run.spec.to_dict() == {
        "strategy": {"name": "allreduce"},
        "ranks": 2,
        "data": {"source": "synthetic", "shape": [1, 4], "classes": 5},
        "train": {"epochs": 2},
        "measure": {"warmup_steps": 20},
    }
    assert len(made(text, "paper").runs) == 4


@pytest.mark.parametrize(
    ("below", "above", "model"),
    [
        ("{name: mlp, layers: 3}", "{hidden: 8}", {"name": "mlp", "layers": 3, "hidden": 8}),
        ("{name: mlp, layers: 3}", "{name: resnet18}", {"name": "resnet18"}),
        ("resnet18", "{name: mlp, layers: 3}", {"name": "mlp", "layers": 3}),
        ("mlp", "{layers: 3}", {"name": "mlp", "layers": 3}),
    ],
)
def test_a_map_that_names_another_replaces_the_one_below(below: str, above: str, model: dict[str, object]) -> None:
    study = made(f"base: {{model: {below}}}\nscales: {{mini: {{base: {{model: {above}}}}}}}", "mini")
    assert study.runs[0].spec.to_dict()["model"] == model


def test_a_map_that_says_its_default_name_keeps_what_the_file_sets() -> None:
    text = "base: {optimiser: {learning_rate: 0.05}}\nscales: {mini: {base: {optimiser: {name: sgd, momentum: 0.5}}}}"
    assert made(text, "mini").runs[0].spec.to_dict()["optimiser"] == {"learning_rate": 0.05, "momentum": 0.5}


@pytest.mark.parametrize(
    ("size", "stored"),
    [
        ("64 MiB", "67109 KB"),
        ("64 MB", "64000 KB"),
        ("2x node memory", "34359738 KB"),
    ],
)
def test_a_size_is_turned_into_bytes_when_the_study_is_read(size: str, stored: str) -> None:
    figures = f"figures: [{{kind: efficiency, where: {{data.scale: {size}}}}}]"
    number = f"{{column: loss, where: {{data.scale: {size}}}}}"
    answers = f"answers: [{{say: 'It is {{loss}}.', numbers: {{loss: {number}}}}}]"
    study = made(f"vary: {{data.scale: [{size}]}}\nbase: {{data: {{source: image_folder}}}}\n{figures}\n{answers}")
    assert study.figures[0].where == study.answers[0].numbers["loss"].where == {"data.scale": stored}
    assert values(study, "data.scale") == [(stored,)]
    assert label_of(study.labels, "data.scale", stored) == size


def test_a_column_in_mib_may_be_written_in_mib() -> None:
    made("answers: [{say: 'It takes {memory:MiB}.', numbers: {memory: {column: memory_mib}}}]")


@pytest.mark.parametrize("machine", [Machine(nodes=2), Machine()])
def test_a_size_relative_to_the_memory_of_other_nodes_needs_their_machine_file_to_say_it(machine: Machine) -> None:
    text = (
        "base: {data: {source: image_folder, scale: 2x node memory}, strategy: allreduce, ranks: 2, ranks_per_node: 1}"
    )
    with pytest.raises(UserError, match=r"s.yaml:2: base.data.scale: .*unknown here(?s:.*)set `memory_gib`"):
        made(text, machine=machine)
    assert values(made(text.replace(": 1}", ": 2}"), machine=Machine(nodes=1)), "data.scale")


def test_data_sized_by_this_hosts_memory_stay_where_an_update_of_its_kernel_takes_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = set()
    for kib in (263_856_824, 263_851_212):
        monkeypatch.setattr("scalestudy.spec.machine.usable_memory_bytes", lambda kib=kib: kib << 10)
        study = made("base: {data: {source: image_folder, scale: 2x node memory}}", machine=Machine())
        sizes |= set(values(study, "data.scale"))
    assert len(sizes) == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three studies, two of them at `mini`."""
    (tmp_path / "a.yaml").write_text("question: A?\nscales: {mini: {}}\n")
    (tmp_path / "b.yaml").write_text("question: B?\n")
    (tmp_path / "c.yaml").write_text("question: C?\nscales: {mini: {}, node: {}}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "scale", "chosen"),
    [
        (None, "mini", ["a", "c"]),
        (None, "paper", ["a", "b", "c"]),
        (["c", "a"], "mini", ["c", "a"]),
        (["c", "c"], "node", ["c"]),
    ],
)
def test_studies_are_chosen_by_name_and_scale(
    folder: Path, names: list[str] | None, scale: str, chosen: list[str]
) -> None:
    studies = read_studies(names, scale, LAB, folder=folder)
    assert [study.name for study in studies] == chosen


@pytest.mark.parametrize(
    ("value", "wanted", "agrees"),
    [
        (2, [1, 2], True), (2, [1, 4], False), ("digits", {"source": "digits"}, True), (None, "ring", False),
        ("ring", {"name": "ring", "bucket_mib": 4}, False), ({"name": "ring", "bucket_mib": 4}, "ring", True),
        ("ring", ["allreduce", {"name": "ring"}], True), ([3, 8, 8], [3, 8, 8], True), (None, None, True),
    ],
)  # fmt: skip
def test_a_value_matches_itself_one_of_a_list_and_a_map_of_its_name(
    value: object, wanted: object, agrees: bool
) -> None:
    assert matches(value, wanted) is agrees


@pytest.mark.parametrize(
    ("text", "changes", "runs"),
    [
        ("zip: {seed: [8, 16], train.epochs: [1, 2]}", {"train.epochs": 10}, [(8, 10), (16, 10)]),
        ("vary: {seed: [0]}\ninclude: [{seed: 7, train.epochs: 3}, {seed: 8}]", {"train.epochs": 10},
         [(0, 10), (7, 10), (8, 10)]),
        ("include: [{seed: 7}, {seed: 8}]", {"ranks": 1}, [(7, 1), (8, 1)]),
        ("vary: {seed: [0, 1]}\ninclude: [{seed: 1, train.epochs: 3}]", {"train.epochs": 10}, [(0, 10), (1, 10)]),
        ("vary: {seed: [0, 1], train.epochs: [1, 2]}", {"train.epochs": [5, 6]}, [(0, 5), (1, 5), (0, 6), (1, 6)]),
        ("vary: {train: [{epochs: 1}, {evaluate_every_epochs: 0}]}", {"train.epochs": 10}, [(0, 10), (0, 10)]),
    ],
)  # fmt: skip
def test_a_change_replaces_a_key_wherever_the_study_sets_it(
    text: str, changes: dict[str, object], runs: list[tuple[object, ...]]
) -> None:
    assert values(made(text, changes=changes), "seed", "train.epochs") == runs


def test_figures_tables_and_answers_of_runs_that_a_change_takes_away_are_left_out() -> None:
    text = (
        "base: {strategy: allreduce}\nvary: {ranks: [1, 2]}\n"
        "figures: [{kind: efficiency, where: {ranks: 2}}, {kind: staleness}]\n"
        "tables: [{name: two, values: [loss], where: {ranks: 2}}]\n"
        "answers: [{say: '{loss}', numbers: {loss: {column: loss, where: {ranks: 2}}}}]\n"
    )
    study = made(text, changes={"ranks": 4})
    assert ([figure.kind for figure in study.figures], study.tables, study.answers) == (["staleness"], (), ())
    reason = "no run of this study has `ranks` `2`"
    assert study.left_out == (f"figure `efficiency`: {reason}", f"table `two`: {reason}", f"“{{loss}} …”: {reason}")
    assert len(made(text, changes={"seed": 7}).answers) == 1
    assert left_out_of([study]) == [f"s: {sentence}" for sentence in study.left_out]
    assert left_out_of([study, replace(study, name="t")])[0].startswith(
        "parts of s, t: there are no runs for them here"
    )
    with pytest.raises(UserError, match=r"study `s` has no figure `stalenes`\n    did you mean `staleness`"):
        study.figure("stalenes")


def test_claims_are_not_judged_with_other_keys_and_that_is_said() -> None:
    claim = "{id: a, statement: A., kind: direction, column: step_time_s, of: {seed: 0}, against: {seed: 1}, below: 0.95, margin_reason: b}"
    text = f"vary: {{seed: [0, 1]}}\nrepeats: 3\nclaims: [{claim}]"
    assert len(made(text).claims) == 1
    study = made(text, changes={"repeats": 4})
    assert (study.claims, study.left_out) == ((), ("1 claim: judged only with the keys as the file has them",))


def test_a_change_of_repeats_limits_those_of_included_runs() -> None:
    study = made("vary: {seed: [0]}\ninclude: [{seed: 100, repeats: 3}]\nrepeats: 5", changes={"repeats": 2})
    assert [(run.spec.seed, run.spec.repeat) for run in study.runs] == [(0, 0), (100, 0), (1, 1), (101, 1)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"repeats": 0}, "set: repeats: must be a whole number from 1 to 10,000, not `0`"),
        ({"train.epoch": 3}, "set: train.epoch: unknown key `train.epoch`\n    did you mean `train.epochs`?"),
        ({"ranks": []}, "set: ranks: is an empty list\n    give it a value"),
    ],
)
def test_a_wrong_change_is_said_to_be_on_the_command_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as raised:
        made("vary: {seed: [0]}\ninclude: [{seed: 7}]", changes=changes)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("vary: {ranks: [1, 2]}\nscales: {mini: {vary: {ranks: [0]}}}", "s.yaml:3: scales.mini.vary.ranks"),
        ("vary: {ranks: [1]}\nscales: {mini: {vary: {rank: null}}}", "s.yaml:3: scales.mini.vary.rank: unknown key `rank`"),
        ("exclude: [{ranks: 2}]\nscales:\n  mini: {exclude: [{ranks: 1}]}",
         "s.yaml:4: scales.mini.exclude: `exclude` leaves no run at scale `mini`"),
        ("base: {data: {source: synthetic_jpeg, quality: 900}}\nscales: {mini: {base: {data: {samples: 100}}}}",
         "s.yaml:2: base.data.quality"),
    ],
)  # fmt: skip
def test_an_error_at_a_scale_names_the_line_that_sets_the_key(text: str, place: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(place)}"):
        made(text, "mini")
