rule figure:
    """One figure, in three formats side by side, and its caption."""
    input:
        runs=rules.summarise.output.runs,
        study=ask.study_json,
        reference=ask.references,
        code=dag.code("figures"),
    output:
        svg=report(
            "results/{machine}/{scale}/figures/{study}/{figure}.svg",
            caption="../report/figure.rst",
            category=ask.of_study("title"),
            subcategory="Figures",
            labels=ask.labels,
        ),
        pdf="results/{machine}/{scale}/figures/{study}/{figure}.pdf",
        png="results/{machine}/{scale}/figures/{study}/{figure}.png",
        caption="results/{machine}/{scale}/figures/{study}/{figure}.txt",
    log:
        "results/{machine}/{scale}/figures/{study}/{figure}.log",
    priority: 3_000_000
    localrule: True
    conda:
        "../../envs/conda.yaml"
    params:
        declared=ask.declared,
        question=ask.of_study("question"),
        shown=ask.shown,
        published=ask.published,
    shell:
        "scalestudy figure --machine {wildcards.machine} --scale {wildcards.scale}"
        " --study {wildcards.study} --name {wildcards.figure} > {log} 2>&1"


rule table:
    """One table, in three formats side by side."""
    input:
        runs=rules.summarise.output.runs,
        study=ask.study_json,
        code=dag.code("figures"),
    output:
        csv=report(
            "results/{machine}/{scale}/tables/{study}/{table}.csv",
            caption="../report/table.rst",
            category=ask.of_study("title"),
            subcategory="Tables",
            labels=ask.labels,
        ),
        md="results/{machine}/{scale}/tables/{study}/{table}.md",
        tex="results/{machine}/{scale}/tables/{study}/{table}.tex",
    log:
        "results/{machine}/{scale}/tables/{study}/{table}.log",
    priority: 3_000_000
    localrule: True
    conda:
        "../../envs/conda.yaml"
    params:
        declared=ask.declared,
        question=ask.of_study("question"),
        shown=ask.shown,
    shell:
        "scalestudy table --machine {wildcards.machine} --scale {wildcards.scale}"
        " --study {wildcards.study} --name {wildcards.table} > {log} 2>&1"


rule report:
    """Everything on one self-contained page."""
    input:
        ask.report_inputs,
        code=dag.code("figures", "report"),
    output:
        report(
            "results/{machine}/{scale}/report.html",
            caption="../report/page.rst",
            category="Report",
            labels={"page": "Everything on one page"},
        ),
    log:
        "results/{machine}/{scale}/report.log",
    localrule: True
    conda:
        "../../envs/conda.yaml"
    params:
        studies=",".join(study.name for study in PROJECT.chosen),
        answers=[
            answer.to_dict() for study in PROJECT.chosen for answer in study.answers
        ],
        explained=ask.explained,
        parts=ask.report_inputs,
    shell:
        "scalestudy report --machine {wildcards.machine} --scale {wildcards.scale}"
        " --studies {params.studies} --out {output} > {log} 2>&1"
