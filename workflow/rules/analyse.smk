rule study:
    """A study at one scale, expanded. It has no inputs and no params, for Snakemake looks at no params of what is made from
    a file that is made again: the params of figures and tables tell what has changed, and their commands expand it again.
    """
    output:
        "results/{machine}/{scale}/studies/{study}/study.json",
    log:
        "results/{machine}/{scale}/studies/{study}/study.log",
    priority: 3_000_000
    localrule: True
    conda:
        "../../envs/conda.yaml"
    shell:
        "scalestudy expand --machine {wildcards.machine} --scale {wildcards.scale}"
        " --study {wildcards.study} > {log} 2>&1"


rule summarise:
    """The results of a study as one table: a row per run, and a row per configuration."""
    input:
        results=ask.results,
        study=ask.study_json,
        code=dag.code("analysis", "claims", "spec"),
    output:
        runs="results/{machine}/{scale}/studies/{study}/runs.parquet",
        summary="results/{machine}/{scale}/studies/{study}/summary.csv",
    log:
        "results/{machine}/{scale}/studies/{study}/summarise.log",
    priority: 3_000_000
    localrule: True
    conda:
        "../../envs/conda.yaml"
    params:
        shown=ask.shown,
        measured=ask.measured,
    shell:
        "scalestudy summarise --machine {wildcards.machine} --scale {wildcards.scale}"
        " --study {wildcards.study} > {log} 2>&1"


rule judge:
    """The claims of a study, judged by its runs. No run depends on a claim."""
    input:
        runs=rules.summarise.output.runs,
        study=ask.study_json,
        reference=ask.references,
        code=dag.code("analysis", "claims", "figures", "report"),
    output:
        json="results/{machine}/{scale}/claims/{study}.json",
        csv=report(
            "results/{machine}/{scale}/claims/{study}.csv",
            caption="../report/claims.rst",
            category=ask.of_study("title"),
            subcategory="Claims",
            labels={"claims": "All verdicts"},
        ),
        md="results/{machine}/{scale}/claims/{study}.md",
        tex="results/{machine}/{scale}/claims/{study}.tex",
    log:
        "results/{machine}/{scale}/claims/{study}.log",
    priority: 3_000_000
    localrule: True
    conda:
        "../../envs/conda.yaml"
    params:
        declared=ask.claims,
        shown=ask.shown,
        published=ask.published,
    shell:
        "scalestudy judge --machine {wildcards.machine} --scale {wildcards.scale}"
        " --study {wildcards.study} > {log} 2>&1"
