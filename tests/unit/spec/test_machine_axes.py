"""Axes that a machine sets, its nodes by name, and runs that exceed it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.errors import UserError
from scalestudy.hardware import Accelerators, Device
from scalestudy.spec.base import parse
from scalestudy.spec.columns import columns_of
from scalestudy.spec.hostlist import places, slurm_hosts
from scalestudy.spec.ids import run_id
from scalestudy.spec.machine import Machine, geometry
from scalestudy.spec.read_study import find_studies
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study import Study
from tests.unit.spec.test_study import made as expanded

FOUR = Machine(nodes=4, hosts=("node[1-3]", "spare"), devices_per_node=2, device="cuda", memory_gib=16.0)
ONE = Machine(devices_per_node=2, device="cuda", memory_gib=16.0)
EACH = "base: {strategy: allreduce}\nvary: {nodes: each}"
PAIRS = EACH.replace("each", "pairs")
RANKS = "base: {strategy: allreduce}\nvary: {ranks: {to: machine}}"


def with_devices(count: int, nodes: int = 1) -> Machine:
    """A machine of GPUs with four cores for each of them."""
    return Machine(nodes=nodes, devices_per_node=count, device="cuda", cores_per_node=4 * count, memory_gib=16.0)


def made(text: str, machine: Machine = FOUR, changes: dict[str, object] | None = None) -> Study:
    return expanded(text, machine=machine, changes=changes)


def values(study: Study, key: str) -> list[object]:
    return [columns_of(run.spec)[key] for run in study.runs if run.spec.repeat == 0]


THREE = with_devices(4, nodes=3)
LIMITED = THREE.model_copy(update={"limits": THREE.limits.model_copy(update={"most_nodes": 2})})
WIDE = THREE.model_copy(update={"nodes": 4, "devices_per_node": 12})
SHARED = "base: {strategy: allreduce, launch: {oversubscribe: true}}\nvary: {ranks: [1, 2]}"


@pytest.mark.parametrize(
    ("text", "machine", "key", "numbers"),
    [
        (RANKS, with_devices(4), "ranks", [1, 2, 4]),
        (RANKS, THREE, "ranks", [1, 2, 4, 8, 12]),
        (RANKS, LIMITED, "ranks", [1, 2, 4, 8]),
        (RANKS.replace("machine", "node"), THREE, "ranks", [1, 2, 4]),
        ("base: {strategy: allreduce, ranks: 12}\nvary: {nodes: {to: machine}}", WIDE, "nodes", [1, 2, 4]),
        ("vary: {loader.workers: {to: node}}", with_devices(2), "loader.workers", [1, 2, 4, 8]),
        ("vary: {loader.workers: [1, 64]}", with_devices(1), "loader.workers", [1, 64]),
        (SHARED, with_devices(1), "ranks", [1, 2]),
    ],
)
def test_an_axis_ends_with_what_the_machine_has(text: str, machine: Machine, key: str, numbers: list[object]) -> None:
    assert values(made(text, machine), key) == numbers


def test_ranks_that_compute_on_cores_are_as_many_as_these(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalestudy.spec.machine_axes.accelerators", lambda: Accelerators("", (), "a stand-in"))
    on_cpu = "base: {strategy: allreduce, device: cpu}\nvary: {ranks: {to: machine}}"
    assert values(made(on_cpu, with_devices(2)), "ranks") == [1, 2, 4, 8]
    assert values(made(RANKS, Machine(cores_per_node=3)), "ranks") == [1, 2, 3]
    with pytest.raises(UserError, match="no accelerator is known of it, or found here"):
        made(RANKS, Machine(device="cuda"))
    assert values(made(RANKS, Machine(device="cuda", cores_per_node=3), {"device": "cpu"}), "ranks") == [1, 2, 3]
    two = Accelerators("cuda", (Device("Stand-in GPU", 1 << 34, None),) * 2, "a stand-in")
    monkeypatch.setattr("scalestudy.spec.machine_axes.accelerators", lambda: two)
    assert values(made(RANKS, Machine(cores_per_node=16)), "ranks") == [1, 2]


@pytest.mark.parametrize(
    ("text", "machine", "ranks", "left_out"),
    [
        ("base: {strategy: allreduce, ranks_per_node: 4}\nvary: {ranks: [1, 4]}\nrepeats: 3", with_devices(1), [1],
         "3 runs: 4 ranks on a node need as many devices; machine `lab` has 1 on each"),
        ("base: {strategy: allreduce, batch: {global: 64}}\nvary: {ranks: {to: machine}}", with_devices(6), [1, 2, 4],
         "1 run: 64 samples cannot be divided equally among 6 ranks"),
    ],
)  # fmt: skip
def test_runs_that_exceed_the_machine_are_left_out_with_a_sentence(
    text: str, machine: Machine, ranks: list[object], left_out: str
) -> None:
    study = made(text, machine)
    assert (values(study, "ranks"), study.left_out) == (ranks, (left_out,))


CLAIM = """
vary: {ranks: {to: machine}, strategy: [allreduce, ring]}
repeats: 3
claims:
- {id: a, statement: S., source: W, place: P, kind: direction, column: throughput_samples_per_s, above: 1, margin_reason: M,
   where: {strategy: ring}, of: OF, against: {ranks: 1}}
"""


@pytest.mark.parametrize(("of", "devices"), [("{ranks: 8}", 2), ("{ranks: {to: machine}}", 1)])
def test_a_claim_without_runs_on_this_machine_is_no_error(of: str, devices: int) -> None:
    at_machine = made(CLAIM.replace("OF", "{ranks: {to: machine}}"), with_devices(4))
    assert at_machine.claims[0].of == {"ranks": 4}  # type: ignore[union-attr]
    claim = made(CLAIM.replace("OF", of), with_devices(devices)).claims[0]
    assert (claim.scales, claim.not_testable) == (("mini", "node", "paper"), None)


PARTS = """
base: {{strategy: allreduce}}
vary: {{ranks: {{to: node}}, batch.per_rank: [8]}}
exclude: [{{ranks: 1}}]
include: [{{ranks: 1, batch.per_rank: 16}}]
figures: [{{kind: staleness, where: {where}}}, {{kind: efficiency}}]
tables: [{{name: one, values: [loss], where: {where}}}]
answers: [{{say: "The loss is {{loss}}.", numbers: {{loss: {{column: loss, where: {where}}}}}}}]
claims:
- {{id: a, statement: S., source: W, place: P, kind: direction, column: loss, above: 1, margin_reason: M, of: {where}}}
"""


@pytest.mark.parametrize("where", ["{batch.per_rank: 8}", "{batch.per_rank: 8, ranks: 2}"])
def test_parts_of_a_study_without_runs_on_this_machine_are_left_out_with_a_sentence(where: str) -> None:
    study = made(PARTS.format(where=where), with_devices(1))
    assert ([each.kind for each in study.figures], study.tables, study.answers) == (["efficiency"], (), ())
    reason = "no run of this study has `batch.per_rank` `8`"
    parts = ("figure `staleness`", "table `one`", "“The loss is …”", "claim `a`")
    assert study.left_out == tuple(f"{part}: {reason}" for part in parts)
    assert study.claims[0].id == "a"
    whole = made(PARTS.format(where=where), with_devices(2))
    assert (len(whole.figures), len(whole.tables), len(whole.answers), whole.left_out) == (2, 1, 1, ())


def test_a_key_that_no_run_has_is_an_error_also_where_this_machine_lacks_runs() -> None:
    with pytest.raises(UserError, match=r"figures\[0\].where.batch.per_rnk: no run of this study has a column"):
        made(PARTS.format(where="{batch.per_rnk: 8}"), with_devices(1))
    runs, (answers, *claims) = PARTS.partition("figures:")[0], PARTS.splitlines(keepends=True)[-3:]
    for part, place in ((answers, "answers[0].numbers.loss.where"), ("".join(claims), "claims[0].of")):
        with pytest.raises(UserError) as raised:
            made((runs + part).format(where="{batch.per_rnk: 8}"), with_devices(1))
        assert f"{place}.batch.per_rnk: no run of this study has a key `batch.per_rnk`" in str(raised.value)


def test_a_slope_over_one_value_that_this_machine_has_is_no_error() -> None:
    text = CLAIM.replace("OF, against: {ranks: 1}", "{}, over: ranks").replace("above: 1", "above: 0.5")
    assert made(text, with_devices(1)).claims[0].id == "a"


def test_each_node_is_a_run_that_fills_it_and_pairs_are_every_two() -> None:
    study = made(EACH)
    assert values(study, "hosts") == ["node1", "node2", "node3", "spare"]
    assert (set(values(study, "nodes")), set(values(study, "ranks")), study.varied) == ({1}, {2}, ("hosts",))
    assert values(made(PAIRS), "hosts") == [
        "node1 node2", "node1 node3", "node1 spare", "node2 node3", "node2 spare", "node3 spare",
    ]  # fmt: skip
    assert set(values(made(PAIRS), "ranks")) == {4}


def test_a_key_that_the_machine_sets_has_the_place_of_its_combination() -> None:
    with pytest.raises(UserError, match=r"s\.yaml:2: vary: strategy `single` has at most 1 rank, not 2"):
        made("vary: {nodes: each}")


def test_a_node_can_be_excluded_and_one_alone_be_measured_again() -> None:
    assert values(made(f"{EACH}\nexclude:\n- {{hosts: spare}}"), "hosts") == ["node1", "node2", "node3"]
    again = made(EACH, changes={"hosts": "node2"})
    assert [run.id for run in again.runs] == [made(EACH).runs[1].id]


def test_the_node_is_in_the_id_and_the_ids_of_the_others_do_not_depend_on_it() -> None:
    ids = [run.id for run in made(EACH).runs]
    assert ids[0].startswith("small_cnn.digits.allreduce.x2.at_node1.r0-")
    fewer = made(EACH, FOUR.model_copy(update={"hosts": ("node1", "node2"), "nodes": 2}))
    assert [run.id for run in fewer.runs] == ids[:2]
    run, _ = parse(RunSpec, {"hosts": "node1", "ranks": 2, "strategy": "allreduce"})
    assert run is not None and run_id(run) == ids[0]


def test_a_machine_of_one_node_is_this_host_and_has_no_pair() -> None:
    study = made(f"{EACH}\ninclude:\n- {{nodes: pairs}}", ONE)
    assert (values(study, "hosts"), values(study, "ranks")) == (["localhost"], [2])
    assert study.left_out == ("`nodes: pairs` needs two nodes, and machine `lab` has one",)
    assert geometry(study.runs[0].spec, ONE) == (1, 2)
    with pytest.raises(UserError, match="`nodes: pairs` needs two nodes, and machine `lab` has one"):
        made(PAIRS, ONE)


def test_of_all_studies_those_over_nodes_without_names_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("question: How?\n")
    (tmp_path / "b.yaml").write_text(f"question: How?\n{EACH}\n")
    nameless = FOUR.model_copy(update={"hosts": ()})
    found = find_studies(None, "paper", nameless, folder=tmp_path, machine_name="lab")
    assert ([study.name for study in found.studies], found.wrong) == (["a"], {})
    asked = find_studies(["b"], "paper", nameless, folder=tmp_path, machine_name="lab+night")
    assert str(asked.wrong["b"]).startswith("config/machines/lab.yaml: machine `lab+night` does not name its nodes")


@pytest.mark.parametrize(
    ("hosts", "what"),
    [
        (["node[3-1]"], "`3-1` is not a range of numbers such as 01-16"),
        (["node[01-16"], "`node[01-16` has a bracket without its other one"),
        (["n[1-1000]x[1-1000]"], "`n[1-1000]x[1-1000]` names more than 100,000 nodes"),
        (["node[1-3]", "node2"], "the host `node2` is named twice"),
    ],
)
def test_wrong_names_in_a_machine_file_are_answered_with_a_sentence(hosts: list[str], what: str) -> None:
    assert [problem.what for problem in parse(Machine, {"hosts": hosts})[1]] == [what]


def test_ranges_of_names_are_unfolded_as_slurm_writes_them() -> None:
    assert slurm_hosts("node[1-2,07],n[08-10],r[1-2]n1,login") == [
        "node1", "node2", "node07", "n08", "n09", "n10", "r1n1", "r2n1", "login",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "hosts", "found"),
    [
        (["n1", "n2"], ["n2.site.org", "n1.site.org"], [1, 0]),
        (["c1.rack1", "c1.rack2"], ["c1.rack1", "c1.rack2"], [0, 1]),
        (["c1"], ["c1.rack1", "c1.rack2"], [None]),
        (["10.0.0.1", "fe80::1"], ["10.0.0.2", "fe80::1"], [None, 1]),
    ],
)
def test_hosts_are_told_apart_by_their_whole_names(names: list[str], hosts: list[str], found: list[int | None]) -> None:
    assert places(names, hosts) == found
