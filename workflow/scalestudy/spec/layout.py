"""The layout of results/. A path determines what is needed to make the file."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path("results")
CHECKPOINTS = "checkpoint"
"""Folder of a run's checkpoints."""
STATE_FILE = "state.json"
"""How far a run is; what an executor reads."""
STOP_FILE = "stop"
"""A file of this name asks a run to stop at a checkpoint."""


def run_folder(machine: str, run: str) -> Path:
    """Everything of one run: spec.json, result.json, steps.parquet, system.parquet, log/."""
    return RESULTS / machine / "runs" / run


def result_file(machine: str, run: str) -> Path:
    """The result of one run, whole or absent."""
    return run_folder(machine, run) / "result.json"


def manifest_file(dataset: str) -> Path:
    """The manifest of one dataset."""
    return RESULTS / "data" / dataset / "manifest.json"


def study_folder(machine: str, scale: str, study: str) -> Path:
    """runs.parquet and summary.csv of a study."""
    return RESULTS / machine / scale / "studies" / study


def figure_file(machine: str, scale: str, study: str, figure: str, suffix: str = "svg") -> Path:
    """A figure; svg, pdf and png are in the same folder."""
    return RESULTS / machine / scale / "figures" / study / f"{figure}.{suffix}"


def table_file(machine: str, scale: str, study: str, table: str, suffix: str = "csv") -> Path:
    """A table; csv, md and tex are in the same folder."""
    return RESULTS / machine / scale / "tables" / study / f"{table}.{suffix}"


def claims_file(machine: str, scale: str, study: str, suffix: str = "json") -> Path:
    """The verdicts on a study's claims; json, csv, md and tex are in the same folder."""
    return RESULTS / machine / scale / "claims" / f"{study}.{suffix}"


def fixed_claims_file(machine: str, scale: str, study: str) -> Path:
    """What a study's claims were when the first of their runs was made."""
    return RESULTS / machine / scale / "claims" / f"{study}.fixed.json"


def report_file(machine: str, scale: str) -> Path:
    """The report of everything at one scale on one machine."""
    return RESULTS / machine / scale / "report.html"


def history_file(machine: str) -> Path:
    """What runs took; append-only."""
    return RESULTS / machine / "history.jsonl"
