"""The parts of the study `probe`, each by the study's own command line and in real processes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from scalestudy.data.io_accounting import uncounted_file_system
from scalestudy.spec.columns import columns_of
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.run import RunSpec
from tests.integration.processes import wait_until
from tests.integration.tries import ROOT, held, run

PROBE = "config/programs/probe.py"
BLOCK_BYTES = 1 << 20
AMOUNTS = {
    "gemm": {"flops_per_s": 2 * 1024**3},
    "copy": {"bytes_per_s": 2 * 256 * 2**20},
    "decode": {"throughput_samples_per_s": 1},
    "read": {"bytes_per_s": BLOCK_BYTES},
    "files": {"throughput_samples_per_s": 1},
    "allreduce": {"bytes_per_s": 2**20},
}
"""Of one step: two ranks send 2 (2 - 1) / 2 of a buffer of 1 MiB over the bus."""
SIZES = {"read": {"clients": 2, "buffer_kib": 1024}, "allreduce": {"buffer_kib": 1024}}


@pytest.fixture(scope="module")
def specs() -> dict[str, RunSpec]:
    """Of each part at scale mini, one run of the study; the buffer of the exchange is one that the study has not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        [study] = read_studies(["probe"], "mini", Machine(cores_per_node=2))
    runs = [run.spec for run in study.runs if run.spec.repeat == 0 and run.spec.program is not None]
    return {columns_of(spec)["part"]: spec for spec in runs}


def with_keys(spec: RunSpec, **keys: Any) -> RunSpec:
    assert spec.program is not None
    program = spec.program.model_copy(update={"keys": {**spec.program.keys, **keys}})
    return spec.model_copy(update={"program": program})


def processes(folder: Path) -> list[str]:
    """Command lines of the processes of the program that have a folder for files below this one."""
    listed = (" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))
    return [line for line in listed if PROBE in line and str(folder) in line]


@pytest.mark.parametrize("part", AMOUNTS)
def test_a_part_is_a_valid_run_that_counts_what_it_does_and_leaves_nothing(
    specs: dict[str, RunSpec], part: str, tmp_path: Path
) -> None:
    spec = with_keys(specs[part], **SIZES.get(part, {}))
    plain = {**spec.to_dict(), "measure": {"warmup_steps": 5, "minutes": 0.01}}
    settings = [f"{key}={json.dumps(value)}" for key, value in plain.items()]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = run(tmp_path / "out", *settings, TMPDIR=str(scratch))
    assert held(found), found["reason"]
    metrics = found["metrics"]
    for column, amount in AMOUNTS[part].items():
        assert metrics[column] * metrics["step_time_s"] == pytest.approx(amount)
        assert found["kinds"][column] == "reported"
    assert part not in ("gemm", "copy", "allreduce") or "torch" in found["instrument"]
    others = {"throughput_samples_per_s", "bytes_per_s", "flops_per_s"} - set(AMOUNTS[part])
    assert [metrics[column] for column in others] == [None, None]
    left = [file.name for file in scratch.iterdir() if not file.name.startswith("torchinductor_")]  # torch's own
    assert left == [] == processes(scratch)


def lines(file: Path) -> list[dict[str, float]]:
    """The whole lines of a file of reports."""
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def test_what_is_read_comes_from_the_disk_and_clients_end_with_a_probe_that_is_killed(
    specs: dict[str, RunSpec], tmp_path: Path
) -> None:
    (reports := tmp_path / "reports").mkdir()
    (files := tmp_path / "files").mkdir()
    spec = with_keys(specs["read"], **SIZES["read"])
    assert spec.program is not None
    values = {**columns_of(spec), "threads_per_rank": 1, "device": "cpu", "folder": str(files)}
    environment = {**os.environ, "SCALESTUDY_PROGRAM": str(reports)}
    process = psutil.Popen(spec.program.words(values), cwd=ROOT, env=environment)
    try:
        found = wait_until(lambda: [file for file in reports.iterdir() if len(lines(file)) > 20], 60)
        assert found, "no report"
        clients = process.children()
        assert len(clients) == 2
        reported = sum(line["bytes"] for line in lines(found[0]))
        from_disk = sum(client.io_counters().read_bytes for client in clients)
    finally:
        process.kill()
        process.wait()
    assert psutil.wait_procs(clients, 5)[1] == []
    assert reported > 20 * BLOCK_BYTES
    if name := uncounted_file_system(tmp_path):
        pytest.skip(f"the kernel does not count what is read from {name}")
    assert from_disk >= 0.98 * reported


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["read", "--clients=0"], "error: --clients must be 1 or more"),
        (["read", "--folder=/nowhere"], "probe: client 0: [Errno 2] No such file or directory: '/nowhere/"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(words: list[str], said: str) -> None:
    done = subprocess.run(
        ["python", PROBE, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
