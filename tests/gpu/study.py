"""Shipped studies on one GPU through Snakemake, at scale `node`, from their files to figures and to what is handed on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.groups import Function, Group
from tests.gpu.suite import NotHere, Suite, Values
from tests.gpu.tries import ROOT, environment

FOLDERS = ("workflow", "profiles", "config", "envs")
FILES = ("Snakefile", "pyproject.toml", "LICENSE", "README.md")
END_S = 30.0
"""Of the time that is left, what packing takes."""


def groups(studies: Sequence[str]) -> list[Group]:
    """One for each study."""
    return [Group("study", name, (_function(name),), 600) for name in studies]


def _function(name: str) -> Function:
    def study(suite: Suite) -> Values:
        return a_study_at_scale_node(suite, name)

    study.__name__ = name
    return study


def a_study_at_scale_node(suite: Suite, name: str) -> Values:
    """On the machine that `machine: auto` finds, as `make run` does; on a CPU only its plan."""
    try:
        import snakemake  # noqa: F401
    except ImportError:
        raise NotHere("snakemake is not installed; tests.gpu.pack packs it") from None
    clone = _clone(suite)
    source = ROOT / "config" / "studies" / f"{name}.yaml"
    assert source.is_file(), f"there is no study `{name}`"
    shutil.copy(source, clone / "config" / "studies")
    machine = "local" if suite.dry else "auto"
    words = ["snakemake", name, "--profile", "profiles/local", *(["-n"] if suite.dry else []), "--config"]
    ended, said = _until_the_time_is_over(suite, clone, [*words, "scale=node", f"machine={machine}"])
    if suite.dry:
        assert ended == 0, said[-3000:]
        planned = re.search(r"^train +([0-9]+)$", said, re.MULTILINE)
        assert planned is not None, f"no run is planned: {said[-3000:]}"
        return {"planned": int(planned[1])}
    found = _keep(suite, clone, name, measured_machines(clone))
    assert ended == 0, f"status {ended}; {found}\n{said[-3000:]}"
    about = said.partition("Found about the accelerators:")[2].strip().splitlines()
    assert about, said[-2000:]
    return {**found, "found": " / ".join(line.strip() for line in about[:3])}


def _clone(suite: Suite) -> Path:
    """A copy of the project without studies and results; one for all studies of a call."""
    clone = suite.work / "clone"
    if clone.is_dir():
        return clone
    clone.mkdir()
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, clone / folder, ignore=shutil.ignore_patterns("*.pyc", "studies", "*.egg-info"))
    for file in FILES:
        shutil.copy(ROOT / file, clone)
    (clone / "config" / "studies").mkdir()
    script = clone / "bin" / "scalestudy"  # the one that rules call, installed or not
    script.parent.mkdir()
    call = "import sys; from scalestudy.cli import main; sys.exit(main())"
    script.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{call}' \"$@\"\n", encoding="utf-8")
    script.chmod(0o755)
    return clone


def measured_machines(clone: Path) -> list[str]:
    """The machines on which there are results: in a copy made for this call, the one that `machine: auto` found."""
    return sorted({path.parents[2].name for path in clone.glob("results/*/runs/*/result.json")})


def _in_clone(clone: Path) -> dict[str, str]:
    usual = environment()
    path = f"{clone / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**usual, "PYTHONPATH": f"{clone / 'workflow'}{os.pathsep}{usual['PYTHONPATH']}", "PATH": path}


def _until_the_time_is_over(suite: Suite, clone: Path, words: Sequence[str]) -> tuple[int, str]:
    """Run a module; its status, and what it printed. It is interrupted in time for what is there to be packed."""
    log = suite.work / "snakemake.log"
    with open(log, "w", encoding="utf-8") as stream:
        process = subprocess.Popen([sys.executable, "-m", *words], cwd=clone, env=_in_clone(clone), stdout=stream,
                                   stderr=subprocess.STDOUT)  # fmt: skip
        try:
            process.wait(max(1.0, suite.left_s - END_S))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(END_S / 2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    shutil.copy(log, suite.kept / f"{words[1]}.log")
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def _keep(suite: Suite, clone: Path, name: str, machines: Sequence[str]) -> Values:
    """Pack what is there of a study, its figures and tables, and the machine's file."""
    found: Values = {"machine": ", ".join(machines)}
    for machine in machines:
        file = clone / "config" / "machines" / f"{machine}.yaml"
        if file.is_file():
            shutil.copy(file, suite.kept)
        for path in clone.glob(f"results/{machine}/node/*/{name}/*"):
            target = suite.kept / name / path.parent.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        crate = suite.kept / f"{name}-{machine}-node.crate.zip"
        words = ["scalestudy", "export", name, "--machine", machine, "--scale", "node", "--out", str(crate)]
        done = subprocess.run([str(clone / "bin" / words[0]), *words[1:]], cwd=clone, env=_in_clone(clone), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False)  # fmt: skip
        found[f"runs_on_{machine}"] = len(list(clone.glob(f"results/{machine}/runs/*/result.json")))
        found["packed"] = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else f"status {done.returncode}"
    figures = [path.name for path in (suite.kept / name / "figures").glob("*.svg")]
    return {**found, "figures": ", ".join(sorted(figures)) or "none"}
