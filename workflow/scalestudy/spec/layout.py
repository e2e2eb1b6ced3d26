"""The layout of results/, and where published numbers lie. A path determines all that its rule needs.

`machine` is the name of a folder of results: a machine, or `<machine>+<campaign>` where the same runs are measured again.
"""

from __future__ import annotations

from pathlib import Path

STUDIES = Path("config/studies")
CLAIMS = Path("config/claims")
MACHINES = Path("config/machines")
EXTENSIONS = Path("config/extensions")
"""The user's own models and data sources."""
RESULTS = Path("results")
REFERENCES = Path("config/reference")
"""Published numbers, one CSV file each."""
CHECKPOINTS = "checkpoint"
"""Folder of a run's checkpoints."""
PROGRAM_STATE = "program"
"""Below it, the folder of a program's state."""
BETWEEN = "+"
"""Stands between machine and campaign in the name of a folder of results."""
STATE_FILE = "state.json"
"""How far a run is; what an executor reads."""
HISTORY_FILE = "history.jsonl"
"""Beside `runs/`: the time that each run took; append-only."""
STOP_FILE = "stop"
"""A file of this name asks a run to stop at a checkpoint."""


def reference_file(name: str) -> Path:
    """Published numbers of that name."""
    return REFERENCES / f"{name}.csv"


def folder_name(machine: str, campaign: str | None) -> str:
    """`local`, or `local+night_2`: where the runs of a machine and campaign lie in results/."""
    return machine if campaign is None else f"{machine}{BETWEEN}{campaign}"


def machine_and_campaign(folder: str) -> tuple[str, str | None]:
    """The opposite of `folder_name`; the campaign is None where the folder's name has none."""
    machine, between, campaign = folder.partition(BETWEEN)
    return machine, campaign if between else None


def machine_file(name: str) -> str:
    """The file of a machine, as messages name it; a folder of results that names a campaign too has its machine's."""
    return f"{MACHINES}/{machine_and_campaign(name)[0]}.yaml"


def config_of(folder: str, scale: str) -> str:
    """`machine=local scale=mini campaign=night_2`: the words of `--config` that choose a folder of results and a scale."""
    machine, campaign = machine_and_campaign(folder)
    return f"machine={machine} scale={scale}" + ("" if campaign is None else f" campaign={campaign}")


def other_campaigns(folder: str) -> list[str]:
    """The other folders of results of the same machine."""
    machine, _ = machine_and_campaign(folder)
    folders = sorted(runs.parent.name for runs in RESULTS.glob("*/runs"))
    return [name for name in folders if machine_and_campaign(name)[0] == machine and name != folder]


def run_folder(machine: str, run: str) -> Path:
    """Everything of one run: spec.json, result.json, steps.parquet, system.parquet, log/."""
    return RESULTS / machine / "runs" / run


def result_file(machine: str, run: str) -> Path:
    """The result of one run, whole or absent."""
    return run_folder(machine, run) / "result.json"


def machine_of(result: Path) -> str | None:
    """The folder of results that a result lies in, by its path; None for one that lies elsewhere."""
    runs = result.absolute().parent.parent
    return runs.parent.name if (runs.name, runs.parent.parent.name) == ("runs", RESULTS.name) else None


def manifest_file(dataset: str) -> Path:
    """The manifest of one dataset."""
    return RESULTS / "data" / dataset / "manifest.json"


def study_folder(machine: str, scale: str, study: str) -> Path:
    """study.json, runs.parquet and summary.csv of a study."""
    return RESULTS / machine / scale / "studies" / study


def figure_file(machine: str, scale: str, study: str, figure: str, suffix: str = "svg") -> Path:
    """A figure; svg, pdf and png are in the same folder."""
    return RESULTS / machine / scale / "figures" / study / f"{figure}.{suffix}"


def table_file(machine: str, scale: str, study: str, table: str, suffix: str = "csv") -> Path:
    """A table; csv, md and tex are in the same folder."""
    return RESULTS / machine / scale / "tables" / study / f"{table}.{suffix}"


def claims_file(machine: str, scale: str, study: str, suffix: str = "json") -> Path:
    """The verdicts on a study's claims; json, csv, md and tex are in the same folder; `fixed.json`: as they were at first."""
    return RESULTS / machine / scale / "claims" / f"{study}.{suffix}"


def report_file(machine: str, scale: str) -> Path:
    """The report of everything at one scale on one machine."""
    return RESULTS / machine / scale / "report.html"


def history_files(machine: str) -> list[Path]:
    """Durations of runs on a machine, in all its campaigns; append-only."""
    name, _ = machine_and_campaign(machine)
    return [RESULTS / name / HISTORY_FILE, *sorted(RESULTS.glob(f"{name}{BETWEEN}*/{HISTORY_FILE}"))]


def comparison_file(before: str, after: str) -> Path:
    """Table of a comparison of two folders of results."""
    return RESULTS / "comparisons" / f"{before}_{after}.csv"
