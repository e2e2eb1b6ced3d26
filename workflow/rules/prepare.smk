rule dataset:
    """One form of the data. What depends on it depends on its small manifest, never on a folder of files."""
    input:
        unpack(ask.dataset_inputs),
    output:
        manifest="results/data/{dataset}/manifest.json",
    log:
        "results/data/{dataset}/prepare.log",
    priority: 2_000_000
    localrule: PROJECT.prepares_data  # by the site: one host, in place of a node with its GPUs for each
    conda:
        "../../envs/conda.yaml"
    resources:
        nodes=1,
        ranks_per_node=1,
        gpus_per_node=0,
        gpus_held_per_node=ask.dataset_resource("gpus_held_per_node"),
        cpus_per_rank=ask.dataset_resource("cpus_per_rank"),
        mem_mb=ask.dataset_resource("mem_mb"),
        runtime=ask.dataset_resource("runtime"),
        queue=ask.dataset_resource("queue"),
    params:
        spec=ask.dataset_json,
        bulk=PROJECT.bulk_option,
    shell:
        "scalestudy prepare --out {output.manifest} --spec {params.spec:q} {params.bulk} > {log} 2>&1"


rule spec:
    """The frozen description of one run. It has no inputs: no run depends on a study file."""
    output:
        "results/{machine}/runs/{run}/spec.json",
    log:
        "results/{machine}/runs/{run}/log/spec.log",
    priority: 2_000_000
    localrule: True
    conda:
        "../../envs/conda.yaml"
    params:
        spec=ask.spec_json,
    shell:
        "printf '%s\\n' {params.spec:q} 2> {log} > {output}.part && mv {output}.part {output}"
