"""`scalestudy run` gives Snakemake what `scalestudy plan` understands."""

from __future__ import annotations

import pytest
from snakemake import cli

from scalestudy.commands.run import targets_and_config
from scalestudy.errors import UserError
from scalestudy.spec.config import changes_of, read_config


def test_all_that_was_given_stands_in_one_config_that_snakemake_reads_back() -> None:
    targets, keys = targets_and_config(
        ["gpu_scaling", "campaign=a"], ["machine=mine"], "paper", ["repeats=5", "ranks=[1, 2]"], 500.0
    )
    read = cli.parse_config(keys)
    assert targets == ["gpu_scaling"]
    assert changes_of(read.pop("set")) == {"repeats": 5, "ranks": [1, 2]}
    assert read == {"machine": "mine", "campaign": "a", "scale": "paper", "budget_gpu_hours": 500}


def test_a_change_that_is_none_is_refused_before_anything_starts() -> None:
    with pytest.raises(UserError, match="is not a setting"):
        targets_and_config([], [], changes=["repeats"])


def test_changes_are_no_key_of_the_selection() -> None:
    assert read_config("config/config.yaml", {"set": ["repeats=5"], "scale": "paper"}).scale == "paper"
