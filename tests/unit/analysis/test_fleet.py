"""Nodes held against each other, from made numbers: what is slow, what failed, what cannot be told."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from scalestudy.analysis.fleet import Fleet, fleet_of, median_without
from scalestudy.errors import UserError
from scalestudy.report.acceptance import ACCEPTED, NOT_ACCEPTED, OPEN, as_csv, as_page, headline, status_of, unlike
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.study import Run, Study

STUDY = """
question: Is each node as it should be?
base: {{strategy: allreduce, ranks_per_node: 2}}
{vary}
repeats: 5
fleet: {{margin: 0.05, margin_reason: nodes differ by so much}}
"""
EACH = "vary: {nodes: each}"
PAIRS = "vary: {nodes: pairs}"
BOTH = "vary: {nodes: each}\ninclude: [{nodes: neighbours, model: mlp}]"
Numbers = Callable[[Run], Mapping[str, Any]]


def study(folder: Path, vary: str = EACH, hosts: tuple[str, ...] = ("n[1-6]",)) -> Study:
    (folder / "s.yaml").write_text(STUDY.format(vary=vary), encoding="utf-8")
    machine = Machine(hosts=hosts, devices_per_node=2, memory_gib=16.0)
    return read_studies(["s"], "paper", machine, folder=folder)[0]


def judged(found: Study, numbers: Numbers) -> Fleet:
    """The fleet where all runs go at about the same speed, but for what `numbers` say."""
    noise = random.Random(7)
    rows = []
    for run in found.runs:
        round_s = 1 + 0.2 * run.spec.repeat  # what a whole round has in common is no matter
        row = {
            "run": run.id, "status": "valid", "reason": "", "round": run.spec.repeat, "started": "2026-05-01T10:00:00",
            "throughput_samples_per_s": round_s * 1000 * math.exp(noise.gauss(0, 0.005)),
        }  # fmt: skip
        change = dict(numbers(run))
        row["throughput_samples_per_s"] *= change.pop("speed", 1.0)
        rows.append(row | change)
    return fleet_of(found, rows)


def slow(*hosts: str, speed: float = 0.8) -> Numbers:
    return lambda run: {"speed": speed} if set(hosts) & set(run.spec.hosts or ()) else {}


def verdicts(fleet: Fleet) -> dict[str, str]:
    return {" ".join(each.unit.hosts): each.change.verdict for each in fleet.standings}


def test_nodes_that_are_alike_are_accepted(tmp_path: Path) -> None:
    fleet = judged(study(tmp_path), lambda _: {})
    assert set(verdicts(fleet).values()) == {"same"}
    assert (fleet.drain(), fleet.suspects()) == ({}, [])
    assert status_of(fleet, []) == ACCEPTED
    assert headline(fleet, [], "lab") == "Accepted: lab, 6 nodes"


def test_a_slow_node_is_to_be_drained_with_its_interval_and_no_other_looks_slow_or_fast(tmp_path: Path) -> None:
    fleet = judged(study(tmp_path), slow("n3"))
    assert verdicts(fleet) == {"n1": "same", "n2": "same", "n3": "slower", "n4": "same", "n5": "same", "n6": "same"}
    (reasons,) = fleet.drain().values()
    assert list(fleet.drain()) == ["n3"]
    assert reasons[0].startswith("slower than the others: speed -19.8 % [-20.")  # 0.8, with noise of 0.5 %
    assert status_of(fleet, []) == NOT_ACCEPTED


def test_two_slow_nodes_of_six_do_not_hide_each_other(tmp_path: Path) -> None:
    assert list(judged(study(tmp_path), slow("n3", "n4")).drain()) == ["n3", "n4"]


def test_a_node_within_the_margin_is_not_drained(tmp_path: Path) -> None:
    fleet = judged(study(tmp_path), slow("n3", speed=0.97))
    assert fleet.drain() == {}


def test_a_node_that_is_slow_in_some_rounds_only_is_undecided_rather_than_drained(tmp_path: Path) -> None:
    fleet = judged(
        study(tmp_path), lambda run: {"speed": 0.6} if run.spec.hosts == ("n2",) and run.spec.repeat == 1 else {}
    )
    assert verdicts(fleet)["n2"] == "undecided"
    assert (fleet.drain(), status_of(fleet, [])) == ({}, OPEN)


def test_a_lower_time_is_a_higher_speed(tmp_path: Path) -> None:
    found = study(tmp_path)
    assert found.fleet is not None
    timed = replace(found, fleet=found.fleet.model_copy(update={"column": "step_time_s"}))
    fleet = judged(
        timed, lambda run: {"step_time_s": (1.3 if run.spec.hosts == ("n1",) else 1.0) + 0.001 * run.spec.repeat}
    )
    assert list(fleet.drain()) == ["n1"]


def test_a_node_on_which_a_run_failed_where_others_did_not_is_to_be_drained(tmp_path: Path) -> None:
    def numbers(run: Run) -> dict[str, Any]:
        if run.spec.hosts == ("n2",) and run.spec.repeat == 4:
            return {"status": "missing", "reason": "failed: rank 1 was killed by signal 7"}
        return {"status": "invalid", "reason": "the loss is not finite"} if run.spec.hosts == ("n5",) else {}

    fleet = judged(study(tmp_path), numbers)
    assert fleet.drain() == {
        "n2": ["a run failed: rank 1 was killed by signal 7"],
        "n5": ["a run is invalid: the loss is not finite"],
    }


def test_what_fails_on_every_node_is_the_fault_of_none(tmp_path: Path) -> None:
    fleet = judged(study(tmp_path), lambda _: {"status": "skipped", "reason": "no C++ compiler"})
    assert fleet.drain() == {}
    assert {each.change.reason for each in fleet.standings} == {"no valid run"}


def test_a_run_that_was_not_made_yet_is_no_failure_and_leaves_the_answer_open(tmp_path: Path) -> None:
    fleet = judged(
        study(tmp_path),
        lambda run: {"status": "missing", "reason": "no result yet"} if run.spec.hosts == ("n6",) else {},
    )
    assert (fleet.drain(), fleet.incomplete(), status_of(fleet, [])) == ({}, {"n6": 5}, OPEN)
    assert headline(fleet, [], "lab") == "Open: lab, 6 nodes, 5 runs still to be made"


def test_memory_errors_and_rows_that_are_not_remapped_are_reasons_and_corrected_ones_are_not(tmp_path: Path) -> None:
    counted = {
        "n1": {
            "memory_errors_corrected": 9.0,
            "memory_errors_uncorrected": 0.0,
            "remap_faults": 0.0,
            "remapped_rows": 2.0,
        },
        "n2": {
            "memory_errors_corrected": 0.0,
            "memory_errors_uncorrected": 3.0,
            "remap_faults": 1.0,
            "remapped_rows": 1.0,
        },
    }
    fleet = judged(study(tmp_path), lambda run: counted.get((run.spec.hosts or ("",))[0], {"remapped_rows": None}))
    assert fleet.drain() == {
        "n2": [
            "memory errors that could not be corrected: 3",
            "accelerators with rows of memory that are not remapped: 1",
        ]
    }
    assert fleet.counted["n1"]["remapped_rows"] == 2
    assert "n3" not in fleet.counted


def test_two_nodes_cannot_be_told_apart(tmp_path: Path) -> None:
    fleet = judged(study(tmp_path, hosts=("a", "b")), slow("a"))
    assert {each.change.reason for each in fleet.standings} == {"3 are needed for a comparison, and there are 2"}
    assert (fleet.drain(), status_of(fleet, [])) == ({}, OPEN)


def test_a_node_all_of_whose_pairs_are_slow_is_to_be_drained_and_its_partners_are_not(tmp_path: Path) -> None:
    fleet = judged(study(tmp_path, PAIRS), slow("n4"))
    assert fleet.drain() == {"n4": ["all 5 pairs with it are slower than the others or failed"]}
    assert fleet.suspects() == []


def test_one_slow_pair_of_nodes_that_are_well_with_others_is_what_lies_between_them(tmp_path: Path) -> None:
    fleet = judged(study(tmp_path, PAIRS), lambda run: {"speed": 0.7} if run.spec.hosts == ("n1", "n2") else {})
    assert fleet.drain() == {}
    assert [each.unit.name for each in fleet.suspects()] == ["n1 – n2"]
    assert status_of(fleet, []) == NOT_ACCEPTED


def test_a_missed_agreed_value_is_not_accepted_and_an_undecided_one_is_open(tmp_path: Path) -> None:
    fleet = judged(study(tmp_path), lambda _: {})
    assert status_of(fleet, [{"verdict": "reproduced"}]) == ACCEPTED
    assert status_of(fleet, [{"verdict": "not reproduced"}]) == NOT_ACCEPTED
    assert status_of(fleet, [{"verdict": "inconclusive"}]) == OPEN


def test_a_study_without_nodes_by_name_or_without_a_margin_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run of the study names its nodes"):
        judged(study(tmp_path, "vary: {ranks: [1, 2]}"), lambda _: {})
    (tmp_path / "s.yaml").write_text(f"question: How?\nbase: {{strategy: allreduce}}\n{EACH}\n", encoding="utf-8")
    found = read_studies(["s"], "paper", Machine(hosts=("a", "b"), devices_per_node=1), folder=tmp_path)[0]
    with pytest.raises(UserError, match="the study does not say when a node counts as slow"):
        fleet_of(found, [])


def test_nodes_that_differ_in_what_was_found_on_them_are_named(tmp_path: Path) -> None:
    fleet = judged(
        study(tmp_path),
        lambda run: {
            "instrument.system": "Linux 6.1" if run.spec.hosts == ("n2",) else "Linux 5.14",
            "instrument.cpu": "x",
        },
    )
    assert unlike(fleet) == ["system: Linux 6.1 on n2, Linux 5.14 on most others"]


def test_the_page_and_the_table_hold_every_node_and_pair_and_escape_what_they_quote(tmp_path: Path) -> None:
    def numbers(run: Run) -> dict[str, Any]:
        if run.spec.hosts == ("n2",):
            return {"status": "invalid", "reason": "<b>bold</b>"}
        return dict(slow("n3")(run))

    fleet = judged(study(tmp_path, BOTH), numbers)
    claims = [
        {"verdict": "not reproduced", "statement": "Each node reaches 9,000.", "sentence": "Not reproduced: 1,000"}
    ]
    page = as_page(fleet, claims, "lab")
    assert page.count('<th scope="row">n') == 12
    assert "&lt;b&gt;bold&lt;/b&gt;" in page and "<b>bold" not in page
    assert "<strong>missed</strong>" in page and "Each node reaches 9,000." in page
    assert "n3 – n4" in page
    lines = as_csv(fleet).splitlines()
    assert len(lines) == 13
    assert [line for line in lines if ",n3,slower," in line and ",True," in line]


@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_the_median_without_one_value_is_that_of_the_rest(count: int) -> None:
    chance = random.Random(count)
    ordered = sorted(round(chance.random(), 1) for _ in range(count))
    for index, value in enumerate(ordered):
        rest = [*ordered[:index], *ordered[index + 1 :]]
        assert median_without(ordered, value) == pytest.approx(median(rest))
