"""Formulas by which sites charge: arithmetic, and nothing else."""

from __future__ import annotations

import pytest

from scalestudy.spec.base import parse
from scalestudy.spec.charge import charge
from scalestudy.spec.machine import Prices

VALUES = {"used_s": 100.0, "requested_s": 3600.0, "nodes": 2, "gpus": 8, "cores": 56}
TSUBAME = "0.7 * max(used_s, 300) + 0.1 * requested_s"


def test_a_formula_is_worked_out_over_named_values() -> None:
    assert charge(TSUBAME, VALUES) == pytest.approx(570.0)
    assert charge("gpus * ceil(used_s / 60) / 60", VALUES) == pytest.approx(8 * 2 / 60)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "used_s.__class__",
        "(lambda: 1)()",
        "[1 for _ in nodes]",
        "open('x')",
        "9 ** 9 ** 9",
        "'a' * 9",
        "True + 1",
        "max(*gpus)",
        "max(used_s)",
        "unknown_s + 1",
        "used_s if gpus else 1",
        "1 +",
        "1 / 0",
        "-used_s",
        "used_s / gpus",
        "(" * 300 + "1" + ")" * 300,
        "1 + " * 400 + "1",
    ],
)
def test_anything_but_arithmetic_is_refused_when_the_machine_file_is_read(text: str) -> None:
    prices, problems = parse(Prices, {"currency": "points", "charge": text})
    assert prices is None
    assert problems[0].path == ("charge",)


def test_a_formula_of_a_site_is_taken() -> None:
    prices, problems = parse(Prices, {"currency": "points", "charge": TSUBAME, "factors": {"large": 2}})
    assert not problems
    assert prices is not None and prices.charge == TSUBAME
