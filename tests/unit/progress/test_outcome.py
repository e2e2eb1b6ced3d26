"""What is said of a run that has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from snakemake_logger_plugin_scalestudy import outcome


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"metrics": {"throughput_samples_per_s": 1240.4, "accuracy": 0.912}}, "1,240 samples/s, accuracy 0.912"),
        ({"metrics": {"throughput_samples_per_s": None, "wall_s": 1.294}}, "1.3 s in all"),
        ({"status": "skipped", "reason": "no GPU", "metrics": {}}, "skipped: no GPU"),
    ],
)
def test_a_run_is_told_by_its_rate_or_as_a_whole_program_by_its_time(
    tmp_path: Path, result: dict[str, Any], words: str
) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"status": "valid", "reason": None, **result}))
    assert outcome(str(tmp_path / "result.json")) == words
