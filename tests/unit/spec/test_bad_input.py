"""Wrong files are answered with file, line, key and nearest word; never with anything else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scalestudy.errors import UserError
from scalestudy.spec.base import parse
from scalestudy.spec.check_run import run_problems
from scalestudy.spec.config import read_config, read_machine
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import find_studies, read_studies
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study_file import RESERVED
from scalestudy.spec.yamlfile import parse_yaml, read_yaml

LAB = Machine(nodes=2, devices_per_node=4, memory_gib=16.0)

FIGURE = "figures: [{kind: %s}]"
ANSWER = "answers: [{say: '%s', numbers: {x: {%s}}}]"
BAD: list[tuple[str, str, str]] = [
    # After a line with the question: text, place, and a word of the answer.
    ("figurs: []", "2: figurs", "did you mean `figures`?"),
    ("base:\n  modle: mlp", "3: base.modle", "`model`"),
    ("base: {lr: 0.1}", "2: base.lr", "`optimiser.learning_rate`"),
    ("base: {batch.per_rank: 3}", "2: base.batch.per_rank", "write `batch: {per_rank: …}`"),
    ("base: {data: {source: digits, root: /x}}", "2: base.data.root", "`scalestudy check --keys`"),
    ("base: {data: {source: digit}}", "2: base.data.source", "`digits`"),
    ("base: {ranks: many}", "2: base.ranks", "valid integer, not `many`"),
    ("base: {optimiser: {learning_rate: 1e999}}", "2: base.optimiser.learning_rate", "valid number, not `inf`"),
    ("base: {ranks: '2'}", "2: base.ranks", "leave out its quotes"),
    ("base: {model: {import: 'nets:Net'}}", "2: base.model.import", "which does not exist"),
    ("base: {strategy: allreduce, ranks: 3, nodes: 2}", "2: base.nodes", "divided equally"),
    ("vary: {optimizer.learning_rate: [1]}", "2: vary.optimizer.learning_rate", "`optimiser.learning_rate`"),
    ("vary: {ranks: 5}", "2: vary.ranks", "a list, not `5`"),
    ("vary: {repeat: [0, 1]}", "2: vary.repeat", "`repeats`"),
    ("vary:\n  seed: [1]\n  ranks: [1, 4]", "4: vary.ranks", "at most 1 rank, not 4 (with seed 1, ranks 4)"),
    ("vary: {ranks: [64]}\nbase: {strategy: allreduce}", "2: vary.ranks", "machine `lab` has 2"),
    ("vary: {seed: [0, 100000], ranks: [1, 2, 3]}\nrepeats: 10000", "2: vary", "at most 50,000"),
    ("vary: {seed: [1]}\nzip: {seed: [2]}", "3: zip.seed", "`seed` varies twice"),
    ("include: [{}, {}]", "2: include[1]", "`base` alone makes the same run"),
    ("vary: {seed: [1, 1]}", "2: vary", "the other is vary: seed 1"),
    ("include: [{seed: 1, repeats: 5}]\nrepeats: 3", "2: include[0].repeats", "the study's 3"),
    ("zip: {ranks: [1, 2], seed: [1, 2, 3]}", "2: zip", "ranks has 2, seed has 3"),
    (FIGURE % "lines, x: ranks", "2: figures[0]", "needs `y`"),
    (FIGURE % "efficiency, where: {ranks: 7}", "2: figures[0].where.ranks", "there is `1`"),
    (FIGURE % "efficiency, reference: nothing", "2: figures[0].reference", "there is no config/reference/nothing.csv"),
    (FIGURE % "efficiency, x: ranks", "2: figures[0].x", "use kind `lines`"),
    (FIGURE % "bars, x: ranks, y: step_time_s, log_y: true", "2: figures[0].log_y", "use kind `lines`"),
    (
        "vary: {data.resize: [64, 128]}\nbase: {data: {source: image_folder}}",
        "2: vary.data.resize",
        "set `data.preprocess`",
    ),
    (
        "include: [{stage.share: by_shard}]\nbase: {data: {source: image_folder}}",
        "2: include[0].stage.share",
        "set `stage.to`",
    ),
    (FIGURE % "lines, x: rank, y: loss", "2: figures[0].x", "did you mean `ranks`?"),
    (FIGURE % "bars, x: wall_s, y: loss", "2: figures[0].x", "is measured"),
    (FIGURE % "lines, x: ranks, y: loss, prediction: loss", "2: figures[0].prediction", "not a prediction"),
    ("figures: [{kind: staleness}, {kind: staleness}]", "2: figures[1].name", "two figures have the name `staleness`"),
    (
        "vary: {seed: [0, 1]}\nzip: {train.epochs: [1]}\nexclude: [{seed: 1}]\ninclude: [{seed: 1, train.epochs: 2}]\n"
        + FIGURE % "staleness, where: {seed: 1, train.epochs: 1}",
        "6: figures[0].where",
        "agrees with all of `where`",
    ),
    ("tables: [{name: t, values: [ranks]}]", "2: tables[0].values[0]", "`ranks` is not measured"),
    (ANSWER % ("{x", "column: loss"), "2: answers[0].say", "write {{ for a brace"),
    (ANSWER % ("{y}", "column: loss"), "2: answers[0].say", "no number is named `y`"),
    (ANSWER % ("{x:big}", "column: loss"), "2: answers[0].say", "`big` is no format of a number"),
    (ANSWER % ("{x:%}", "column: wall_s"), "2: answers[0].say", "`wall_s` is in s, which"),
    (ANSWER % ("{x}", "batch: 1"), "2: answers[0].numbers.x", "set one of them"),
    (ANSWER % ("{x}", "column: rnks"), "2: answers[0].numbers.x.column", "`rnks` is not measured"),
    (ANSWER % ("{x}", "ratio: [x, z]"), "2: answers[0].numbers.x.ratio", "no number above is named"),
    (ANSWER % ("{x}", "accelerator: p10"), "2: answers[0].numbers.x.accelerator", "step times is missing"),
    ("vary: {seed: [0, 1]}\n" + ANSWER % ("{x}", "column: loss"), "3: answers[0].numbers.x.where", "2 configurations"),
    ("vary: {ranks: each}", "2: vary.ranks", "write `nodes: each`"),
    ("vary: {seed: {to: machine}}", "2: vary.seed", "has no end that a machine sets"),
    (
        "include: [{seed: {value: 1, label: a}}, {seed: {value: 1, label: b}, train.epochs: 2}]",
        "2: include[1].seed",
        "under two labels, `a` and `b`",
    ),
    ("base: {data: {source: image_folder, scale: 64 MB of them}}", "2: base.data.scale", "is not a size"),
    ("base: {program: {command: python a.py, files: [a.py]}}", "2: base.program.files", "`a.py` does not exist"),
    ("base:\n  ranks: 1\n  ranks: 2", "4", "duplicate key"),
    ("base:\n\tranks: 1", "3", "is not valid YAML"),
]

SECRETS = [
    "https://user:hunter2@example.org/data",
    "https://account.blob.core.windows.net/data?sv=2024&sig=hunter2",
    "https://bucket.s3.amazonaws.com/data?X-Amz-Credential=hunter2",
]
PLAIN = ["https://example.org:8080/data", "s3://bucket/data", "abfss://container@account.dfs.core.windows.net/data",
         "https://example.org/data?versionId=5", "/home/user@host/data", "https://example.org/key=1/data"]  # fmt: skip


@pytest.mark.parametrize("address", [*SECRETS, *PLAIN])
def test_an_address_with_a_secret_is_refused_without_repeating_it(address: str) -> None:
    data = {"source": "synthetic_jpeg", "shard": {"format": "tar"}}
    spec, _ = parse(RunSpec, {"data": data, "loader": {"origin": address}})
    said = [each.what for each in run_problems(spec, LAB)]
    assert [text.startswith("the address holds a login or a key") for text in said] == [True] * (address in SECRETS)
    assert "hunter2" not in str(said)


@pytest.fixture
def folder(project: Path) -> Path:
    return project / "config/studies"


def message_about(folder: Path, names: list[str] | None = None, scale: str = "paper") -> str:
    """The error of `read_studies`; names of files without their folder."""
    with pytest.raises(UserError) as raised:
        read_studies(names, scale, LAB, machine_name="lab", folder=folder)
    return str(raised.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(("text", "place", "word"), BAD, ids=[text for text, _, _ in BAD])
def test_a_wrong_study_is_answered_with_place_and_remedy(text: str, place: str, word: str, folder: Path) -> None:
    (folder / "s.yaml").write_text(f"question: How?\n{text}\n", encoding="utf-8")
    said = message_about(folder, ["s"], "paper")
    assert said.startswith(f"s.yaml:{place}: "), said
    assert word in said


def test_keys_beside_an_axis_that_is_empty_on_this_machine_are_checked(folder: Path) -> None:
    more = "vary: {nodes: pairs, rankk: [1], seed: [1]}\nzip: {seed: [2], dtype: [float32]}\ninclude: [{seed: 1}]\n"
    (folder / "s.yaml").write_text(f"question: How?\n{more}", encoding="utf-8")
    said = str(find_studies(["s"], "paper", Machine(nodes=1), folder=folder).wrong["s"])
    assert "3: zip.seed: `seed` varies twice" in said
    (folder / "s.yaml").write_text(f"question: How?\n{more.replace('seed: [2], ', '')}", encoding="utf-8")
    said = str(find_studies(["s"], "paper", Machine(nodes=1), folder=folder).wrong["s"])
    assert "2: vary.rankk: unknown key `rankk`" in said


def test_all_errors_of_a_file_are_listed(folder: Path) -> None:
    (folder / "s.yaml").write_text("question: 5\nbse: {}\nrepeats: none\nfigures:\n- {kind: lnes}\n")
    lines = [line for line in message_about(folder).splitlines() if not line.startswith(" ")]
    assert [line.partition(": ")[0] for line in lines] == ["s.yaml:1", "s.yaml:2", "s.yaml:3", "s.yaml:5"]


@pytest.mark.parametrize(
    ("names", "scale", "message"),
    [
        (["gpu_scalling"], "paper", "there is no study `gpu_scalling`\n    did you mean `gpu_scaling`?"),
        (["gpu_scaling"], "node", "has no scale `node`\n    it has paper: set --config scale=paper"),
        (None, "mini", "no study has scale `mini`"),
    ],
)
def test_a_study_or_scale_that_is_not_there_is_an_error(
    names: list[str] | None, scale: str, message: str, folder: Path
) -> None:
    (folder / "gpu_scaling.yaml").write_text("question: How?\n")
    assert message_about(folder, names, scale).endswith(message)


@pytest.mark.parametrize("name", ["s.yml", "GPU scaling.yaml", "all.yaml", f"{'a' * 119}.yaml"])  # fmt: skip
def test_a_file_whose_name_no_study_can_have_is_wrong_and_hides_no_other(name: str, folder: Path) -> None:
    (folder / name).write_text("question: How?\n")
    (folder / "b.yaml").write_text("question: How?\n")
    (folder / "c.yaml").write_text("question: 5\n")
    found = find_studies(None, "paper", LAB, folder=folder)
    assert ([study.name for study in found.studies], {*found.wrong}) == (["b"], {"c", Path(name).stem})
    assert message_about(folder, [Path(name).stem]).startswith(f"{name}: ")


def test_a_file_that_is_no_map_or_no_text_and_a_folder_without_studies_are_errors(folder: Path) -> None:
    for text, word in (("- a", "is not a map of keys"), ("a: \x01", "save it as plain text")):
        with pytest.raises(UserError, match=word):
            parse_yaml(text, "s.yaml")
    with pytest.raises(UserError, match="there is no study here"):
        find_studies(None, "paper", LAB, folder=folder)


def test_of_many_different_errors_the_first_twenty_are_listed(folder: Path) -> None:
    ranks = list(range(3, 60, 2))
    (folder / "s.yaml").write_text(f"question: How?\nbase: {{strategy: ring, nodes: 2}}\nvary: {{ranks: {ranks}}}\n")
    assert message_about(folder).count("divided equally") == 20


def test_one_study_in_the_configuration_needs_no_list(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("scale: mini\nstudies: noise\n")
    assert read_config(tmp_path / "config.yaml").studies == ("noise",)


def test_the_names_that_no_study_can_have_are_those_of_the_rules() -> None:
    rules = {
        name
        for file in (Path(__file__).resolve().parents[3] / "workflow/rules").glob("*.smk")
        for name in re.findall(r"^rule (\w+):", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert set(RESERVED) == {"all", "claims", *rules}


@pytest.mark.parametrize(
    ("key", "value", "place", "word"),
    [
        ("scale", "big", "scale", "'mini', 'node' or 'paper', not `big`"),
        ("studies", [], "studies", "at least 1 item"),
        ("stduies", "a", "stduies", "did you mean `studies`?"),
        ("paths", {"data": "$NOT_SET_HERE/data"}, "paths.data", "names a variable that is not set"),
    ],
)
def test_a_wrong_value_on_the_command_line_is_answered(
    key: str, value: object, place: str, word: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("scale: mini\n")
    with pytest.raises(UserError) as raised:
        read_config(tmp_path / "config.yaml", {key: value})
    assert raised.value.where == f"--config or configfile: {place}"
    assert word in str(raised.value)


@pytest.mark.parametrize("name", ["Night", "a b", "../a", ""])
def test_a_name_that_cannot_be_a_campaigns_folder_is_refused(name: str, project: Path) -> None:
    with pytest.raises(UserError, match="campaign"):
        read_config("config/config.yaml", {"campaign": name})
    with pytest.raises(UserError, match="cannot be the name of a campaign"):
        read_machine(f"local+{name}")


def test_every_value_knows_its_line_and_aliases_and_merge_keys_are_read(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("a: &a\n  b:\n  - c: 1\n  - d\ne: {<<: *a, f: 2}\ng: &flag true\nh: *flag\n")
    document = read_yaml(tmp_path / "s.yaml")
    assert document.where(("a", "b", 0, "c")) == f"{tmp_path}/s.yaml:3: a.b[0].c"
    assert document.line(("a", "b", 1)) == 4
    assert document.where(("a", "x", "y")) == f"{tmp_path}/s.yaml:1: a.x.y"
    assert document.data["e"] == {"b": [{"c": 1}, "d"], "f": 2}
    assert document.data["g"] is document.data["h"] is True


def test_an_emulated_network_is_of_several_nodes_or_of_a_server_beside_one() -> None:
    for ranks in ({"strategy": "ring", "ranks": 2, "ranks_per_node": 1}, {}):
        spec, _ = parse(RunSpec, {"network": {"mib_per_s": 1}, **ranks})
        assert spec is not None and not list(run_problems(spec, Machine()))
