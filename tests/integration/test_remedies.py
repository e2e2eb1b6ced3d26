"""What a message says to do helps: the same command, once that was done, ends another way and no longer says it."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from tests.integration.project import Project, make_project
from tests.integration.tries import made as has_result

TRY = "scalestudy try device=cpu train.epochs=4 optimiser.learning_rate=0.05 --out $(mktemp -d -p $HERE)/run"
COLD = f"env SCALESTUDY_WARM=0 {TRY}"
"""Where a warm server would not have the limits or the network of its client."""
SMALL = f"{TRY} train.epochs=3 batch.per_rank=8"
SERVERS = f"{TRY} 'model={{name: mlp, layers: 1}}' 'strategy={{name: parameter_server, servers: %d}}'"
STAGED = (
    "printf 'launcher: local\\n%s\\n' > profiles/local/site.yaml; "
    f"{TRY} 'data={{source: synthetic_jpeg, samples: 96, shard: {{format: tar}}}}' stage.to=scratch loader.size=32 batch.per_rank=8"
)
MPI = pytest.mark.skipif(
    shutil.which("mpirun") is None or importlib.util.find_spec("mpi4py") is None, reason="there is no MPI here"
)
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="not everyone may make a network namespace")
CASES = [
    # A line of bash, a part of its remedy, and the line once that was followed; None: tests/integration/test_launch.py has it.
    (f"{TRY} optimiser.learning_rate=1000", "lower optimiser.learning_rate", TRY),
    (f"{SMALL} optimiser.learning_rate=0.1", "nothing was learned", f"{SMALL} optimiser.learning_rate=0.01"),
    (f"{TRY} measure.steps=1", "raise measure.steps or train.epochs", TRY),
    (f"{TRY} batch.per_rank=4000", "make the global batch 1437 or smaller", f"{TRY} batch.per_rank=64"),
    (SERVERS % 5, "use at most 2 servers", SERVERS % 2),
    (STAGED % "scratch: $HERE\\nstaged_gib: 0.00001", "raise `staged_gib`", STAGED % "scratch: $HERE\\nstaged_gib: 1"),
    (STAGED % "scratch: /proc/none", "set `scratch` of the site to another folder", STAGED % "scratch: $HERE\\nstaged_gib: 1"),
    (STAGED % "scratch: $NODE_DISK", "set it, or name a folder", f"export NODE_DISK=$HERE; {STAGED % 'scratch: $NODE_DISK'}"),
    pytest.param(f"PATH=${{PATH%%:*}} {TRY} strategy=mpi_allreduce ranks=2", "or load a module of MPI", None, marks=MPI),
    (f"ulimit -v 2000000; {COLD}", "raise the limit (ulimit -v)", TRY),
    (f"TORCH_DISTRIBUTED_DEBUG=DETAIL {COLD}", "unset TORCH_DISTRIBUTED_DEBUG", TRY),
    pytest.param(
        f"unshare -rn {COLD} strategy=allreduce ranks=2", "start the loopback (ip link set lo up)",
        f"{TRY} strategy=allreduce ranks=2", marks=AS_ROOT,
    ),
    (f"SCALESTUDY_LOCKS=/nowhere {TRY}", "make it, or unset it", TRY),
    (f"SCALESTUDY_DEADLINE=soon {TRY}", "set it to seconds since 1970", f"SCALESTUDY_DEADLINE=9999999999 {TRY}"),
    (f"mkdir $HERE/a; touch $HERE/a/mine; {TRY} --out $HERE/a", "name an empty folder, or remove it", f"rm -r $HERE/a; {TRY} --out $HERE/a"),
    ("scalestudy export tiny --out $HERE/a.zip", "make it first: snakemake tiny --profile profiles/local", "snakemake tiny --profile profiles/local -n"),
]  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A clone whose study has one run."""
    made = make_project(tmp_path_factory.mktemp("remedies") / "project", forked=True)
    made.edit(made.study, "[{value: halving_doubling, label: HD}, allreduce]", "[allreduce]")
    made.edit(made.study, "ranks: [1, 2]", "ranks: [1]")
    return made


@pytest.fixture(scope="module")
def ends() -> dict[str, tuple[int, str]]:
    """Status and output of each line that followed a remedy: several lead to the same one."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize(("before", "words", "after"), CASES)
def test_a_command_ends_another_way_once_its_remedy_is_followed(
    before: str, words: str, after: str | None, project: Project, ends: dict[str, tuple[int, str]], tmp_path: Path
) -> None:
    refused = project.shell(before, HERE=str(tmp_path))
    assert words in refused.stdout, refused.stdout
    if after is None:
        return
    if after not in ends:
        followed = project.shell(after, HERE=str(tmp_path))
        ends[after] = (followed.returncode, followed.stdout)
    status, said = ends[after]
    assert words not in said and has_result(status, said), said
