"""What was read from storage against what had to be: valid, invalid, or not to be checked."""

from __future__ import annotations

import json
from dataclasses import replace

from scalestudy.data.manifest import Manifest, SplitInfo
from scalestudy.results.metrics import counted_reads, expected_read_bytes
from scalestudy.results.reads import Reads, judge_reads
from scalestudy.spec.run import RunSpec
from scalestudy.training.report import Report

MIB = 2**20
LUSTRE = {"uncounted_reads": "lustre", "read_bytes": 0}


def judged(loader: dict[str, object], *reports: dict[str, object], size_mib: int = 1000, epochs: float = 1.0) -> Reads:
    """The verdict on a run over `size_mib` of images; one rank per report."""
    spec = RunSpec.model_validate_json(json.dumps({"loader": loader}))
    sizes = SplitInfo(100, size_mib * MIB)
    manifest = Manifest("", "ready", {}, format="files", classes=2, train=sizes, test=sizes)
    plain = [replace(Report(rank), **each) for rank, each in enumerate(reports)]  # type: ignore[arg-type]  # values of several types
    values = {
        "read_bytes": counted_reads(plain),
        "expected_read_bytes": expected_read_bytes(spec, manifest, epochs),
    }
    return judge_reads(spec, manifest, plain, values)


COLD, WARM = {"cache": "cold"}, {"cache": "warm"}


def test_a_cold_run_that_read_too_little_is_invalid() -> None:
    assert "the data was cached" in str(judged(COLD, {"read_bytes": 899 * MIB}).invalid)


def test_reads_that_the_kernel_does_not_count_make_a_run_unchecked_and_never_invalid() -> None:
    found = judged(COLD, LUSTRE)

    assert found.invalid is None
    assert found.unchecked == (
        "whether storage delivered the data cannot be checked: reads on lustre are not counted by the kernel"
    )


def test_what_is_not_counted_is_no_number_of_bytes() -> None:
    assert counted_reads([Report(0, read_bytes=0, uncounted_reads="lustre")]) is None
    assert counted_reads([Report(0, read_bytes=0, uncounted_reads="tmpfs")]) == 0


def test_a_warm_run_that_read_from_storage_is_invalid() -> None:
    assert judged(WARM, {"read_bytes": 99 * MIB}) == Reads()
    assert "did not stay in it" in str(judged(WARM, {"read_bytes": 101 * MIB}).invalid)


def test_libraries_that_the_first_steps_on_a_gpu_load_are_no_data() -> None:
    # The first run of ResNet-50 on a new machine with an H200 read 246 MiB beside a full page cache.
    on_gpu = {"read_bytes": 500 * MIB, "computed_on": ["cuda"]}
    assert judged(WARM, {**on_gpu, "window_read_bytes": 99 * MIB}) == Reads()
    assert "did not stay in it" in str(judged(WARM, {**on_gpu, "window_read_bytes": 101 * MIB}).invalid)


def test_data_in_memory_cannot_be_cold_and_is_warm() -> None:
    shared = {"uncounted_reads": "tmpfs", "read_bytes": 0}

    assert "lies in memory (tmpfs)" in str(judged(COLD, shared).invalid)
    assert judged(WARM, shared) == Reads()
