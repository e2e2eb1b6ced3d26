"""`scalestudy explain RUN`: the parts of a step that a finished run has measured itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scalestudy.cli import cli
from scalestudy.files import read_json, write_json
from scalestudy.results.parts import step_in_words
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


@pytest.fixture
def explained(here: Path) -> Any:
    """Explain a run of this spec; returns what is printed."""

    def call(spec: dict[str, Any], step_time_s: float | None = 0.1) -> str:
        result = {"run": RUN, "status": "valid", "spec": spec, "metrics": {"step_time_s": step_time_s, **PHASES, "exposed_exchange_s": 0.008},
                  "intervals": {"exposed_exchange_s": [0.006, 0.01]}}  # fmt: skip
        write_json(result_file("local", RUN), result)
        done = CliRunner().invoke(cli, ["explain", RUN])
        return f"{done.output}{done.exception or ''}"

    return call


def test_an_exchange_whose_cost_the_pairs_cannot_tell_is_no_number() -> None:
    metrics = {"step_time_s": 0.1, "exposed_exchange_s": 0.0005}
    own = {"exposed_exchange_s": [-0.001, 0.002]}
    found = step_in_words({"run": RUN, "status": "valid", "metrics": metrics, "intervals": own})
    assert found["sentences"][-1] == "Whether its exchange makes a step longer cannot be told: by -1 to 2 ms."


def test_a_run_of_the_project_shows_its_measured_parts_the_longest_first(explained: Any) -> None:
    output = explained({"ranks": 2, "strategy": {"name": "allreduce"}})
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


def test_a_run_that_exchanges_beside_its_backward_pass_shows_both_as_one_part(explained: Any) -> None:
    explained({"ranks": 2})
    file = result_file("local", RUN)
    result = read_json(file)
    result["metrics"] |= {"compute_s": 0.07, "forward_s": 0.02, "backward_s": None, "exchange_s": None}
    write_json(file, result)
    output = CliRunner().invoke(cli, ["explain", RUN]).output
    assert output.splitlines()[1:3] == ["      70 ms   70%  Forward and backward", "      30 ms   30%  Wait for data"]


def test_a_run_that_was_timed_as_a_whole_has_no_step_to_explain(explained: Any) -> None:
    output = explained({"measure": {"whole_program": True}}, step_time_s=None)
    assert output == "No steady step of it was timed.\n"


def test_a_run_of_a_program_is_answered_with_what_explains_it(explained: Any) -> None:
    output = explained({"program": {"command": "python train.py {width}", "files": ["train.py"]}})
    assert "set `explain: true` in its study, or give the command as you start it" in output


def test_an_explained_run_is_answered_with_what_it_found(here: Path) -> None:
    found = {"sentences": ["A step takes 10 ms."], "unseen": ["not seen: copies"]}
    result = {"run": RUN, "status": "valid", "spec": {"program": {"command": "x"}}, "metrics": {}, "explained": found}
    write_json(result_file("local", RUN), result)
    assert CliRunner().invoke(cli, ["explain", RUN]).output == "A step takes 10 ms.\nnot seen: copies\n"


def test_a_skipped_run_has_nothing_to_explain(here: Path) -> None:
    skipped = {"run": RUN, "status": "skipped", "reason": "needs a GPU", "spec": {}, "metrics": {}}
    write_json(result_file("local", RUN), skipped)
    assert "was skipped: needs a GPU" in str(CliRunner().invoke(cli, ["explain", RUN]).exception)


def test_an_invalid_run_is_called_so_and_a_mistyped_one_is_no_command(explained: Any) -> None:
    explained({"ranks": 1})
    file = result_file("local", RUN)
    write_json(file, {**read_json(file), "status": "invalid", "reason": "the measured window is 1 steps"})
    invalid, mistyped = (CliRunner().invoke(cli, ["explain", name]) for name in (RUN, f"{RUN}x"))
    assert invalid.output.splitlines()[0] == "invalid: the measured window is 1 steps"
    assert str(mistyped.exception).startswith(f"{RUN}x: is neither a command nor a run with a result on `local`")
