rule dataset:
    """One form of the data. What depends on it depends on its small manifest, never on a folder of files."""
    output:
        manifest="results/data/{dataset}/manifest.json",
    log:
        "results/data/{dataset}/prepare.log",
    priority: 2_000_000
    conda:
        "../../envs/conda.yaml"
    resources:
        nodes=1,
        ranks_per_node=1,
        gpus_per_node=0,
        cpus_per_rank=dag.asked(
            lambda w: PROJECT.dataset_resource(w.dataset, "cpus_per_rank")
        ),
        mem_mb=dag.asked(lambda w: PROJECT.dataset_resource(w.dataset, "mem_mb")),
        runtime=dag.asked(lambda w: PROJECT.dataset_resource(w.dataset, "runtime")),
        queue=dag.asked(lambda w: PROJECT.dataset_resource(w.dataset, "queue")),
    params:
        spec=dag.asked(lambda w: PROJECT.dataset_json(w.dataset)),
        bulk=PROJECT.bulk_option,
    shell:
        "scalestudy prepare --out {output.manifest} --spec {params.spec:q} {params.bulk} > {log} 2>&1"


rule spec:
    """The frozen description of one run. It has no inputs: a study file is no ancestor of a run."""
    output:
        "results/{machine}/runs/{run}/spec.json",
    log:
        "results/{machine}/runs/{run}/log/spec.log",
    priority: 2_000_000
    conda:
        "../../envs/conda.yaml"
    params:
        spec=dag.asked(lambda w: PROJECT.spec_json(w.machine, w.run)),
    shell:
        "printf '%s\\n' {params.spec:q} > {output} 2> {log}"
