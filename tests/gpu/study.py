"""A study on one GPU through Snakemake, from its file to its figures."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.gpu.suite import NotHere, Suite, Values
from tests.gpu.tries import ROOT, environment

STUDY = """\
question: Which batch and which precision use this GPU best?
base:
  model: {model}
  data: {{source: synthetic, samples: {samples}, shape: [3, {side}, {side}], classes: 1000}}
  optimiser: {{learning_rate: 0.01}}
  train: {{epochs: 100, evaluate_every_epochs: 0}}
  measure: {{warmup_steps: 5, steps: {steps}}}
vary:
  autocast:
    - {{value: null, label: float32}}
    - {{value: bfloat16, label: bfloat16}}
  batch.per_rank: [{batches}]
repeats: 2
scales: {{mini: {{}}}}
figures:
  - {{kind: lines, name: throughput, x: batch.per_rank, y: throughput_samples_per_s, series: autocast}}
tables:
  - {{name: batches, values: [throughput_samples_per_s, step_time_s, compute_s]}}
"""
SIZES = {
    "gpu": {"model": "resnet50", "samples": 1024, "side": 224, "steps": 30, "batches": "32, 128"},
    "cpu": {"model": "small_cnn", "samples": 256, "side": 32, "steps": 6, "batches": "8, 16"},
}


def a_study_from_its_file_to_its_figures(suite: Suite) -> Values:
    """In a copy of the project, with profiles/local; on a CPU only the plan of it."""
    try:
        import snakemake  # noqa: F401
    except ImportError:
        raise NotHere("snakemake is not installed; tests.gpu.pack packs it") from None
    clone = suite.out / "clone"
    shutil.rmtree(clone, ignore_errors=True)
    clone.mkdir()
    for name in ("workflow", "profiles", "config", "envs"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("*.pyc.*", "studies", "*.egg-info"))
    shutil.copy(ROOT / "Snakefile", clone)
    studies = clone / "config" / "studies"
    studies.mkdir()
    (studies / "one_gpu.yaml").write_text(STUDY.format(**SIZES["cpu" if suite.dry else "gpu"]), encoding="utf-8")
    words = ["all", "--profile", "profiles/local", *(["-n"] if suite.dry else [])]
    shim = _command(clone)
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *words], cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**environment(), "PYTHONPATH": f"{clone / 'workflow'}:{environment()['PYTHONPATH']}", "PATH": shim},
        timeout=420, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    figures = sorted(path.name for path in clone.glob("results/local/mini/figures/one_gpu/*"))
    assert suite.dry or len(figures) == 3, f"figures: {figures}\n{done.stdout[-2000:]}"
    for file in [*clone.glob("results/local/mini/*/one_gpu/*"), *clone.glob("results/local/mini/studies/one_gpu/*")]:
        shutil.copy(file, suite.out)
    return {"figures": ", ".join(figures) or "planned only"}


def a_shipped_study_at_scale_node(suite: Suite) -> Values:
    """`batch_and_precision` on the machine that `machine: auto` finds, as `make run` does; on a CPU only its plan."""
    clone = suite.out / "clone"
    if not clone.is_dir():
        raise NotHere("the project was not copied; see the study before")
    name = "batch_and_precision"
    shutil.copy(ROOT / "config" / "studies" / f"{name}.yaml", clone / "config" / "studies")
    path = f"{clone / 'bin'}{os.pathsep}{os.environ['PATH']}"
    machine = "local" if suite.dry else "auto"
    words = [
        name,
        "--profile",
        "profiles/local",
        *(["-n"] if suite.dry else []),
        "--config",
        "scale=node",
        f"machine={machine}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *words], cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**environment(), "PYTHONPATH": f"{clone / 'workflow'}:{environment()['PYTHONPATH']}", "PATH": path},
        timeout=420, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    said = done.stdout.partition("Found about the accelerators:")[2].strip().splitlines()
    assert suite.dry or said, done.stdout[-2000:]
    for file in clone.glob(f"results/*/node/*/{name}/*"):
        shutil.copy(file, suite.out)
    return {"found": " / ".join(line.strip() for line in said[:3]) or "planned only"}


def _command(clone: Path) -> str:
    """A PATH on which the `scalestudy` that rules call is the clone's, installed or not."""
    folder = clone / "bin"
    folder.mkdir()
    script = folder / "scalestudy"
    script.write_text(
        f"#!/bin/sh\nexec '{sys.executable}' -c 'import sys; from scalestudy.cli import main; sys.exit(main())' \"$@\"\n"
    )
    script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


ALL = (a_study_from_its_file_to_its_figures, a_shipped_study_at_scale_node)
