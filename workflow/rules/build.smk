rule horovod:
    """Horovod for this machine's torch, compiled once and kept in the user's cache. It takes the machine for minutes,
    so that it comes after all runs that do not need it. Where it cannot be built the file says why, and its runs are
    skipped."""
    output:
        "results/{machine}/builds/horovod.json",
    log:
        "results/{machine}/builds/horovod.log",
    priority: 50_000
    conda:
        "../../envs/conda.yaml"
    resources:
        measure=1,
        nodes=1,
        ranks_per_node=1,
        gpus_per_node=0,
        gpus_held_per_node=ask.build_resource("gpus_held_per_node"),
        cpus_per_rank=ask.build_resource("cpus_per_rank"),
        mem_mb=ask.build_resource("mem_mb"),
        runtime=ask.build_resource("runtime"),
        queue=ask.build_resource("queue"),
    shell:
        "scalestudy build horovod --out {output} > {log} 2>&1"
