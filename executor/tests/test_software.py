"""Modules, conda and containers of a site: what a job's script does with them, run by a real bash."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from snakemake_executor_plugin_multinode.site import Container, Site
from snakemake_executor_plugin_multinode.software import WRAPPER, checked, container_words, setup_lines
from test_jobscript import end_of, run, script

ON_FAILURE = 'setup_failed() { echo "failed $1: $2"; exit 78; }\n'


def shell(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


def stand_in(folder: Path, name: str, text: str) -> None:
    """A stand-in for a command."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_set_up_line_that_fails_ends_the_job_before_its_command_as_a_fault_that_names_the_line(
    tmp_path: Path,
) -> None:
    folder = script(tmp_path, "touch ran", setup=("true", "ls /nowhere/at/all", "touch after"))
    done = run(folder)
    assert done.returncode == 78
    said = "the job's set-up failed (exit status 2): ls /nowhere/at/all"
    assert said in done.stderr
    assert not (folder / "ran").exists() and not (folder / "after").exists()
    end = end_of(folder)
    assert (end.code, end.fault) == (78, said)


@pytest.mark.parametrize("command", ["if true; then", "C=a\\", "# a comment"])
def test_a_set_up_that_is_no_whole_command_is_refused_before_submission(command: str) -> None:
    with pytest.raises(ValueError, match=r"bash cannot read a command of `scheduler.setup`: '"):
        checked(["if true; then\n  A=1\nfi", command])


def test_modules_are_loaded_in_order_also_where_the_shell_has_no_such_function_yet(tmp_path: Path) -> None:
    init = tmp_path / "init"
    init.mkdir()
    (init / "bash").write_text('module() { echo "$@"; [ "$2" != missing ]; }\n')
    lines = setup_lines(Site(modules=("cuda/12.4", "openmpi")), None)
    done = shell(f"{ON_FAILURE}{checked(lines)}", MODULESHOME=str(tmp_path))
    assert done.stdout == "load cuda/12.4\nload openmpi\n"
    done = shell(f"{ON_FAILURE}{checked(setup_lines(Site(modules=('missing',)), None))}", MODULESHOME=str(tmp_path))
    assert done.stdout == "load missing\nfailed 1: module load missing\n"
    assert done.returncode == 78


def test_conda_is_found_by_the_drivers_path_where_the_job_has_none(tmp_path: Path) -> None:
    stand_in(tmp_path / "bin", "conda", """echo 'conda() { echo "conda $*"; PATH=/of/env:$PATH; }'""")
    lines = setup_lines(Site(conda="my env"), str(tmp_path / "bin/conda"))
    done = shell(f"{ON_FAILURE}{checked(lines)}\necho ${{PATH%%:*}}", PATH="/usr/bin:/bin")
    assert done.stdout == "conda activate my env\n/of/env\n"


def test_a_job_runs_in_its_image_and_hands_on_how_other_nodes_get_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path / "bin", "apptainer", 'printf "[%s]" "${@:1:$#-3}"; echo; exec "${@: -3}"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("JOBS_DISK", "/disk/7")
    image = Container(image="img.sif", bind=("$JOBS_DISK", "/data"))
    folder = script(tmp_path, f'echo "$PWD"; echo "${WRAPPER}"', name="my project", container=image)
    first, place, wrapper = run(folder).stdout.splitlines()
    said = f"[exec][--nv][--bind][{folder}][--bind][/disk/7][--bind][/data][{folder}/img.sif]"
    assert (first, place) == (said, str(folder))
    again = shell(f"{wrapper} /bin/sh -c 'echo inside'")
    assert again.stdout == f"{said}\ninside\n"
    assert wrapper.startswith(f"'{tmp_path}/bin/apptainer' exec")


@pytest.mark.parametrize("name", ["$x", "a,b", "a:b"])
def test_a_folder_that_a_container_cannot_bind_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"its path holds one of `,:\$`; move the folder"):
        container_words(Site(container=Container(image="img.sif")), tmp_path / name)
