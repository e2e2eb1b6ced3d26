"""`nodes: each`: runs on the nodes of a machine by name, and how names are written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from scalestudy.cluster.resources import Planner
from scalestudy.errors import UserError
from scalestudy.spec.base import parse
from scalestudy.spec.check_run import run_problems
from scalestudy.spec.columns import columns_of
from scalestudy.spec.config import checked
from scalestudy.spec.expand_study import expand
from scalestudy.spec.hostlist import folded, short, slurm_hosts
from scalestudy.spec.ids import run_id
from scalestudy.spec.machine import Machine, geometry
from scalestudy.spec.read_study import find_studies
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study import Study, StudySpec
from scalestudy.spec.yamlfile import parse_yaml

FOUR = Machine(nodes=4, hosts=("node[1-3]", "spare"), devices_per_node=2, device="cuda", memory_gib=16.0)
ONE = Machine(devices_per_node=2, device="cuda", memory_gib=16.0)
EACH = "base: {strategy: allreduce}\nvary: {nodes: each}"


def made(text: str, machine: Machine = FOUR, changes: dict[str, object] | None = None) -> Study:
    document = parse_yaml(f"question: How?\n{text}", "s.yaml")
    return expand(document, checked(StudySpec, document), "s", "paper", machine, "lab", changes=changes)


def values(study: Study, *keys: str) -> list[tuple[object, ...]]:
    return [tuple(columns_of(run.spec)[key] for key in keys) for run in study.rounds()[0]]


def test_each_node_is_a_run_that_fills_it() -> None:
    study = made(EACH)
    assert values(study, "hosts", "nodes", "ranks") == [
        ("node1", 1, 2), ("node2", 1, 2), ("node3", 1, 2), ("spare", 1, 2),
    ]  # fmt: skip
    assert study.varied == ("hosts",)


def test_pairs_are_every_two_nodes_and_neighbours_each_with_the_next() -> None:
    assert [hosts for (hosts,) in values(made(EACH.replace("each", "pairs")), "hosts")] == [
        "node1 node2", "node1 node3", "node1 spare", "node2 node3", "node2 spare", "node3 spare",
    ]  # fmt: skip
    assert values(made(EACH.replace("each", "neighbours")), "hosts", "nodes", "ranks") == [
        ("node1 node2", 2, 4), ("node2 node3", 2, 4), ("node3 spare", 2, 4), ("spare node1", 2, 4),
    ]  # fmt: skip


def test_two_nodes_are_one_pair_of_neighbours() -> None:
    two = FOUR.model_copy(update={"hosts": ("a", "b"), "nodes": 2})
    assert values(made(EACH.replace("each", "neighbours"), two), "hosts") == [("a b",)]


def test_the_study_may_say_how_many_ranks_a_node_has() -> None:
    per_node = "base: {strategy: allreduce, ranks_per_node: 1}\nvary: {nodes: pairs}"
    assert set(values(made(per_node), "ranks")) == {(2,)}
    varied = "base: {strategy: allreduce}\nvary: {nodes: each, ranks: [1, 2]}"
    assert values(made(varied), "hosts", "ranks")[:2] == [("node1", 1), ("node1", 2)]


def test_included_runs_can_be_for_nodes_by_name_too() -> None:
    study = made(f"{EACH}\ninclude:\n- {{nodes: neighbours, model: mlp, repeats: 1}}\nrepeats: 3")
    assert values(study, "hosts", "model")[4:6] == [("node1 node2", "mlp"), ("node2 node3", "mlp")]
    assert len(study.runs) == 4 * 3 + 4


def test_a_node_can_be_excluded_and_one_alone_be_measured_again() -> None:
    without = made(f"{EACH}\nexclude:\n- {{hosts: spare}}")
    assert values(without, "hosts") == [("node1",), ("node2",), ("node3",)]
    again = made(EACH, changes={"hosts": "node2"})
    assert [run.id for run in again.runs] == [made(EACH).runs[1].id]


def test_the_node_is_in_the_id_and_the_ids_of_the_others_do_not_depend_on_it() -> None:
    ids = [run.id for run in made(EACH).runs]
    assert [name.partition("-")[0] for name in ids][:2] == [
        "small_cnn.digits.allreduce.x2.at_node1.r0",
        "small_cnn.digits.allreduce.x2.at_node2.r0",
    ]
    fewer = made(EACH, FOUR.model_copy(update={"hosts": ("node[1-2]",), "nodes": 2}))
    assert [run.id for run in fewer.runs] == ids[:2]
    run, _ = parse(RunSpec, {"hosts": "node1", "ranks": 2, "strategy": "allreduce"})
    assert run is not None
    assert run_id(run) == ids[0]


def test_a_machine_of_one_node_is_this_host_whatever_its_name() -> None:
    study = made(f"{EACH}\ninclude:\n- {{nodes: pairs}}", ONE)
    assert values(study, "hosts", "ranks") == [("localhost", 2)]
    assert study.left_out == ("`nodes: pairs` needs two nodes, and machine `lab` has one",)
    assert geometry(study.runs[0].spec, ONE) == (1, 2)


def test_a_study_of_pairs_alone_is_not_for_a_machine_of_one_node() -> None:
    with pytest.raises(UserError, match="`nodes: pairs` needs two nodes, and machine `lab` has one"):
        made(EACH.replace("each", "pairs"), ONE)


def test_of_all_studies_those_over_nodes_that_have_no_names_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("question: How?\n")
    (tmp_path / "b.yaml").write_text(f"question: How?\n{EACH}\n")
    nameless = FOUR.model_copy(update={"hosts": ()})
    found = find_studies(None, "paper", nameless, folder=tmp_path, machine_name="lab")
    assert ([study.name for study in found.studies], found.wrong) == (["a"], {})
    asked = find_studies(["b"], "paper", nameless, folder=tmp_path, machine_name="lab")
    assert str(asked.wrong["b"]).startswith(
        'config/machines/lab.yaml: machine `lab` does not name its nodes\n    add `hosts: ["node[01-16]"]`'
    )


def test_a_word_for_nodes_means_nothing_in_another_key() -> None:
    with pytest.raises(
        UserError, match=r"s\.yaml:2: vary\.model: `each` stands for nodes by name, and `model` has none"
    ):
        made("vary: {model: each}")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ({"hosts": ["a", "a"]}, "names `a` twice"),
        ({"hosts": ["a", "localhost"], "ranks": 2}, "`localhost` is the host where the command is started, and cannot be combined"),
        ({"hosts": ["a"], "nodes": 2, "ranks": 2}, "1 host is named, and `nodes` is 2"),
        ({"hosts": ["a", "b"], "ranks": 3}, "3 ranks cannot be divided equally among 2 nodes"),
        ({"hosts": ["a", "b"], "ranks": 4, "ranks_per_node": 4}, "2 nodes of 4 ranks are not 4 ranks"),
        ({"hosts": ["a"], "network": {"mib_per_s": 10}}, "an emulated network has no hosts to be named"),
    ],
)  # fmt: skip
def test_names_that_do_not_go_with_the_rest_of_a_run_are_refused(data: dict[str, object], what: str) -> None:
    run, wrong = parse(RunSpec, {"strategy": "allreduce", **data})
    assert run is not None, wrong
    assert any(problem.what.startswith(what) for problem in run_problems(run)), list(run_problems(run))


@pytest.mark.parametrize("name", ["", "-a", "a b", "a;b", "a,b", "node[1-2]", "ä"])
def test_what_is_no_name_of_a_host_is_refused(name: str) -> None:
    _, wrong = parse(RunSpec, {"hosts": [name]})
    assert [problem.what for problem in wrong] == [f"must be the name of a host, not `{name}`"]


@pytest.mark.parametrize(
    ("hosts", "what"),
    [
        (["node[3-1]"], "`3-1` is not a range of numbers such as 01-16"),
        (["node[1-999999999]"], "`1-999999999` is not a range of numbers such as 01-16"),
        (["n[1-1000]x[1-1000]"], "`n[1-1000]x[1-1000]` names more than 100,000 nodes"),
        (["node[1-3]", "node2"], "the host `node2` is named twice"),
        (["-node"], "must be the name of a host, or of several such as `node[01-16]`, not `-node`"),
    ],
)
def test_a_machine_whose_names_are_wrong_is_answered_with_a_sentence(hosts: list[str], what: str) -> None:
    _, wrong = parse(Machine, {"hosts": hosts})
    assert [problem.what for problem in wrong] == [what]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["node1", "node2", "node3", "login"], ["node[1-3]", "login"]),
        (["n08", "n09", "n10", "n12"], ["n[08-10]", "n12"]),
        (["n9", "n10"], ["n[9-10]"]),
        (["n1", "n02"], ["n1", "n02"]),
        (["r1n1-ib", "r1n2-ib", "r2n1-ib"], ["r1n[1-2]-ib", "r2n1-ib"]),
        (["a", "b"], ["a", "b"]),
    ],
)
def test_names_are_folded_into_ranges_that_unfold_to_the_same(names: Sequence[str], text: Sequence[str]) -> None:
    assert folded(names) == text
    assert slurm_hosts(",".join(text)) == list(names)


def test_a_domain_is_no_part_of_a_short_name_and_an_address_has_none() -> None:
    assert [short(host) for host in ("n1.site.org", "n1", "10.0.0.1", "fe80::1")] == ["n1", "n1", "10.0.0.1", "fe80::1"]


def test_a_job_asks_for_the_nodes_that_its_run_names_and_this_host_is_none_to_ask_for() -> None:
    planner = Planner("lab", FOUR)
    pair = made(EACH.replace("each", "pairs")).runs[0]
    assert (planner.of(pair)[0].hosts, planner.of(pair)[0].nodes) == ("node1,node2", 2)
    assert Planner("lab", ONE).of(made(EACH, ONE).runs[0])[0].hosts is None
