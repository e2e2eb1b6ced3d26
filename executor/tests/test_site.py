"""The site file: its words as written, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from snakemake_executor_plugin_multinode.schedulers import Request, chosen_scheduler, scheduler_of
from snakemake_executor_plugin_multinode.site import read_site


def site_file(folder: Path, text: str) -> Path:
    (folder / "site.yaml").write_text(text)
    return folder / "site.yaml"


def test_every_word_of_a_submit_line_is_the_text_that_is_written(tmp_path: Path) -> None:
    text = "scheduler: {kind: slurm, account: 00123, queue: 0x1F, options: [--time, 1:30:00, --nice=1_000, yes]}\n"
    settings = read_site(site_file(tmp_path, text)).scheduler
    assert settings is not None
    request = Request("a", Path("/a.sh"), Path("/a.log"), 1, 1, 0, 1, None, None, None)
    line = " ".join(scheduler_of(settings).submit_command(request))
    assert "-p 0x1F -A 00123 -o /a.log --time 1:30:00 --nice=1_000 yes /a.sh" in line


def test_text_is_split_as_a_shell_does_and_null_is_unset(tmp_path: Path) -> None:
    text = """\
scheduler:
  kind: sge
  queue: null
  account:
  options: -P 'my project'
  setup: null
  environments: {4: mpi-4, any: mpi}
scratch: /tmp
"""
    settings = read_site(site_file(tmp_path, text)).scheduler
    assert settings is not None
    assert (settings.queue, settings.account, settings.setup) == (None, None, ())
    assert settings.options == ("-P", "my project")
    assert settings.environments == {"4": "mpi-4", "any": "mpi"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("scheduler:\n  kind: slrum\n", ":2: `scheduler.kind`: Input should be 'slurm', 'sge' or 'pbs'"),
        ("scheduler: {kind: pbs,\n  que: x}\n", ":2: `scheduler.que`: unknown key; did you mean `queue`?"),
        (
            "scheduler: {kind: sge, queue: -a b}",
            ":1: `scheduler.queue`: the name '-a b' must be one word that does not begin with",
        ),
        (
            "scheduler: {kind: sge, options: a '}",
            ':1: `scheduler.options`: "a \'" has a quote without an end: No closing quotation',
        ),
        ("container:\n  image: a.sif\n  binds: [/data]\n", ":3: `container.binds`: unknown key; did you mean `bind`?"),
        ("modules: cuda", ":1: `modules`: Input should be a valid tuple"),
        ("modules: [cuda, {a: b}]", ":1: `modules.1`: Input should be a valid string"),
        ("[1]", ": must be a map with a section `scheduler`"),
        ("a: [", ": not readable as YAML"),
    ],
)
def test_a_wrong_file_is_answered_with_its_line_and_key(tmp_path: Path, text: str, sentence: str) -> None:
    file = site_file(tmp_path, text)
    with pytest.raises(ValueError) as error:
        read_site(file)
    assert str(error.value).startswith(f"{file}{sentence}")


def test_a_batch_system_without_its_commands_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sbatch", "qsub", "qstat", "qdel"):  # Slurm with its wrappers
        (tmp_path / name).touch(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="the commands of pbs are not in PATH: qselect"):
        chosen_scheduler(read_site(site_file(tmp_path, "scheduler: {kind: pbs}")))
    with pytest.raises(ValueError, match="no batch system is named"):
        chosen_scheduler(read_site(None))
