"""scalestudy: from one YAML file per study to every table and figure of a distributed-training evaluation."""

from snakemake.utils import min_version

from scalestudy import dag

min_version("9.27")

# Studies and machine are checked whole before anything is planned.
PROJECT = dag.read_project(config, workflow)


include: "workflow/rules/common.smk"
include: "workflow/rules/prepare.smk"
include: "workflow/rules/build.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/analyse.smk"
include: "workflow/rules/publish.smk"


rule all:
    """Everything of the configured studies, scale and machine."""
    default_target: True
    input:
        PROJECT.report,
        PROJECT.report_inputs(PROJECT.config.machine, PROJECT.config.scale),


# One target per study: `snakemake gpu_scaling`.
for study in PROJECT.chosen:

    rule:
        name:
            study.name
        input:
            PROJECT.study_targets(study),


onstart:
    dag.own_folder(workflow)
    dag.calm_driver(workflow)


# An account of everything, where everything of a study was asked for.
onsuccess:
    shell(PROJECT.summary_command(workflow.dag_settings.targets))


onerror:
    shell(PROJECT.summary_command(workflow.dag_settings.targets))
