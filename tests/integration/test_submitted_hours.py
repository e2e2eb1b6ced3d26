"""The hours that `snakemake -n` prints are those of the lines that the scheduler then receives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from decimal import Decimal
from pathlib import Path

import pytest

from tests.integration import fork_server
from tests.integration.processes import wait_until
from tests.integration.project import STUDY, Project, jobs_in, make_project

RECORDS = """\
#!/bin/bash
[[ $* == --version ]] && echo "pbs_version = 23.06"
[[ $* == *.sh ]] || exit 0  # a question
printf '%s\\n' "$(basename "$0") $*" >> "$RECORD"
number=$((1000 + $(wc -l < "$RECORD")))
[[ $* == *-terse* || $0 == *sbatch ]] && echo $number || echo $number.server
# Data is prepared for real: trainings wait for it.
grep -q 'dataset:' "${@: -1}" && PBS_O_WORKDIR=$PWD setsid bash "${@: -1}" &>/dev/null &
"""
GPUS_OF_A_NODE = 4
REQUEST = {
    "pbs": r"-l select=(?P<nodes>\d+):.* -l walltime=(?P<hours>\d+):(?P<minutes>\d+):00 ",
    "sge": r"-pe mpi (?P<nodes>1|2) .* -l h_rt=(?P<seconds>\d+) ",
    "slurm": r" -N (?P<nodes>\d+) .* -t (?P<minutes>\d+) ",
}
UNITS_S = {"hours": 3600, "minutes": 60, "seconds": 1}
MACHINES = {"pbs": "flow_type2", "sge": "tsubame3", "slurm": "gpu_cluster"}
FIGURE = f"results/{MACHINES['pbs']}/paper/figures/tiny/time.svg"
FRESH = -1
CASES = [
    ("pbs", ("all",), [1, 2], FRESH),
    ("pbs", (FIGURE,), [1, 2], 0),
    ("sge", ("all", "--forcerun", "train"), [2], 0),
    ("slurm", ("all",), [1, 2], 3),
]
"""Profile, targets, ranks of the study, just edited, and how many of its runs, two for each, are finished; FRESH: its data
is not there either, which is a job too."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A clone whose data is there, so that nothing waits for a job, and whose commands of schedulers record their words."""
    made = make_project(tmp_path_factory.mktemp("recorded") / "clone", forked=True)
    (made.folder / ".venv/bin").mkdir(parents=True)
    (made.folder / ".venv/bin/activate").touch()  # jobs have the driver's environment
    made.make("--until", "dataset")
    commands = made.folder / "commands"
    commands.mkdir()
    for name in ("sbatch", "qsub"):
        (commands / name).write_text(RECORDS)
    for name in ("squeue", "sacct", "scontrol", "scancel", "sinfo", "qstat", "qselect", "qdel", "qconf", "qacct"):
        (commands / name).write_text("#!/bin/bash\nexit 1\n")
    for file in commands.iterdir():
        file.chmod(0o755)
    return made


def hours_of(line: str, profile: str) -> Decimal:
    """GPU hours that a submit line requests: whole nodes for its walltime. Both ranks of a run fit a node."""
    found = re.search(REQUEST[profile], line)
    assert found, line
    seconds = sum(int(number) * UNITS_S[unit] for unit, number in found.groupdict().items() if unit in UNITS_S)
    nodes = 1 if profile == "sge" else int(found["nodes"])
    return Decimal(nodes * GPUS_OF_A_NODE * seconds) / 3600


@pytest.mark.parametrize(("profile", "targets", "ranks", "finished"), CASES)
def test_the_hours_of_a_dry_run_are_those_of_the_submit_lines(
    project: Project, tmp_path: Path, profile: str, targets: tuple[str, ...], ranks: list[int], finished: int
) -> None:
    runs, jobs = 2 * len(ranks) - max(finished, 0), 2 * len(ranks) - finished
    if finished == FRESH:
        shutil.rmtree(project.folder / "results/data")
    project.study.write_text(STUDY.replace("ranks: [1, 2]", f"ranks: {ranks}"))
    machine, words = MACHINES[profile], ("--profile", f"profiles/{profile}", *targets)
    path = f"{project.folder}/commands{os.pathsep}{project.environment()['PATH']}"
    listed = project.must("snakemake", *words, "-n", "--printshellcmds") if finished > 0 else ""
    for run in sorted(set(re.findall(rf"results/{machine}/runs/([^/\s]+)/result.json", listed)))[runs:]:
        file = project.folder / f"results/{machine}/runs/{run}/result.json"
        file.parent.mkdir(parents=True)
        file.write_text(f'{{"run": "{run}"}}')
    dry = project.must("snakemake", *words, "-n", PATH=f"{fork_server.commands()}{os.pathsep}{path}")
    assert jobs_in(dry)["train"] == runs
    printed = Decimal(re.search(r"^Reserved +([\d.,]+) GPU h", dry, re.MULTILINE)[1].replace(",", ""))  # type: ignore[index]  # without the line the test fails
    record = tmp_path / "record"
    record.touch()
    environment = {**project.environment(), "PATH": path, "RECORD": str(record)}
    with subprocess.Popen(["snakemake", *words], cwd=project.folder, env=environment,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:  # fmt: skip
        try:
            assert wait_until(lambda: len(record.read_text().splitlines()) == jobs, 60)
        finally:
            driver.kill()
            shutil.rmtree(project.folder / f"results/{machine}", ignore_errors=True)
    assert printed == sum(hours_of(line, profile) for line in record.read_text().splitlines())
    subprocess.run(["rm", "-rf", str(project.folder / ".scalestudy"), str(project.folder / ".snakemake")], check=True)


def test_over_budget_is_an_error_that_shows_the_plan(project: Project) -> None:
    done = project.run("scalestudy", "plan", "--profile", "profiles/pbs", "--budget", "0.1")
    assert done.returncode == 3, done.stdout
    assert re.search(r"over budget: [\d,.]+ GPU hours to request, 0\.1 allowed", done.stdout), done.stdout
    assert re.findall(r"^(data|tiny) +\d", done.stdout, re.MULTILINE) == ["tiny"], "the data is there"
