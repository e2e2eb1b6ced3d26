rule train:
    """One run. A finished one is no job: what is made from it takes its result as it is. Snakemake may not delete it."""
    input:
        unpack(ask.train_inputs),
    output:
        result=update("results/{machine}/runs/{run}/result.json"),
    log:
        "results/{machine}/runs/{run}/log/train.log",
    priority: ask.priority
    conda:
        "../../envs/conda.yaml"
    resources:
        measure=1,
        host=1,
        nodes=ask.run_resource("nodes"),
        ranks_per_node=ask.run_resource("ranks_per_node"),
        gpus_per_node=ask.run_resource("gpus_per_node"),
        gpus_held_per_node=ask.run_resource("gpus_held_per_node"),
        cpus_per_rank=ask.run_resource("cpus_per_rank"),
        mem_mb=ask.run_resource("mem_mb"),
        runtime=ask.run_resource("runtime"),
        queue=ask.run_resource("queue"),
        chain_state="state.json",  # beside the result: from there the executor continues a run in another job
        hosts=ask.run_resource("hosts"),
    shell:
        "scalestudy train --out {output.result} > {log} 2>&1"
