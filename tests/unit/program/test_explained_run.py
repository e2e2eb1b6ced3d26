"""`scalestudy explain RUN`: the parts of a step that a finished run has measured itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scalestudy.cli import cli
from scalestudy.files import write_json
from scalestudy.spec.layout import result_file

RUN = "made.r0-0123456789ab"
PHASES = {
    "data_s": 0.03,
    "convert_s": 0.0,
    "forward_s": 0.02,
    "backward_s": 0.04,
    "exchange_s": 0.01,
    "optimiser_s": 0.0,
}


OWN = {
    "run": RUN, "status": "valid", "spec": {"ranks": 2},
    "metrics": {"step_time_s": 0.1, **PHASES, "exposed_exchange_s": 0.008},
    "intervals": {"exposed_exchange_s": [0.006, 0.01]},
}  # fmt: skip
OVERLAPPED = {"compute_s": 0.07, "forward_s": 0.02, "backward_s": None, "exchange_s": None, "exposed_exchange_s": None}
UNTOLD = {"step_time_s": 0.1, "exposed_exchange_s": 0.0005}
PROGRAM = {"program": {"command": "x"}}


def explained(result: dict[str, Any]) -> str:
    """What is printed about a run with this result."""
    write_json(result_file("local", RUN), result)
    done = CliRunner().invoke(cli, ["explain", RUN])
    return f"{done.output}{done.exception or ''}"


def test_a_run_of_the_project_shows_its_measured_parts_the_longest_first(here: Path) -> None:
    output = explained(OWN)
    assert output.splitlines() == [
        "A step takes 100 ms, in this run's own measurement.",
        "      40 ms   40%  Backward",
        "      30 ms   30%  Wait for data",
        "      20 ms   20%  Forward",
        "      10 ms   10%  Exchange",
        "Without its exchange a step would be 8 ms shorter (6 to 10 ms).",
    ]
    printed = json.loads(CliRunner().invoke(cli, ["explain", "--json", RUN]).stdout)
    assert printed["sentences"] == output.splitlines()
    assert printed["parts"][0] == {"name": "backward_s", "seconds": 0.04}
    mistyped = CliRunner().invoke(cli, ["explain", f"{RUN}x"])
    assert str(mistyped.exception).startswith(f"{RUN}x: is neither a command nor a run with a result on `local`")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"metrics": {**OWN["metrics"], **OVERLAPPED}},
                     "      70 ms   70%  Forward and backward\n      30 ms   30%  Wait for data\n",
                     id="an exchange beside the backward pass is one part with it"),
        pytest.param({"metrics": UNTOLD, "intervals": {"exposed_exchange_s": [-0.001, 0.002]}},
                     "\nWhether its exchange makes a step longer cannot be told: by -1 to 2 ms.\n",
                     id="an exchange whose cost the pairs cannot tell is no number"),
        pytest.param({"metrics": {}}, "No steady step of it was timed.\n", id="timed as a whole program"),
        pytest.param({"spec": PROGRAM}, "set `explain: true` in its study, or give the command as you start it",
                     id="a program"),
        pytest.param({"spec": PROGRAM, "explained": {"sentences": ["A step takes 10 ms."], "unseen": ["not seen: copies"]}},
                     "A step takes 10 ms.\nnot seen: copies\n", id="an explained program"),
        pytest.param({"status": "skipped", "reason": "needs a GPU"}, "was skipped: needs a GPU", id="skipped"),
        pytest.param({"status": "invalid", "reason": "the measured window is 1 steps"},
                     "invalid: the measured window is 1 steps\nA step takes 100 ms", id="invalid"),
    ],
)  # fmt: skip
def test_each_kind_of_run_is_answered(here: Path, changes: dict[str, Any], said: str) -> None:
    assert said in explained({**OWN, **changes})
