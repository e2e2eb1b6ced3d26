"""scalestudy: from one YAML file per study to every table and figure of a distributed-training evaluation."""

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

from scalestudy import dag
from scalestudy.errors import UserError

min_version("9.27")

# Studies and machine are checked whole before anything is planned.
try:
    PROJECT = dag.Project(config)
except UserError as error:
    raise WorkflowError(str(error))


include: "workflow/rules/common.smk"
include: "workflow/rules/prepare.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/analyse.smk"
include: "workflow/rules/publish.smk"


rule all:
    """Everything of the configured studies, scale and machine."""
    default_target: True
    input:
        f"results/{PROJECT.config.machine}/{PROJECT.config.scale}/report.html",
        *PROJECT.report_inputs(PROJECT.config.machine, PROJECT.config.scale),


# One target per study: `snakemake gpu_scaling`.
for study in PROJECT.chosen:

    rule:
        name:
            study.name
        input:
            PROJECT.study_targets(study),
