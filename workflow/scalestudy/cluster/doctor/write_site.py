"""`scalestudy doctor --write NAME`: a machine file and a profile from what the scheduler and a node say.

What nobody can know from there is a comment that begins with CORRECT.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalestudy.cluster.doctor.compare_site import WORDS
from scalestudy.cluster.doctor.facts.model import ClusterFacts, ParallelEnvironment
from scalestudy.cluster.doctor.write_machine import CORRECT, HEAD, machine_text, quoted, useful_queues
from scalestudy.errors import UserError
from scalestudy.files import write_text

MOST_JOBS = 100


def files_of(name: str) -> dict[str, Path]:
    """Where what is written lies, by what it is."""
    folder = Path("profiles") / name
    return {
        "machine": Path("config/machines") / f"{name}.yaml",
        "site": folder / "site.yaml",
        "where": folder / "where.yaml",
        "profile": folder / "config.yaml",
    }


def to_correct(files: Sequence[Path]) -> list[str]:
    """The lines that a person has to look at, as `file:line: text`."""
    lines = [
        (file, number, line)
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    ]
    return [f"{file}:{number}: {line.strip()}" for file, number, line in lines if f"{CORRECT}:" in line]


def refuse_existing(name: str) -> None:
    """UserError where one of the files is there: somebody may have corrected it."""
    if there := [str(file) for file in files_of(name).values() if file.exists()]:
        raise UserError(f"is there already: {', '.join(there)}", f"--write {name}", "choose another name, or move it")


def write_files(name: str, facts: ClusterFacts, report: dict[str, Any] | None) -> list[Path]:
    """Write all files, each whole; `report` is what a node says of itself, None as long as none was asked."""
    files = files_of(name)
    texts = {
        "machine": machine_text(name, facts, report),
        "site": site_text(name, facts),
        "where": f"machine: {name}\nscale: paper\nsite: profiles/{name}/site.yaml\n",
        "profile": profile_text(name, facts),
    }
    for key, file in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, texts[key])
    return list(files.values())


def site_text(name: str, facts: ClusterFacts) -> str:
    """profiles/NAME/site.yaml."""
    lines = [
        "# yaml-language-server: $schema=../../workflow/schemas/site.schema.json",
        HEAD.format(name=name, system=WORDS[facts.system], node=""),
        *_software_lines(),
        f"# scratch: $TMPDIR  # {CORRECT}: a folder on a node's own disk, where that is not $TMPDIR",
        f"# data_roots: {{image_folder: /data/imagenet}}  # {CORRECT}: data that the site already has",
        "scheduler:",
        f"  kind: {facts.system}",
    ]
    if len(facts.accounts) == 1:
        lines.append(f"  account: {quoted(facts.accounts[0])}")
    elif facts.accounts:
        lines.append(f"  account: {quoted(facts.accounts[0])}  # {CORRECT}: or {', '.join(facts.accounts[1:])}")
    queues = useful_queues(facts)
    if len(queues) == 1 and not queues[0].default:
        lines.append(f"  queue: {quoted(queues[0].name)}")
    lines += _request_lines(facts)
    if setup := _setup():
        lines += ["  setup:", f"    - {quoted(setup)}"]
    return "\n".join(lines) + "\n"


def _software_lines() -> list[str]:
    lines = []
    if loaded := [module for module in os.environ.get("LOADEDMODULES", "").split(":") if module]:
        words = ", ".join(map(quoted, loaded))
        lines.append(f"modules: [{words}]  # {CORRECT}: those of the shell that wrote this; jobs need CUDA and MPI")
    if _in_conda():
        lines.append(f"conda: {quoted(sys.prefix)}")
    return lines


def _in_conda() -> bool:
    return (Path(sys.prefix) / "conda-meta").is_dir()


def _setup() -> str | None:
    """What brings this environment to a job; None where the job needs nothing."""
    if _in_conda() or sys.prefix == sys.base_prefix:
        return None
    prefix = Path(sys.prefix)
    if Path(".venv").exists() and prefix.resolve() == Path(".venv").resolve():
        return ". .venv/bin/activate"
    return f". {shlex.quote(str(prefix))}/bin/activate"


def _request_lines(facts: ClusterFacts) -> list[str]:
    if facts.system == "slurm":
        types = {node.kind.gpu_type for node in facts.nodes if node.kind.gpu_type}
        lines = ["  options: [--exclusive]"]
        if len(types) > 1:
            lines.append(
                f"  # {CORRECT}: request: several types of GPU ({', '.join(sorted(types))}): --gres=gpu:TYPE:{{gpus_per_node}}"
            )
        return lines
    if facts.system == "pbs":
        gpus = f"[:{facts.gpu_resource}={{gpus_per_node}}]" if facts.gpu_resource else ""
        return [
            f'  request: "-l select={{nodes}}:ncpus={{cpus_per_node}}:mpiprocs={{ranks_per_node}}{gpus}[:mem={{mem_mb}}mb] '
            '-l place=scatter:excl [-l walltime={walltime}]"'
        ]  # fmt: skip
    return _request_of_sge(facts)


def _request_of_sge(facts: ClusterFacts) -> list[str]:
    dealing, any_number = parallel_environments(facts)
    parts = []
    if dealing:
        parts.append("[-pe {environment} {ranks}]")
    elif any_number is not None:
        parts.append(f"-pe {any_number.name} {{ranks}}")
    parts += [f"[-l {facts.gpu_resource}={{gpus_per_rank}}]"] if facts.gpu_resource else []
    parts += ["[-l h_rt={runtime_s}]", *([f"-l {facts.exclusive_resource}=true"] if facts.exclusive_resource else [])]
    lines = [f'  request: "{" ".join(parts)}"']
    if dealing:
        names = [f"{number}: {quoted(each.name)}" for number, each in dealing.items()]
        names += [f"any: {quoted(any_number.name)}"] if any_number is not None else []
        lines.append(f"  environments: {{{', '.join(names)}}}")
    if not dealing and any_number is None:
        there = ", ".join(f"{each.name} ({each.rule})" for each in facts.environments) or "none"
        what = f"no parallel environment that takes slots of several hosts was found (qconf -spl: {there})"
        lines.append(f"  # {CORRECT}: {what}: whole nodes cannot be requested")
    elif any_number is not None:
        what = (
            f"`{any_number.name}` deals slots by `{any_number.rule}`, so that a job may get fewer nodes than it means"
        )
        lines.append(f"  # {CORRECT}: {what}; whole nodes need one that deals a number, that of the ranks on a node")
    if facts.gpu_resource:
        lines.append(
            f"  # {CORRECT}: `{facts.gpu_resource}` is taken to count per slot; per host: -l {facts.gpu_resource}={{gpus_per_node}}"
        )
    return lines


FILLING = ("$fill_up", "$round_robin")
"""Rules by which slots come from several hosts, the better one first."""


def parallel_environments(
    facts: ClusterFacts,
) -> tuple[dict[int, ParallelEnvironment], ParallelEnvironment | None]:
    """By slots that they deal to a host; and the one for any number. Of several alike, one called mpi comes first."""
    known = sorted(facts.environments, key=lambda each: "mpi" not in each.name)
    dealing: dict[int, ParallelEnvironment] = {}
    for each in known:
        if each.rule.isdigit() and int(each.rule):
            dealing.setdefault(int(each.rule), each)
    others = [each for each in known if each.rule in FILLING]
    return dict(sorted(dealing.items())), min(others, key=lambda each: FILLING.index(each.rule), default=None)


def profile_text(name: str, facts: ClusterFacts) -> str:
    """profiles/NAME/config.yaml."""
    jobs = min(MOST_JOBS, facts.most_submitted or MOST_JOBS)
    return "\n".join(
        [
            f"# Each run as a job of its own, on {WORDS[facts.system]}.",
            "executor: multinode",
            f"multinode-site: profiles/{name}/site.yaml",
            f"configfile: [profiles/{name}/where.yaml]",
            f"jobs: {jobs}",
            "local-cores: 2",
            "latency-wait: 60",
            "",
        ]
    )
