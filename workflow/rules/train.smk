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
        study=dag.asked(lambda w: PROJECT.study_of(w.machine, w.run)),
    shell:
        "scalestudy train --out {output.result} > {log} 2>&1"
