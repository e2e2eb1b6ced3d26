"""What was read from storage against what had to be: valid, invalid, or not to be checked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from scalestudy.data.manifest import Manifest, SplitInfo
from scalestudy.results.metrics import counted_reads, expected_read_bytes
from scalestudy.results.reads import Reads, judge_reads
from scalestudy.spec.run import RunSpec
from scalestudy.training.report import Report

MIB = 2**20
COLD, WARM = {"cache": "cold"}, {"cache": "warm"}
SHARED = {"uncounted_reads": "tmpfs", "read_bytes": 0}
ON_GPU = {"read_bytes": 500 * MIB, "computed_on": ["cuda"]}
"""The first run of ResNet-50 on a new machine with an H200 read 246 MiB beside a full page cache: libraries."""


def judged(loader: dict[str, object], report: dict[str, object]) -> Reads:
    """The verdict on an epoch of one rank over 1000 MiB of images."""
    spec = RunSpec.model_validate_json(json.dumps({"loader": loader}))
    sizes = SplitInfo(100, 1000 * MIB)
    manifest = Manifest("", "ready", {}, format="files", classes=2, train=sizes, test=sizes)
    reports = [replace(Report(0), **report)]  # type: ignore[arg-type]  # values of several types
    values = {"read_bytes": counted_reads(reports), "expected_read_bytes": expected_read_bytes(spec, manifest, 1.0)}
    return judge_reads(spec, manifest, reports, values)


@pytest.mark.parametrize(
    ("loader", "report", "reason"),
    [
        (COLD, {"read_bytes": 899 * MIB}, "the data was cached"),
        (WARM, {"read_bytes": 101 * MIB}, "did not stay in it"),
        (WARM, {**ON_GPU, "window_read_bytes": 101 * MIB}, "did not stay in it"),
        (COLD, SHARED, "lies in memory (tmpfs)"),
    ],
)
def test_a_run_whose_reads_are_not_those_of_its_cache_is_invalid(
    loader: dict[str, object], report: dict[str, object], reason: str
) -> None:
    assert reason in str(judged(loader, report).invalid)


def test_a_warm_run_may_read_a_little_its_libraries_and_memory() -> None:
    allowed = ({"read_bytes": 99 * MIB}, {**ON_GPU, "window_read_bytes": 99 * MIB}, SHARED)
    assert [judged(WARM, report) for report in allowed] == [Reads()] * 3


def test_reads_that_the_kernel_does_not_count_make_a_run_unchecked_and_are_no_number_of_bytes() -> None:
    assert judged(COLD, {"uncounted_reads": "lustre", "read_bytes": 0}) == Reads(
        unchecked="whether storage delivered the data cannot be checked: reads on lustre are not counted by the kernel"
    )
    assert counted_reads([Report(0, read_bytes=0, uncounted_reads="lustre")]) is None
    assert counted_reads([Report(0, read_bytes=0, uncounted_reads="tmpfs")]) == 0
