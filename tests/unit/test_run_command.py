"""`scalestudy run` gives Snakemake what `scalestudy plan` understands."""

from __future__ import annotations

import pytest
from snakemake import cli

from scalestudy.commands.run import configuration, snakemake_command
from scalestudy.errors import UserError
from scalestudy.spec.config import changes_of, read_config


def test_all_that_was_given_stands_in_one_config_that_snakemake_reads_back() -> None:
    keys = configuration(["machine=mine", "tags=a"], "paper", ["repeats=5", "ranks=[1, 2]"], 500.0)
    words = snakemake_command(["gpu_scaling"], "profiles/slurm", keys)
    assert words[:5] == ["snakemake", "gpu_scaling", "--profile", "profiles/slurm", "--config"]
    assert words.count("--config") == 1
    read = cli.parse_config(words[5:])
    assert changes_of(read.pop("set")) == {"repeats": 5, "ranks": [1, 2]}
    assert read == {"machine": "mine", "tags": "a", "scale": "paper", "budget_gpu_hours": 500}


def test_without_options_the_command_is_the_plain_one() -> None:
    assert snakemake_command([], "profiles/local", []) == ["snakemake", "--profile", "profiles/local"]


def test_a_change_that_is_none_is_refused_before_anything_starts() -> None:
    with pytest.raises(UserError, match="is not a setting"):
        configuration([], None, ["repeats"], None)


def test_changes_are_no_key_of_the_selection() -> None:
    assert read_config("config/config.yaml", {"set": ["repeats=5"], "scale": "paper"}).scale == "paper"
