"""Commands in the documents work as they stand there."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalestudy.commands.one_run import checked_run, from_settings
from tests.integration.project import ROOT, Project, make_project
from tests.integration.tries import completed

DOCUMENTS = (
    "README.md", "CONTRIBUTING.md", "config/README.md", "config/extensions/README.md",
    *(f"profiles/{name}/README.md" for name in ("allocation", "default", "local", "pbs", "sge", "slurm")),
    *sorted(str(page.relative_to(ROOT)) for part in ("howto", "reference") for page in (ROOT / "docs" / part).glob("*.md")),
)  # fmt: skip
SUBMITTED = "needs a scheduler; tests/cluster/test_slurm.py runs it on Slurm"
NOT_RUN = {
    "cd $PBS_O_WORKDIR": "PBS sets the variable",
    "qsub profiles/pbs/driver.sh": SUBMITTED,
    "qsub profiles/sge/driver.sh all": SUBMITTED,
    "sbatch profiles/slurm/driver.sh all": SUBMITTED,
    "scalestudy doctor --profile profiles/pbs": "needs PBS; python -m tests.soak.profiles pbs",
    "scalestudy doctor --profile profiles/sge": "needs Grid Engine; python -m tests.soak.profiles sge",
    "scalestudy doctor --profile profiles/slurm": "needs Slurm; python -m tests.soak.profiles slurm",
    "scalestudy explain -- torchrun --nproc-per-node 8 train.py --my-flags": "needs a script; test_explain.py has some",
    "scalestudy largest-batch model=resnet50 'data={source: synthetic, classes: 1000}' --memory-mib 4096": "minutes",
    "scalestudy try model=resnet18 strategy=pipeline ranks=2 loader.size=32 measure.steps=10 --out /tmp/p": "15 s",
    "scalestudy try 'model={name: mlp, hidden: 1024, layers: 14}' strategy=pipeline memory_limit_mib=130 "
    "ranks=2 optimiser.learning_rate=0.01 measure.steps=10 --out /tmp/q": "10 s",
    **dict.fromkeys(
        ("snakemake width --profile profiles/local -n", "snakemake width --profile profiles/local"), "test_program.py plans its page's study"
    ),
    **dict.fromkeys(
        ("scalestudy plan --profile profiles/pbs", "scalestudy plan --profile profiles/sge",
         "scalestudy plan --profile profiles/slurm",
         "scalestudy plan --profile profiles/allocation --config machine=flow_type2 scale=paper"),
        "`snakemake -n` prints the same plan, and is run; test_dag.py and test_submitted_hours.py run `plan`",
    ),
    **dict.fromkeys(
        ("scalestudy try model.import=my_nets:Wide train.epochs=10 --out /tmp/own_model",
         "scalestudy try data.import=my_data:Stripes train.epochs=10 --out /tmp/own_data"),
        "config/extensions/README.md tries both at once",
    ),
    "snakemake --lint": "a target of the Makefile",
}  # fmt: skip
"""What no test runs, and why."""
DRY = ("make", "snakemake")
"""What is run with `-n`."""
WITH_ALL_STUDIES = (
    "scalestudy check", "snakemake all --profile profiles/local -n", "scalestudy run -n",
)  # fmt: skip
"""What is run in a clone that has all shipped studies; all else in one that has one of them."""


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks of a document in one language, without their common indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(text) for _, text in found]


def commands_in(line: str) -> Iterator[str]:
    """The single commands of a shell line, each quoted in one way."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&;|")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, "&&"]:
        if word not in ("&&", ";", "|"):
            words.append(word)
        elif words:
            yield " ".join(words) if words[0] == "cd" else shlex.join(words)
            words = []


def documented() -> list[str]:
    """Every command once: those of `sh` blocks, and whole Snakemake commands within a sentence."""
    lines = []
    for document in DOCUMENTS:
        for block in blocks(document, "sh"):
            lines += block.replace("\\\n", "").splitlines()
        lines += re.findall(r"`(snakemake [^`…]+)`", (ROOT / document).read_text())
    return list(dict.fromkeys(command for line in lines for command in commands_in(line)))


def as_run(command: str) -> str:
    """A command as the test gives it."""
    return f"{command} -n" if command.startswith(DRY) and not command.endswith(" -n") else command


COMMANDS = documented()
RUN = list(
    {
        as_run(command).replace(" all ", " "): as_run(command)
        for command in reversed(COMMANDS)
        if command not in NOT_RUN
    }.values()
)
"""Each once, also where the documents have it with and without `-n`, or name the default target."""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A clone with the files that the documents have one write."""
    return with_studies(tmp_path_factory.mktemp("documents") / "clone", "*")


@pytest.fixture(scope="module")
def clone_with_one_study(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The same, but of the shipped studies one."""
    return with_studies(tmp_path_factory.mktemp("documents") / "clone", "gpu_scaling.yaml")


def with_studies(folder: Path, pattern: str) -> Project:
    """A clone with those of the shipped studies, and the files that the documents have one write."""
    project = make_project(folder, forked=True)
    project.study.unlink()
    for study in (ROOT / "config/studies").glob(pattern):
        shutil.copy(study, project.study.parent)
    shutil.copy(ROOT / "Makefile", project.folder)
    (project.folder / ".venv").symlink_to(sys.prefix)
    for name in ("first_study", "batch_size"):  # of the README, and of the tutorial
        (project.folder / f"config/studies/{name}.yaml").write_text(blocks("README.md", "yaml")[0])
    for block in [*blocks("docs/howto/own_model.md", "python"), *blocks("docs/howto/own_data.md", "python")]:
        (project.folder / block.splitlines()[0].removeprefix("# ")).write_text(block)
    return project


@pytest.mark.parametrize("command", RUN)
def test_a_command_of_the_documents_works(clone: Project, clone_with_one_study: Project, command: str) -> None:
    project = clone if command in WITH_ALL_STUDIES else clone_with_one_study
    place = str(project.folder.parent)
    ended = project.shell(command.replace("/tmp/", f"{place}/"), TMPDIR=place, SCALESTUDY_LOCKS=place)
    assert completed(ended), ended.stdout


@pytest.mark.parametrize(
    "command", [command for command in NOT_RUN if "largest-batch" in command or " try " in command]
)
def test_the_settings_of_a_documented_training_that_is_not_run_are_valid(
    clone_with_one_study: Project, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clone_with_one_study.folder)
    settings = [word for word in shlex.split(command) if "=" in word]
    checked_run(from_settings(tuple(settings), "try"), command)


def test_what_is_not_run_is_still_in_the_documents() -> None:
    assert [command for command in NOT_RUN if command not in COMMANDS] == []
