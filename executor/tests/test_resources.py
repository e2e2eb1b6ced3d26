"""What rules of all kinds ask for, as submit lines of each batch system, and what is refused or said."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snakemake_executor_plugin_multinode.resources import of_group, request_of
from snakemake_executor_plugin_multinode.schedulers import scheduler_of

BEGIN = {
    "slurm": "sbatch --parsable --no-requeue -J a ",
    "pbs": "qsub -N a -S /bin/bash -r n -j oe -o /j/x.log ",
    "sge": "qsub -terse -N a -S /bin/bash -r n -j y -o /j/x.log ",
}


def line(kind: str, resources: dict[str, Any], threads: int = 1, **site: Any) -> str:
    """The submit line of a job, less what is the same for all."""
    request = replace(request_of(resources, threads, kind), name="a", script=Path("/j/x.sh"), log=Path("/j/x.log"))
    words = shlex.join(scheduler_of({"kind": kind, **site}).submit_command(request))
    assert words.startswith(BEGIN[kind]) and words.endswith("/j/x.sh")
    return words.removeprefix(BEGIN[kind]).removesuffix("/j/x.sh").replace("-o /j/x.log ", "").rstrip()


ONE = "-N 1 --ntasks-per-node=1 --cpus-per-task="
CHUNK = "-l select=1:ncpus="


@pytest.mark.parametrize(
    ("resources", "threads", "slurm", "pbs", "sge"),
    [
        ({}, 4, f"{ONE}4", f"{CHUNK}4:mpiprocs=1 -l place=scatter", "-pe mpi 4"),
        ({"cpus_per_task": 3}, 1, f"{ONE}3", f"{CHUNK}3:mpiprocs=1 -l place=scatter", "-pe mpi 3"),
        ({"mem_mb_per_cpu": 1000, "mem_mb": 1, "runtime": 90}, 4, f"{ONE}4 --mem=4000M -t 90",
         f"{CHUNK}4:mpiprocs=1:mem=4000mb -l place=scatter -l walltime=01:30:00", "-pe mpi 4 -l h_rt=5400"),
        ({"mem_mb": 5}, 1, f"{ONE}1 --mem=200M", f"{CHUNK}1:mpiprocs=1:mem=200mb -l place=scatter", ""),
        ({"gpus": 4, "nodes": 2, "tasks": 4, "mpi": "srun"}, 2, "-N 2 --ntasks-per-node=2 --cpus-per-task=2 --gpus-per-node=2",
         "-l select=2:ncpus=4:mpiprocs=2:ngpus=2 -l place=scatter", "-pe mpi 4 -l gpu=1"),
        ({"nodes": 2, "tasks_per_node": 3}, 1, "-N 2 --ntasks-per-node=3 --cpus-per-task=1",
         "-l select=2:ncpus=3:mpiprocs=3 -l place=scatter", "-pe mpi 6"),
        ({"gpu": 2, "gpu_model": "h100"}, 1, f"{ONE}1 --gpus-per-node=h100:2", f"{CHUNK}1:mpiprocs=1:ngpus=2 -l place=scatter",
         "-l gpu=2"),
        ({"partition": "short", "account": "mine", "qos": "high", "constraint": "rack1&ib"}, 1,
         f"{ONE}1 -p short -A mine --qos=high '--constraint=rack1&ib'", f"{CHUNK}1:mpiprocs=1 -l place=scatter -q short -A mine",
         "-q short -A mine"),
        ({"slurm_partition": "s", "pbs_queue": "p", "sge_queue": "g", "queue": "all"}, 1, f"{ONE}1 -p s",
         f"{CHUNK}1:mpiprocs=1 -l place=scatter -q p", "-q g"),
        ({"slurm_extra": "--nice=5 '--comment=a b'", "pbs_extra": "-p 10", "sge_extra": "-P mine"}, 1,
         f"{ONE}1 --nice=5 '--comment=a b'", f"{CHUNK}1:mpiprocs=1 -l place=scatter -p 10", "-P mine"),
        ({"tmpdir": "/tmp", "disk_mb": 1000, "disk_mib": 954, "mem": "1 GB", "_cores": 1, "_nodes": 1}, 1, f"{ONE}1",
         f"{CHUNK}1:mpiprocs=1 -l place=scatter", ""),
    ],
)  # fmt: skip
def test_everyday_resources_become_submit_lines(
    resources: dict[str, Any], threads: int, slurm: str, pbs: str, sge: str
) -> None:
    assert line("slurm", resources, threads) == slurm
    assert line("pbs", resources, threads) == pbs
    assert line("sge", resources, threads) == sge


@pytest.mark.parametrize(
    ("resources", "sentence"),
    [
        ({"gpu": 1, "gpus": 2}, "the resources `gpus` (2) and `gpu` (1) contradict each other"),
        ({"gpus": 3, "nodes": 2}, "the resource `gpus` (3) is not a multiple of `nodes` (2)"),
        ({"slurm_gres": "gpu:1"}, "`gres` is not read: request GPUs by `gpus` and `gpu_model`, anything else by `slurm_extra`"),
        ({"gpu_model": "h100"}, "the resource `gpu_model` (h100) has no effect without `gpus`"),
        ({"tasks": 5, "nodes": 2}, "the resource `tasks` (5) is not a multiple of `nodes` (2)"),
        ({"gpu": "2"}, "the resource `gpu` must be a whole number of at least 0, not '2'"),
        ({"tasks": 0}, "the resource `tasks` must be a whole number of at least 1, not 0"),
        ({"nodes": 2, "hosts": "n01,"}, "the resource `hosts` must name 2 nodes with commas between them, not 'n01,'"),
        ({"hosts": "-x"}, "the resource `hosts` must name 1 nodes with commas between them, not '-x'"),
        ({"slurm_extra": ["-p"]}, "the resource `slurm_extra` must be words as a shell reads them, not ['-p']"),
        ({"constraint": "a b"}, "the resource `constraint` 'a b' must be one word that does not begin with a dash"),
        ({"slurm_extra": "'"}, "the resource `slurm_extra` is not closed: No closing quotation: \"'\""),
        ({"slurm_extra": "-Jmine"}, "the resource `slurm_extra` may not hold -J: this executor sets it, or could not follow the job"),
        ({"slurm_extra": "--arr=1-3"}, "the resource `slurm_extra` may not hold --array: this executor sets it, or could not follow the job"),
        ({"slurm_extra": "-Mbig"}, "the resource `slurm_extra` may not hold -M: this executor sets it, or could not follow the job"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_or_is_of_a_wrong_kind_is_refused(resources: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        line("slurm", resources)
    assert str(error.value) == sentence


def test_a_group_has_the_sum_of_what_it_shares_out_and_the_most_of_what_holds_for_all() -> None:
    members = [{"mem_mb_per_cpu": 500, "nodes": 1, "gpu": 1}, {"mem_mb_per_cpu": 800, "nodes": 1, "gpu": 1}]
    merged = {"mem_mb_per_cpu": 1300, "nodes": 2, "gpu": 2, "_cores": 3, "runtime": 7}
    found = of_group(merged, members, "slurm")
    assert found == {"mem_mb_per_cpu": 800, "gpu": 2, "_cores": 3, "runtime": 7, "cpus_per_rank": 3}
    request = request_of(found, 3, "slurm")
    assert (request.nodes, request.cpus_per_rank, request.gpus_per_node, request.mem_mb) == (1, 3, 2, 2400)


def test_a_member_of_a_group_has_one_node() -> None:
    with pytest.raises(ValueError, match="cannot be part of a group"):
        of_group({}, [{}, {"nodes": 2}], "slurm")


@pytest.mark.parametrize("tasks", ["tasks", "ranks_per_node", "slurm_tasks"])
def test_members_with_several_tasks_run_after_one_another_in_a_job_as_wide_as_the_widest(tasks: str) -> None:
    members = [{tasks: 2, "cpus_per_rank": 2, "runtime": 3}, {tasks: 1, "cpus_per_rank": 3, "runtime": 4}]
    found = of_group({tasks: 2, "cpus_per_rank": 3, "_cores": 1, "runtime": 7}, members, "slurm")
    assert line("slurm", found) == ONE + "4 -t 7"
    with pytest.raises(ValueError, match="cannot run side by side"):
        of_group({tasks: 3, "cpus_per_rank": 5, "_cores": 2, "runtime": 4}, members, "slurm")


@pytest.mark.parametrize(
    ("request_", "resources", "sentence"),
    [
        ("-N {nodes} -q {qos}", {}, r"needs \{qos\}, which this job does not have"),
        ("-N {node}", {}, "names `node`, which does not exist; did you mean `nodes`"),
        ("-N {nodes} [-t", {}, "has square brackets that do not match"),
        ("-N '{nodes}", {}, "is not closed: No closing quotation"),
        ("-l gpu={gpus_per_rank}", {"gpus": 3, "tasks": 2}, "3 GPUs per node cannot be asked for in equal whole shares by 2"),
        ("-l nodes={nodes}", {"hosts": "n01"}, "a job on nodes by name needs a request with one chunk"),
    ],
)  # fmt: skip
def test_a_template_that_a_job_cannot_fill_is_refused(request_: str, resources: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        line("pbs", resources, request=request_)


def test_a_sites_template_can_name_all_that_a_job_requests() -> None:
    template = "[-l qos={qos}] [-l feature={constraint}] [-l gpu_type={gpu_model}] [-l g={gpus_of_model}]"
    asked = {"qos": "q", "constraint": "c", "gpu": 2, "gpu_model": "a100"}
    found = "-l qos=q -l feature=c -l gpu_type=a100 -l g=a100:2"
    for kind in ("pbs", "sge"):
        assert line(kind, asked, request=template) == found
        assert line(kind, {}, request=template) == ""
