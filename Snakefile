"""The workflow is workflow/Snakefile, where Snakemake's catalogue and its tools look for it."""


include: "workflow/Snakefile"


# Snakemake takes no default target from a file that is included.
workflow.default_target = "all"
