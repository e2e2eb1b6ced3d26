rule summarise:
    """The results of a study as one table: a row per run, and a row per configuration."""
    input:
        results=ask.results,
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
        shown=ask.shown,
        measured=ask.measured,
    shell:
        "scalestudy summarise --machine {wildcards.machine} --scale {wildcards.scale}"
        " --study {wildcards.study} > {log} 2>&1"


rule judge:
    """The claims of a study, judged by its runs. No run depends on a claim."""
    input:
        runs=rules.summarise.output.runs,
        reference=ask.claim_references,
        code=dag.code("analysis", "figures", "report"),
    output:
        json="results/{machine}/{scale}/claims/{study}.json",
        csv=report(
            "results/{machine}/{scale}/claims/{study}.csv",
            caption="../report/claims.rst",
            category=ask.study_title,
            subcategory="Claims",
            labels={"claims": "All verdicts"},
        ),
        md="results/{machine}/{scale}/claims/{study}.md",
        tex="results/{machine}/{scale}/claims/{study}.tex",
    log:
        "results/{machine}/{scale}/claims/{study}.log",
    priority: 3_000_000
    conda:
        "../../envs/conda.yaml"
    params:
        declared=ask.claims,
        shown=ask.shown,
        published=ask.published_in_claims,
    shell:
        "scalestudy judge --machine {wildcards.machine} --scale {wildcards.scale}"
        " --study {wildcards.study} > {log} 2>&1"
