rule train:
    """One run. Its command is frozen: a changed command would measure everything again."""
    input:
        unpack(dag.asked(lambda w: PROJECT.train_inputs(w.machine, w.run))),
    output:
        result="results/{machine}/runs/{run}/result.json",
    log:
        "results/{machine}/runs/{run}/log/train.log",
    priority: dag.asked(lambda w: PROJECT.priority(w.machine, w.run))
    conda:
        "../../envs/conda.yaml"
    resources:
        measure=1,
        gpu_slots=dag.asked(lambda w: PROJECT.gpu_slots(w.machine, w.run)),
        nodes=dag.asked(lambda w: PROJECT.resource(w.machine, w.run, "nodes")),
        ranks_per_node=dag.asked(
            lambda w: PROJECT.resource(w.machine, w.run, "ranks_per_node")
        ),
        gpus_per_node=dag.asked(
            lambda w: PROJECT.resource(w.machine, w.run, "gpus_per_node")
        ),
        cpus_per_rank=dag.asked(
            lambda w: PROJECT.resource(w.machine, w.run, "cpus_per_rank")
        ),
        mem_mb=dag.asked(lambda w: PROJECT.resource(w.machine, w.run, "mem_mb")),
        runtime=dag.asked(lambda w: PROJECT.resource(w.machine, w.run, "runtime")),
        queue=dag.asked(lambda w: PROJECT.resource(w.machine, w.run, "queue")),
        study=dag.asked(lambda w: PROJECT.study_of(w.machine, w.run)),
    shell:
        "scalestudy train --out {output.result} > {log} 2>&1"
