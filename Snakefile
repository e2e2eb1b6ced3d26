"""scalestudy: from one YAML file per study to every table and figure of a distributed-training evaluation."""

from snakemake.utils import min_version

from scalestudy import dag

min_version("9.27")

# What is requested is checked whole before anything is planned; what is wrong beyond that is named and left out.
PROJECT = dag.read_project(config, workflow)
ask = dag.Rules(PROJECT, warn=workflow.is_main_process)


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
        ask.everything,


rule claims:
    """The verdicts on the claims of all configured studies: `snakemake claims`."""
    input:
        ask.all_claims,


# One target per study: `snakemake gpu_scaling`.
for study in PROJECT.names:

    rule:
        name:
            study
        input:
            ask.study(study),


onstart:
    dag.own_folder(workflow, PROJECT.begin)
    dag.calm_driver(workflow)
    dag.fix_claims(PROJECT)


# An account of everything, where everything of a study was asked for.
onsuccess:
    shell(PROJECT.summary_command(workflow.dag_settings.targets))


onerror:
    shell(PROJECT.summary_command(workflow.dag_settings.targets))
