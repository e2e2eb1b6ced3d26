rule summarise:
    """The results of a study as one table: a row per run, and a row per configuration."""
    input:
        results=dag.asked(lambda w: PROJECT.results(w.machine, w.scale, w.study)),
        code=dag.code("analysis"),
    output:
        runs="results/{machine}/{scale}/studies/{study}/runs.parquet",
        summary="results/{machine}/{scale}/studies/{study}/summary.csv",
    log:
        "results/{machine}/{scale}/studies/{study}/summarise.log",
    priority: 3_000_000
    conda:
        "../../envs/conda.yaml"
    params:
        shown=dag.asked(lambda w: PROJECT.shown(w.machine, w.scale, w.study)),
    shell:
        "scalestudy summarise --machine {wildcards.machine} --scale {wildcards.scale}"
        " --study {wildcards.study} > {log} 2>&1"
