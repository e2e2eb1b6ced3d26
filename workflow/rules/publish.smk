rule figure:
    """One figure, in three formats side by side."""
    input:
        runs=rules.summarise.output.runs,
        reference=ask.reference,
        code=dag.code("figures"),
    output:
        expand(
            "results/{{machine}}/{{scale}}/figures/{{study}}/{{figure}}.{suffix}",
            suffix=["svg", "pdf", "png"],
        ),
    log:
        "results/{machine}/{scale}/figures/{study}/{figure}.log",
    priority: 3_000_000
    conda:
        "../../envs/conda.yaml"
    params:
        declared=ask.figure,
        shown=ask.shown,
    shell:
        "scalestudy figure --machine {wildcards.machine} --scale {wildcards.scale}"
        " --study {wildcards.study} --name {wildcards.figure} > {log} 2>&1"


rule table:
    """One table, in three formats side by side."""
    input:
        runs=rules.summarise.output.runs,
        code=dag.code("figures"),
    output:
        expand(
            "results/{{machine}}/{{scale}}/tables/{{study}}/{{table}}.{suffix}",
            suffix=["csv", "md", "tex"],
        ),
    log:
        "results/{machine}/{scale}/tables/{study}/{table}.log",
    priority: 3_000_000
    conda:
        "../../envs/conda.yaml"
    params:
        declared=ask.table,
        shown=ask.shown,
    shell:
        "scalestudy table --machine {wildcards.machine} --scale {wildcards.scale}"
        " --study {wildcards.study} --name {wildcards.table} > {log} 2>&1"


rule report:
    """Everything on one self-contained page."""
    input:
        ask.report_inputs,
        code=dag.code("figures"),
    output:
        "results/{machine}/{scale}/report.html",
    log:
        "results/{machine}/{scale}/report.log",
    conda:
        "../../envs/conda.yaml"
    params:
        studies=",".join(study.name for study in PROJECT.chosen),
    shell:
        "scalestudy report --machine {wildcards.machine} --scale {wildcards.scale}"
        " --studies {params.studies} --out {output} > {log} 2>&1"
