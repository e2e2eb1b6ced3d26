"""What `snakemake -n` with the plan takes over a bare Snakemake with as many jobs: processor time and memory.

python benchmarks/plan.py [RUNS …]    default 100 1,000 5,000; a copy of the project with one study of that many runs is planned
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REPEATS = 3
STUDY = """\
question: How large may it be?
base:
  model: resnet50
  strategy: allreduce
  data: {{source: image_folder}}
  batch: {{per_rank: 32}}
  train: {{epochs: 90}}
  measure: {{warmup_steps: 20, steps: 200}}
vary:
  ranks: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
repeats: {repeats}
figures:
  - {{kind: time_over_ranks, name: time}}
"""
BARE = """\
rule all:
    input:
        [f"runs/{{run}}/result.json" for run in range({runs})],


rule dataset:
    output:
        "data/manifest.json",
    shell:
        "prepare --out {{output}}"


rule spec:
    output:
        "runs/{{run}}/spec.json",
    shell:
        "spec --out {{output}}"


rule train:
    input:
        spec=ancient("runs/{{run}}/spec.json"),
        data=ancient("data/manifest.json"),
    output:
        "runs/{{run}}/result.json",
    resources:
        runtime=60,
        mem_mb=1000,
    shell:
        "train --out {{output}}"
"""
# As many jobs per round as there are: both then do the same work.
WORDS = ("--jobs", "1000000", "-n", "--quiet", "rules")


def project(folder: Path, runs: int) -> Path:
    """A project with one study of `runs` runs."""
    folder.mkdir()
    for name in ("Snakefile", "workflow", "profiles", "envs", "config"):
        source = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(source, folder / name, ignore=ignore) if source.is_dir() else shutil.copy(source, folder / name)
    shutil.rmtree(folder / "config/studies")
    (folder / "config/studies").mkdir()
    (folder / "config/studies/large.yaml").write_text(STUDY.format(repeats=max(1, runs // 10)))
    return folder


def bare(folder: Path, runs: int) -> Path:
    """A workflow of nothing but jobs: a specification and a run for each, and one dataset."""
    folder.mkdir()
    (folder / "Snakefile").write_text(BARE.format(runs=runs))
    return folder


def taken(folder: Path, *more: str) -> tuple[float, float]:
    """Processor seconds, and MiB at most, of a dry run."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "workflow")}
    with subprocess.Popen(("snakemake", *more, *WORDS), cwd=folder, env=environment,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Print time and memory of both, the least of three each, taken in turn; and the ratios."""
    for runs in [int(word) for word in sys.argv[1:]] or [100, 1_000, 5_000]:
        with tempfile.TemporaryDirectory() as name:
            ours, theirs = project(Path(name) / "ours", runs), bare(Path(name) / "bare", runs)
            pairs = [(taken(ours, "--profile", "profiles/pbs"), taken(theirs)) for _ in range(REPEATS)]
        (ours_s, ours_mib), (bare_s, bare_mib) = (
            tuple(map(min, zip(*each, strict=True))) for each in zip(*pairs, strict=True)
        )
        print(
            f"{runs:>6,} runs: with the plan {ours_s:.1f} s, {ours_mib:,.0f} MiB; bare {bare_s:.1f} s, {bare_mib:,.0f} MiB; "
            f"{ours_s / bare_s:.2f} times the time, {ours_mib / bare_mib:.2f} times the memory",
            flush=True,
        )


if __name__ == "__main__":
    main()
