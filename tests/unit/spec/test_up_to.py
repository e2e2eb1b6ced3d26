"""`{to: machine}`: as many as the machine has; what a study names beyond it is left out, and said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalestudy.errors import UserError
from scalestudy.hardware import Accelerators, Device
from scalestudy.spec.beyond import left_out_of
from scalestudy.spec.columns import columns_of
from scalestudy.spec.config import checked
from scalestudy.spec.expand_study import expand
from scalestudy.spec.machine import Machine
from scalestudy.spec.study import Study, StudySpec
from scalestudy.spec.up_to import powers_of_two
from scalestudy.spec.yamlfile import parse_yaml


def with_devices(count: int, nodes: int = 1) -> Machine:
    """A machine of GPUs with four cores for each of them."""
    return Machine(nodes=nodes, devices_per_node=count, device="cuda", cores_per_node=4 * count, memory_gib=16.0)


def made(text: str, machine: Machine, scale: str = "paper") -> Study:
    document = parse_yaml(f"question: How?\n{text}", "s.yaml")
    return expand(document, checked(StudySpec, document), "s", scale, machine, "lab")


def values(study: Study, key: str) -> list[object]:
    return [columns_of(run.spec)[key] for run in study.rounds()[0]]


@pytest.mark.parametrize(
    ("end", "found"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_powers_of_two_end_with_the_end(end: int, found: list[int]) -> None:
    assert powers_of_two(end) == found


RANKS = "base: {strategy: allreduce}\nvary: {ranks: {to: machine}}"


@pytest.mark.parametrize(("devices", "ranks"), [(1, [1]), (2, [1, 2]), (8, [1, 2, 4, 8])])
def test_ranks_are_as_many_as_the_machine_has_devices(devices: int, ranks: list[int]) -> None:
    study = made(RANKS, with_devices(devices))
    assert values(study, "ranks") == ranks
    assert study.left_out == ()
    assert study.varied == ("ranks",)


def test_ids_are_those_of_the_numbers_themselves() -> None:
    by_hand = made("base: {strategy: allreduce}\nvary: {ranks: [1, 2, 4]}", with_devices(4))
    assert [run.id for run in made(RANKS, with_devices(4)).runs] == [run.id for run in by_hand.runs]


def test_a_machine_of_several_nodes_has_the_devices_of_all_and_a_node_its_own() -> None:
    machine = with_devices(4, nodes=3)
    assert values(made(RANKS, machine), "ranks") == [1, 2, 4, 8, 12]
    assert values(made(RANKS.replace("machine", "node"), machine), "ranks") == [1, 2, 4]
    nodes = "base: {strategy: allreduce, ranks: 12}\nvary: {nodes: {to: machine}}"
    assert values(made(nodes, machine.model_copy(update={"nodes": 4, "devices_per_node": 12})), "nodes") == [1, 2, 4]


def test_a_limit_of_jobs_ends_the_axis() -> None:
    machine = with_devices(4, nodes=100).model_copy(
        update={"limits": with_devices(1).limits.model_copy(update={"most_nodes": 2})}
    )
    assert values(made(RANKS, machine), "ranks") == [1, 2, 4, 8]


def test_where_the_machine_does_not_say_what_is_found_here_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Accelerators("cuda", (Device("Stand-in GPU", 1 << 34, None),) * 2, "a stand-in")
    monkeypatch.setattr("scalestudy.spec.up_to.accelerators", lambda: two)
    assert values(made(RANKS, Machine(cores_per_node=16)), "ranks") == [1, 2]


def test_ranks_that_compute_on_cores_are_as_many_as_these(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Accelerators("", (), "a stand-in")
    monkeypatch.setattr("scalestudy.spec.up_to.accelerators", lambda: nothing)
    on_cpu = "base: {strategy: allreduce, device: cpu}\nvary: {ranks: {to: machine}}"
    assert values(made(on_cpu, with_devices(2)), "ranks") == [1, 2, 4, 8]
    assert values(made(RANKS, Machine(cores_per_node=3)), "ranks") == [1, 2, 3]
    with pytest.raises(UserError, match="no accelerator is known of it, or found here"):
        made(RANKS, Machine(device="cuda"))


def test_workers_are_one_per_core_and_no_more_with_several_ranks() -> None:
    study = made(
        "base: {strategy: allreduce}\nvary: {ranks: {to: machine}, loader.workers: {to: node}}", with_devices(2)
    )
    found = [(run.spec.ranks, run.spec.loader.workers) for run in study.runs]
    assert found == [(1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4)]
    assert study.left_out == (
        "1 run: 8 workers for each of 2 ranks on a node are more than the 8 cores of machine `lab`",
    )


def test_more_workers_than_cores_that_a_study_names_are_its_question() -> None:
    study = made("vary: {loader.workers: [1, 64]}", with_devices(1))
    assert values(study, "loader.workers") == [1, 64]


def test_what_a_study_names_beyond_the_machine_is_left_out_and_said() -> None:
    text = "base: {strategy: allreduce, ranks_per_node: 4}\nvary: {ranks: [1, 4]}\nrepeats: 3"
    study = made(text, with_devices(1))
    assert values(study, "ranks") == [1]
    assert study.left_out == ("3 runs: 4 ranks on a node need as many devices; machine `lab` has 1 on each",)
    assert made(text, with_devices(4)).left_out == ()


def test_a_number_of_the_machine_that_does_not_divide_the_batch_is_left_out_and_one_of_the_study_is_wrong() -> None:
    text = "base: {strategy: allreduce, batch: {global: 64}}\nvary: {ranks: {to: machine}}"
    study = made(text, with_devices(6))
    assert values(study, "ranks") == [1, 2, 4]
    assert study.left_out == ("1 run: 64 samples cannot be divided equally among 6 ranks",)
    with pytest.raises(UserError, match="64 samples cannot be divided equally among 6 ranks"):
        made(text.replace("{to: machine}", "[1, 6]"), with_devices(6))


def test_a_mistake_in_every_run_is_not_taken_for_a_small_machine() -> None:
    with pytest.raises(UserError, match="`compression`"):
        made("base: {strategy: {name: ring, compression: fp16}}\nvary: {ranks: {to: machine}}", with_devices(2))


def test_ranks_that_may_share_devices_are_not_left_out() -> None:
    text = "base: {strategy: allreduce, launch: {oversubscribe: true}}\nvary: {ranks: [1, 2]}"
    assert values(made(text, with_devices(1)), "ranks") == [1, 2]


CLAIM = """
vary: {ranks: {to: machine}, strategy: [allreduce, ring]}
repeats: 3
claims:
- {id: a, statement: S., source: W, place: P, kind: direction, column: throughput_samples_per_s, above: 1, margin_reason: M,
   where: WHERE, of: OF, against: AGAINST}
"""


def claimed(devices: int, where: str, of: str, against: str) -> Study:
    return made(CLAIM.replace("WHERE", where).replace("OF", of).replace("AGAINST", against), with_devices(devices))


def test_a_claim_at_more_ranks_than_there_are_is_not_testable_here() -> None:
    sides = ("{strategy: ring}", "{ranks: 8}", "{ranks: 1}")
    assert claimed(8, *sides).claims[0].scales == ("mini", "node", "paper")
    claim = claimed(2, *sides).claims[0]
    assert claim.scales == ("mini", "node")
    assert claim.not_testable == "needs `ranks` 8, and machine `lab` has 2 devices"


def test_a_claim_at_as_many_as_the_machine_has_is_about_that_number() -> None:
    sides = ("{strategy: ring}", "{ranks: {to: machine}}", "{ranks: 1}")
    claim = claimed(4, *sides).claims[0]
    assert (claim.scales, claim.of) == (("mini", "node", "paper"), {"ranks": 4})  # type: ignore[union-attr]
    alone = claimed(1, *sides).claims[0]
    assert alone.not_testable == "needs more than one of `ranks`, and machine `lab` has 1 device"


def test_a_claim_that_compares_something_else_is_judged_on_one_device_too() -> None:
    claim = claimed(1, "{ranks: {to: machine}}", "{strategy: ring}", "{strategy: allreduce}").claims[0]
    assert claim.scales == ("mini", "node", "paper")
    assert claim.where == {"ranks": 1}


def test_a_claim_about_a_number_that_no_machine_would_have_is_wrong() -> None:
    with pytest.raises(UserError, match="no run of this study has `ranks` `3`"):
        claimed(8, "{strategy: ring}", "{ranks: 3}", "{ranks: 1}")


def test_what_many_studies_leave_out_is_one_line_and_what_one_leaves_out_a_line_each() -> None:
    study = made("base: {strategy: allreduce}\nvary: {ranks: [1, 2, 4, 8, 16]}\n", with_devices(1))
    other, whole = replace(study, name="t"), replace(study, name="u", left_out=())
    assert len(study.left_out) == 4
    assert left_out_of([study, whole]) == [f"s: {said}" for said in study.left_out]
    assert left_out_of([study, other, whole]) == [
        "parts of s, t: they need more than the machine has; `scalestudy plan STUDY` says which"
    ]
    few = replace(study, left_out=study.left_out[:1])
    assert left_out_of([few, replace(few, name="t")]) == [f"s: {study.left_out[0]}", f"t: {study.left_out[0]}"]
