"""How long `scalestudy plan` takes beside `snakemake -n` of the same target, and how much memory.

python benchmarks/plan.py [RUNS]    default 10,000; a copy of the project with one study of that many runs is planned
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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
WHERE = ("--profile", "profiles/pbs", "--config", "scale=paper")
# As many jobs per round as there are: both then do the same work.
AT_ONCE = ("--jobs", "1000000")


def copy(folder: Path, runs: int) -> None:
    """A project with one study of `runs` runs."""
    for name in ("Snakefile", "workflow", "profiles", "envs", "config"):
        source = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(source, folder / name, ignore=ignore) if source.is_dir() else shutil.copy(source, folder / name)
    shutil.rmtree(folder / "config/studies")
    (folder / "config/studies").mkdir()
    (folder / "config/studies/large.yaml").write_text(STUDY.format(repeats=max(1, runs // 10)))


def timed(folder: Path, *command: str) -> float:
    """Wall seconds of a command that ends well."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "workflow")}
    begin = time.perf_counter()
    subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
    )
    return time.perf_counter() - begin


def main() -> None:
    """Print both times, their ratio, and the plan's largest memory."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy(folder, runs)
        plan_s = timed(folder, "scalestudy", "plan", *WHERE)
        memory_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        dry_s = timed(folder, "snakemake", *WHERE[:2], *AT_ONCE, *WHERE[2:], "-n", "--quiet", "all")
    print(
        f"{runs:,} runs: scalestudy plan {plan_s:.1f} s, {memory_mib:,.0f} MiB; snakemake -n {dry_s:.1f} s; ratio {plan_s / dry_s:.2f}; "
        "one measurement of each, so no interval"
    )


if __name__ == "__main__":
    main()
